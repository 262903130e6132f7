"""Libraries assign the default callbacks of `transformers.trainer` before they make a Trainer."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

import hexloop
from tests.end_to_end.small.models import net, rows
from tests.end_to_end.small.trainers import DEFAULTS

ORIGINALS: Any = importlib.import_module("transformers.trainer_callback")
MODULE: Any = importlib.import_module("transformers.trainer")

pytestmark = pytest.mark.filterwarnings("ignore:These modules imported classes of transformers")


class Flow(hexloop.DefaultFlowCallback):
    """A library's default flow."""


class Bar(hexloop.ProgressCallback):
    """A library's progress bar."""


class Printer(hexloop.PrinterCallback):
    """A library's printed logs."""


class OldFlow(ORIGINALS.DefaultFlowCallback):  # type: ignore[misc]
    """One that a library derived before the takeover."""


def kinds(folder: Path, **given: Any) -> list[type[Any]]:
    trainer = hexloop.Trainer(net(), hexloop.TrainingArguments(str(folder), **DEFAULTS | given), train_dataset=rows(8))
    return [type(each) for each in trainer.callback_handler.callbacks]


OURS = [hexloop.DefaultFlowCallback, hexloop.ProgressCallback]


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("assigned", "silent", "expected"),
    [
        ({}, False, OURS),
        ({}, True, [hexloop.DefaultFlowCallback, hexloop.PrinterCallback]),
        ({"DEFAULT_CALLBACKS": [Flow]}, False, [Flow, hexloop.ProgressCallback]),
        ({"DEFAULT_CALLBACKS": [OldFlow]}, False, [OldFlow, hexloop.ProgressCallback]),
        ({"DEFAULT_CALLBACKS": []}, False, [hexloop.ProgressCallback]),
        ({"DEFAULT_CALLBACKS": [ORIGINALS.DefaultFlowCallback, Flow]}, False, [OURS[0], Flow, OURS[1]]),
        ({"DEFAULT_PROGRESS_CALLBACK": Bar}, False, [hexloop.DefaultFlowCallback, Bar]),
        ({"DEFAULT_PROGRESS_CALLBACK": Bar}, True, [hexloop.DefaultFlowCallback, hexloop.PrinterCallback]),
        ({"DEFAULT_PROGRESS_CALLBACK": ORIGINALS.PrinterCallback}, False, [OURS[0], hexloop.PrinterCallback]),
        ({"PrinterCallback": Printer}, True, [hexloop.DefaultFlowCallback, Printer]),
        ({"PrinterCallback": Printer}, False, OURS),
    ],
)
def test_assigned_defaults_are_used(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    assigned: dict[str, Any],
    silent: bool,
    expected: list[type[Any]],
) -> None:
    """In their places; the classes of transformers itself are hexloop's. Without a takeover nothing is read."""
    with hexloop.takeover():
        for name, value in assigned.items():
            monkeypatch.setattr(MODULE, name, value)
        assert kinds(tmp_path, disable_tqdm=silent) == expected
        monkeypatch.undo()
        assert kinds(tmp_path) == [hexloop.DefaultFlowCallback, hexloop.PrinterCallback]
    monkeypatch.setattr(MODULE, "DEFAULT_CALLBACKS", [Flow])
    assert kinds(tmp_path) == [hexloop.DefaultFlowCallback, hexloop.PrinterCallback]


def test_an_assigned_flow_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is derived from the default flow before the takeover stops a run as it does in transformers."""

    class Stops(ORIGINALS.DefaultFlowCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            control = super().on_step_end(args, state, control, **kwargs)
            control.should_training_stop = state.global_step == 2
            return control

    with hexloop.takeover():
        monkeypatch.setattr(MODULE, "DEFAULT_CALLBACKS", [Stops])
        arguments = hexloop.TrainingArguments(str(tmp_path), **DEFAULTS | {"max_steps": 6})
        trainer = hexloop.Trainer(net(), arguments, train_dataset=rows(32))
        assert trainer.train().global_step == 2
