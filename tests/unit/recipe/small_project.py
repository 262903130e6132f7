"""A project like a user's: a module with a model and data, and recipes beside it."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

from attrs import frozen

MODULE = '''
from functools import wraps

import torch

import hexloop


class Line(torch.nn.Module):
    """Squared error of a straight line."""

    def __init__(self, slope=None, activation=None):
        super().__init__()
        self.slope = torch.nn.Parameter(torch.randn(1) if slope is None else torch.tensor([slope]))
        self.activation = activation

    def forward(self, x, labels=None):
        return {"loss": ((self.slope * x - labels) ** 2).mean(), "logits": self.slope * x}


def points(count, slope=2.0, noise=None):
    steps = [float(number) for number in range(1, count + 1)]
    noise = torch.randn(count).tolist() if noise is None else [noise] * count
    return [{"x": x, "labels": slope * x + wrong} for x, wrong in zip(steps, noise)]


def error(prediction):
    return {"error": float(abs(prediction.predictions - prediction.label_ids).mean())}


def any_of(**names):
    return names


def nothing():
    return None


def fails():
    raise LookupError("no such file")


def decorated(function):
    @wraps(function)
    def outer(*values, **names):
        names.pop("extra", None)
        return function(*values, **names)

    return outer


@decorated
def fewer(count):
    return points(count)


class Mine(hexloop.Trainer):
    """A subclass."""


instance = Line(1.0)
empty = None
number = 3
'''

RECIPE = """\
model: {call: project.Line, slope: 0.5}
train_dataset: {call: project.points, count: 8, noise: 0.0}
arguments: {max_steps: 4, save_strategy: "no", disable_tqdm: true, use_cpu: true}
"""


@frozen
class Project:
    """The folder of a project."""

    folder: Path

    def __attrs_post_init__(self) -> None:
        self.write("project.py", MODULE)

    def write(self, name: str, text: str) -> Path:
        """Write `text` to a file in the folder, without its indentation."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(dedent(text))
        return path

    def recipe(self, text: str = RECIPE) -> Path:
        """Write a recipe to the folder."""
        return self.write("recipe.yaml", text)
