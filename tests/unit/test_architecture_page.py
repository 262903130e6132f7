"""The walks on the architecture page match the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hexloop.app.overrides.framework import TorchWithOverrides

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(?P<caller>[\w/]+\.py)` \| `(?P<function>\w+)` \| `(?P<definer>[\w/]+\.py)` \|$", re.MULTILINE)
BUDGET = {
    "A training step": 6,
    "A learning rate": 8,
    "A checkpoint save": 9,
    "An evaluation": 8,
    "The batches of a process": 10,
}
"""How many files a walk may take."""

SUBMITTED = {
    ("adapters/background.py", "run"): "_act",
    ("app/run/session.py", "_prepare_for_run"): "prepare",
    ("domain/loop.py", "evaluation_in_training"): "evaluate",
    ("domain/evaluation.py", "log"): "report",
}
"""Calls of a function that was passed in, with the name that the caller has for it."""

ROWS = {
    row.__func__.__name__: f"framework.{name}"
    for kind in TorchWithOverrides.__mro__
    for name, row in vars(kind).items()
    if isinstance(row, staticmethod)
}
"""The calls of functions in the table of the framework, which name the row."""


def edges_of(walk: str) -> list[tuple[str, str, str]]:
    """Return the rows of a walk: the calling file, the function, the file that defines it."""
    section = PAGE.split(f"\n## {walk}\n")[1].split("\n## ")[0]
    return [(row["caller"], row["function"], row["definer"]) for row in ROW.finditer(section)]


EDGES = [(walk, *edge) for walk in BUDGET for edge in edges_of(walk)]


@pytest.mark.parametrize(("walk", "caller", "function", "definer"), EDGES)
def test_an_edge_of_a_walk_is_in_the_code(walk: str, caller: str, function: str, definer: str) -> None:
    """The caller calls the function, and the other file defines it."""
    called = f"{SUBMITTED.get((caller, function), function)}|{ROWS.get(function, function)}"
    assert re.search(rf"\b({called})\(", (ROOT / caller).read_text(encoding="utf-8")), f"{caller} lacks {called}"
    assert re.search(rf"def {function}\(", (ROOT / definer).read_text(encoding="utf-8")), f"{definer} lacks {function}"


@pytest.mark.parametrize("walk", BUDGET)
def test_a_walk_is_connected_and_short(walk: str) -> None:
    """Every caller was reached before, and the walk takes no more files than its budget."""
    edges = edges_of(walk)
    reached = {edges[0][0]}
    for caller, _, definer in edges:
        assert caller in reached
        reached.add(definer)
    assert len(reached) == BUDGET[walk]
