"""A short training run in a process of its own that receives signals at given times; see `Scenario`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from attrs import field, frozen
from torch.utils.data import Dataset

from hexloop import Trainer, TrainerCallback, TrainingArguments
from hexloop.adapters.storage.local import LocalStorage
from hexloop.ports.process import Interrupts
from hexloop.ports.storage import Stored
from tests.end_to_end.small.models import Noisy, net, rows

STEPS = 9


@frozen
class Scenario:
    """The signals and settings of a run.

    signals: sent one after the other at a `moment` ("step", "evaluation", "save" or "never") of the step `at`, to this
    process or, with `to_group`, to its process group. start_method: of the loader's workers.
    stuck_at: the index of the sample that blocks until the file "go" exists.
    arguments: additional arguments of the run.
    """

    signals: tuple[str, ...] = ()
    moment: str = "never"
    at: int = 4
    to_group: bool = False
    workers: int = 0
    start_method: str = "fork"
    stuck_at: int | None = None
    resume: str | bool | None = None
    arguments: dict[str, Any] = field(factory=dict)


class Stuck(Dataset[Any]):
    """Samples, one of which blocks until released."""

    def __init__(self, number: int, folder: Path) -> None:
        self.samples = Noisy(28)
        self.number, self.folder = number, folder

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        if index == self.number:
            (self.folder / "waiting").write_text(str(os.getpid()))
            while not (self.folder / "go").exists():
                time.sleep(0.01)
        return self.samples[index]


class SendingStorage(LocalStorage):
    """A disk that sends signals while the second file is written."""

    def __init__(self, folder: str, step: int, send: Callable[[], None]) -> None:
        super().__init__(folder)
        self._mark, self._send, self._files = f"checkpoint-{step}/", send, 0

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> Stored:
        self._files += self._mark in path
        if self._files == 2:
            self._files += 1
            chunks = self._sending(chunks)
        return super().write(path, chunks)

    def _sending(self, chunks: Iterable[bytes | memoryview]) -> Iterable[bytes | memoryview]:
        for chunk in chunks:
            yield chunk[:1]
            self._send()
            yield chunk[1:]


class Sends(TrainerCallback):
    """Sends signals after a step, or in the evaluation after it; notes when the last step ended."""

    def __init__(self, scenario: Scenario, send: Callable[[], None], stepped: Path) -> None:
        self.scenario, self.send, self.stepped = scenario, send, stepped

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.stepped.touch()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.stepped.touch()
        if self.scenario.moment == "step" and state.global_step == self.scenario.at:
            self.send()

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.scenario.moment == "evaluation" and state.global_step == self.scenario.at:
            self.scenario = Scenario()
            self.send()


class Noticed:
    """Interrupts that create a file when they request a stop; a second signal that comes before would merge with it."""

    def __init__(self, source: Interrupts, file: Path) -> None:
        self.source, self.file = source, file

    def start(self, ask: Callable[[str], None]) -> None:
        def requested(reason: str) -> None:
            ask(reason)
            self.file.touch()

        self.source.start(requested)

    def stop(self) -> None:
        self.source.stop()


def train(folder: Path, scenario: Scenario) -> None:
    """Train, record the result, and exit with its code, or with 130 after a KeyboardInterrupt."""
    os.setsid()
    torch.set_num_threads(1)

    def send() -> None:
        for name in scenario.signals:
            if scenario.to_group:  # from another process: a worker treats a signal from its parent as an order to exit
                command = ["kill", f"-{name.removeprefix('SIG')}", "--", f"-{os.getpid()}"]
                subprocess.run(command, start_new_session=True, check=True)
            else:
                os.kill(os.getpid(), getattr(signal, name))
            while not (folder / "asked").exists():
                time.sleep(0.01)

    storage = (
        SendingStorage(str(folder / "out"), scenario.at, send)
        if scenario.moment == "save"
        else LocalStorage(str(folder / "out"))
    )
    dataset: Any = Noisy(28) if scenario.stuck_at is None else Stuck(scenario.stuck_at, folder)
    trainer = Trainer(
        model=net(0.3),
        args=arguments(folder, scenario),
        train_dataset=dataset,
        eval_dataset=rows(12),
        callbacks=[Sends(scenario, send, folder / "stepped")],
        loggers=[],
        storage=storage,
    )
    trainer.adapters.interrupts = Noticed(trainer.adapters.interrupts, folder / "asked")
    before = [signal.getsignal(getattr(signal, name)) for name in ("SIGINT", "SIGTERM", "SIGUSR1")]
    try:
        trainer.train(scenario.resume)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        after = [signal.getsignal(getattr(signal, name)) for name in ("SIGINT", "SIGTERM", "SIGUSR1")]
        outcome = trainer.outcome
        reported = {
            "handlers restored": before == after,
            "step": trainer.state.global_step,
            "reasons": list(outcome.reasons) if outcome is not None else None,
            "checkpoint": outcome.checkpoint if outcome is not None else None,
        }
        (folder / "reported.json").write_text(json.dumps(reported))
    assert trainer.outcome is not None
    sys.exit(trainer.outcome.exit_code)


def arguments(folder: Path, scenario: Scenario) -> TrainingArguments:
    """Four samples per step, an evaluation every fourth step, and a save of the last."""
    usual: dict[str, Any] = {
        "output_dir": str(folder / "out"),
        "max_steps": STEPS,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "learning_rate": 0.01,
        "logging_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": 4,
        "save_steps": STEPS,
        "interrupts": ["SIGINT", "SIGTERM", "SIGUSR1"],
        "dataloader_num_workers": scenario.workers,
        "dataloader_multiprocessing_context": scenario.start_method if scenario.workers else None,
        "use_cpu": True,
        "disable_tqdm": True,
        "report_to": "none",
    }
    return TrainingArguments(**{**usual, **scenario.arguments})
