"""Items of loggers as entries of a spool."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve

from hexloop.adapters.spool import FileSpool
from hexloop.domain.background_logger import left_in
from hexloop.domain.log_entries import entry_of, is_for, item_of, remains, run_entry, run_of
from hexloop.ports.logger import Outcome, Record, RunInformation, SavedModel

ITEMS = (
    Record(3, 0.5, {"loss": 0.25, "count": 3, "good": True, "nothing": None, "name": "é", "broken": math.inf}),
    SavedModel("model-1/checkpoint-3", "checkpoint-3", 3, 0.5, True, True, {"eval_loss": 0.5}),
    Outcome("failed", "RuntimeError: no"),
)


@pytest.mark.parametrize("item", ITEMS)
def test_an_item_is_the_same_afterwards(item: Any) -> None:
    """An entry is JSON, and is for all loggers or for some."""
    entry = json.loads(json.dumps(entry_of(item)))
    assert item_of(entry) == item
    assert is_for(entry, "any")
    entry = entry_of(item, {"wandb"})
    assert item_of(entry) == item
    assert (is_for(entry, "wandb"), is_for(entry, "mlflow")) == (True, False)


def test_other_values_become_numbers_or_text() -> None:
    """Scalars of other libraries are numbers; anything else is text of a bounded length."""

    class Odd:
        def __str__(self) -> str:
            return "x" * 20_000

    values: dict[str, Any] = {"scalar": torch.tensor(0.5), "tensor": torch.zeros(2), "list": [1, 2], "odd": Odd()}
    stored: Any = entry_of(Record(1, 0.0, values))["values"]
    assert (stored["scalar"], stored["tensor"], stored["list"]) == (0.5, "tensor([0., 0.])", "[1, 2]")
    assert stored["odd"] == "x" * 10_000


@pytest.mark.parametrize(
    "changes",
    [
        {"item": "other"},
        {"item": ["record"]},
        {"step": "3"},
        {"step": True},
        {"epoch": None},
        {"values": []},
        {"item": "model", "metrics": {}, "folder": 3, "name": "a"},
        {"item": "outcome", "kind": "good"},
        {"item": "outcome", "kind": "failed", "problem": 3},
    ],
)
def test_what_is_not_an_item_is_left_out(changes: dict[str, Any]) -> None:
    """A spool may be damaged."""
    assert item_of({**entry_of(ITEMS[0]), **changes}) is None
    assert item_of({"item": "record"}) is None


def test_what_remains_when_a_run_resumes() -> None:
    """Records and checkpoints up to the step, but no end."""
    record, model, outcome = (entry_of(item) for item in ITEMS)
    assert (remains(record, 3), remains(record, 2), remains(outcome, 9), remains({}, 9)) == (True, False, False, False)
    assert not remains(model, 9), "it was the final model"
    assert remains({**model, "final": False}, 3)


def test_a_run_is_described_without_its_model() -> None:
    """All else is the same afterwards."""
    run = RunInformation(
        "a", {"x": 1}, "out", 10, 3, "r", "t", "a", {"y": 2}, {"z": 3}, 7, 5, "trial", {"w": 4}, "group", object()
    )
    entry = json.loads(json.dumps(run_entry(run)))
    assert run_of(entry) == evolve(run, model=None)


@pytest.mark.parametrize("changes", [{"name": 3}, {"run": 3}, {"step": "3"}, {"configuration": []}])
def test_what_does_not_describe_a_run(changes: dict[str, Any]) -> None:
    """A file may be damaged."""
    assert run_of({**run_entry(RunInformation("a")), **changes}) is None
    assert run_of([]) is None


def test_what_each_logger_lacks_is_counted_in_one_pass(tmp_path: Path) -> None:
    """Entries for other loggers do not count; a logger has finished if it has the outcome."""
    spool = FileSpool(tmp_path)
    first = entry_of(Record(1, 0.5, {"loss": 1.0}))
    for number, entry in enumerate((first, {**first, "to": ["b"]}, entry_of(Outcome("finished"))), 1):
        spool.append(number, entry)
    spool.move("a", 1)
    spool.move("b", 3)
    assert left_in(spool, ["a", "b"]) == {"a": (1, False), "b": (0, True)}
