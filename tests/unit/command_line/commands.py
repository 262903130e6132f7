"""Calls of the command line in this process, and a project whose runs are stopped at an exact step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from hexloop.app.command_line import main
from tests.unit.recipe.small_project import Project

SIGNALLING = '''
import os
import shutil
import signal

import torch

import hexloop


class Noisy(torch.nn.Module):
    """A line that is fitted under noise, so that a resumed run shows whether the random streams went on."""

    def __init__(self):
        super().__init__()
        self.slope = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x, labels=None):
        logits = self.slope * (x + 0.1 * torch.randn_like(x))
        return {"loss": ((logits - labels) ** 2).mean(), "logits": logits}


class Signals(hexloop.TrainerCallback):
    """Sends signals to its own process after a step, or in the middle of the evaluation that follows the step."""

    def __init__(self, step, names, evaluating=False, instead_of_folder=None):
        self.step, self.names, self.evaluating = step, names, evaluating
        self.instead_of_folder = instead_of_folder

    def on_step_end(self, args, state, control, **kwargs):
        if not self.evaluating:
            self.send(state)

    def on_prediction_step(self, args, state, control, **kwargs):
        if self.evaluating:
            self.send(state)

    def send(self, state):
        if state.global_step != self.step:
            return
        self.step = None
        if self.instead_of_folder:
            shutil.rmtree(self.instead_of_folder, ignore_errors=True)
            open(self.instead_of_folder, "w").close()
        for name in self.names:
            os.kill(os.getpid(), getattr(signal, name))


class Fails(hexloop.TrainerCallback):
    """A callback with a bug."""

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 3:
            raise ArithmeticError("a bug of the user's own")
'''

NOISY = """\
model: {call: signalling.Noisy}
train_dataset: {call: project.points, count: 24}
eval_dataset: {call: project.points, count: 4}
arguments:
  output_dir: out
  max_steps: 9
  per_device_train_batch_size: 4
  learning_rate: 0.1
  eval_strategy: steps
  eval_steps: 3
  save_steps: 100
  report_to: json_lines
  disable_tqdm: true
  use_cpu: true
"""


@frozen
class Outcome:
    """The result and the output of a command."""

    code: int
    output: str
    errors: str

    @property
    def last_line(self) -> str:
        """Return the last line of standard output."""
        return self.output.splitlines()[-1]


@frozen
class Commands:
    """The command line, run in the folder of `project`."""

    project: Project
    capture: pytest.CaptureFixture[str]

    def __call__(self, *words: str | Path) -> Outcome:
        """Run the command with the arguments `words`."""
        self.capture.readouterr()
        code = main([str(word) for word in words])
        return Outcome(code, *self.capture.readouterr())

    def stopping(self, **keywords: Any) -> str:
        """Return a recipe whose run is stopped by signals; see `Signals`."""
        callback = json.dumps({"call": "signalling.Signals", **keywords})
        self.project.write("stopping.yaml", f"{NOISY}\ncallbacks: [{callback}]\n")
        return "stopping.yaml"

    def write(self, name: str, text: str) -> str:
        """Write a file in the folder."""
        self.project.write(name, text)
        return name
