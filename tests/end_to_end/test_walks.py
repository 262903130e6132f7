"""How a run's batches are built, call by call: few files, each of which is entered once."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from attrs import define, field
from torch import Tensor, nn

from hexloop import Trainer, TrainingArguments
from hexloop.app.run import session

ROOT = Path(session.__file__).resolve().parents[2]
FOLDERS = ("app", "domain", "adapters")
"""Ports are not counted."""

STARTS = {"TrainerData.get_train_dataloader", "training_data"}
"""What a run calls to get from its data set to its batches."""

ASIDE = {"TrainerAttributes._collect_parts", "is_standard", "rules_of"}
"""Collects what the user passed, data or not; and looks up whose method or behaviour is in force."""

MOST_FILES = 10


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(1, 1)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        out = self.inner(x)
        return {"loss": (out - labels).pow(2).mean(), "logits": out}


ROWS = [{"x": [float(number)], "labels": [float(number)]} for number in range(20)]


@define
class Walk:
    """The files that calls enter, in order, from those of `STARTS` on; the profile function of one thread.

    Reading a property is not a call. The same function may call into the same file several times in a row.
    entered: the file, and the function that called into it. _stack: of each call the file that it is in, the number of
    the frame that called into a file last, and whether the call is on the walk.
    """

    entered: list[tuple[str, str]] = field(factory=list)
    _stack: list[tuple[str, int, str, bool]] = field(factory=list)
    _last: tuple[int, str] = (0, "")

    def __call__(self, frame: FrameType, kind: str, _argument: Any) -> None:
        """Note a call or a return."""
        if kind == "return" and self._stack:
            self._stack.pop()
        elif kind == "call":
            self._stack.append(self._called(frame))

    def _called(self, frame: FrameType) -> tuple[str, int, str, bool]:
        caller, caller_frame, name, walks = self._stack[-1] if self._stack else ("", 0, "", False)
        code = frame.f_code
        walks = (walks or code.co_qualname in STARTS) and code.co_qualname not in ASIDE and not is_property(frame)
        called = source_of(code.co_filename) if walks else None
        if called is None:  # of another package, or not followed
            return caller, caller_frame, name, walks
        if called != caller and (caller_frame, called) != self._last:
            self.entered.append((called, f"{caller}: {name}"))
        if called != caller:
            self._last = caller_frame, called
        return called, id(frame), code.co_qualname, walks


@cache
def source_of(filename: str) -> str | None:
    """Return the file of hexloop's source that has this name; None for any other."""
    path = Path(filename)
    if path.suffix != ".py" or ROOT not in (resolved := path.resolve()).parents:
        return None
    inside = resolved.relative_to(ROOT)
    return inside.as_posix() if inside.parts[0] in FOLDERS else None


def is_property(frame: FrameType) -> bool:
    """Return whether a call reads a property."""
    owner = frame.f_locals.get("self")
    return isinstance(getattr(type(owner), frame.f_code.co_name, None), property)


def test_a_data_set_becomes_batches_in_a_straight_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A data set with indices, in one process on the CPU: at most 10 files, that of the run among them, each once."""
    walk, prepare = Walk(), session._prepare

    def traced(*arguments: Any) -> Any:
        before = sys.getprofile()
        sys.setprofile(walk)
        try:
            return prepare(*arguments)
        finally:
            sys.setprofile(before)

    monkeypatch.setattr(session, "_prepare", traced)
    args = TrainingArguments(str(tmp_path), max_steps=1, save_strategy="no", use_cpu=True, disable_tqdm=True)
    torch.manual_seed(0)

    Trainer(Line(), args, train_dataset=ROWS).train()

    entered = [file for file, _ in walk.entered]
    assert sorted(set(entered)) == sorted(entered), walk.entered
    assert len({"app/run/session.py", *entered}) <= MOST_FILES, walk.entered
