"""The index of a journal: what is added up, what is left to be parsed, and what is refused."""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from typing import Any

import pytest

from hexloop.domain import journal_index
from hexloop.domain.journal_index import Window, WindowsAhead, block_in, parts_of, window_in, window_of, windows_in


def log(step: Any, time: Any = 1.5, **values: Any) -> bytes:
    samples = 2 * step if isinstance(step, int) and step < 100 else 2**60
    return json.dumps({"kind": "logged", "time": time, "step": step, "samples": samples, "values": values}).encode()


LOGS = [log(step, loss=0.5, rate=step, note="text", on=True, epoch=0.1) for step in range(1, 9)]


def test_notes_are_added_up() -> None:
    """Values by name with their steps, epochs and samples among them; texts and truth values have no column."""
    losses = b'{"kind": "losses", "time": 2.0, "first": 7, "losses": [1.0, null, "NaN", -3]}'
    ((kind, size, *rest),) = parts_of([*LOGS, losses, b'{"kind": "step", "time": 3.0, "step": 12}'])
    block = block_in([kind, size, *json.loads(json.dumps(rest))])
    assert (kind, block.notes, block.first, block.last, block.step) == ("block", 10, 1.5, 3.0, 12)
    assert {name: list(steps) for name, (steps, _) in block.curves.items()} == {
        "loss": list(range(1, 9)),
        "rate": list(range(1, 9)),
        "epoch": list(range(1, 9)),
        "samples trained on": list(range(1, 9)),
        "loss of each step": [7, 9, 10],
    }
    assert list(block.curves["rate"][1]) == [float(step) for step in range(1, 9)]
    assert [str(each) for each in block.curves["loss of each step"][1]] == ["1.0", "nan", "-3.0"]


def test_a_later_value_at_a_step_counts() -> None:
    """As of an evaluation after the log of its step."""
    ((*part,),) = parts_of([*LOGS, log(8, 9.5, loss=7.0)])
    block = block_in(part)
    assert (block.curves["loss"][1][-1], block.times[1][-1], len(block.times[0])) == (7.0, 9.5, 8)


ODD = {
    "not JSON": b'{"kind": "logged"',
    "not a note": b"[1]",
    "another kind": b'{"kind": "save", "time": 1.5}',
    "no time": log(9, None, loss=1.0),
    "no step": log(None, loss=1.0),
    "an earlier step": log(3, loss=1.0),
    "a huge step": log(2**60, loss=1.0),
    "a huge number": log(9, loss=2**60),
    "a long name": log(9, **{"x" * 501: 1.0}),
    "no values": b'{"kind": "logged", "time": 1.5, "step": 9, "values": [1]}',
    "no losses": b'{"kind": "losses", "time": 1.5, "first": 9, "losses": {}}',
    "nested deeply": b'{"kind": "logged", "values": ' + b"[" * 100_000,
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_note_is_left_to_be_parsed(name: str) -> None:
    """With those around it, if they cannot be told from it; the others are added up."""
    lines = [*LOGS, ODD[name]]
    parts = parts_of(lines)
    assert sum(part[1] for part in parts) == sum(len(line) + 1 for line in lines)
    assert parts[-1][0] == "lines"
    few = [ODD[name], *LOGS[:3], ODD[name]]
    assert parts_of(few) == [["lines", sum(len(line) + 1 for line in few)]]


def test_losses_alone_are_left_to_be_parsed() -> None:
    """They do not say at which step the run is."""
    line = b'{"kind": "losses", "time": 2.0, "first": 7, "losses": []}'
    assert parts_of([line] * 9) == [["lines", 9 * (len(line) + 1)]]


def column(steps: list[int], values: int | None = None) -> list[str]:
    encoded = b"".join(step.to_bytes(8, "little", signed=True) for step in steps)
    return [b64encode(encoded).decode(), b64encode(bytes(8 * (len(steps) if values is None else values))).decode()]


GOOD: list[Any] = ["block", 100, 8, 1.5, 2.5, 8, column([1, 2]), {"loss": column([1, 2])}]
WRONG: list[tuple[int, Any]] = [
    (2, 0), (2, 101), (2, "8"), (3, "1"), (3, float("inf")), (4, 1), (5, -1), (5, 2**53), (5, 1.5), (6, column([2, 2])),
    (6, column([1], 2)), (6, column([-1, 2])), (6, column([1, 2**60])), (6, 5), (6, ["", 5]), (6, ["x", "y"]),
    (6, [""]),
    (6, [b64encode(b"five!").decode(), ""]), (7, []), (7, {"x" * 501: column([])}), (7, {"a": column([3, 1])}),
    (7, {"a": ["", column([1])[1]]}),
]  # fmt: skip


@pytest.mark.parametrize(("place", "value"), WRONG)
def test_a_wrong_block_is_refused(place: int, value: Any) -> None:
    """Before anything is taken from it."""
    assert block_in(GOOD).curves["loss"][0].tolist() == [1, 2]
    with pytest.raises(ValueError, match=r".+"):
        block_in([*GOOD[:place], value, *GOOD[place + 1 :]])


def test_an_index_has_one_order_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with another one swaps them when it writes and reads."""
    written = parts_of(LOGS)
    swapped = "big" if sys.byteorder == "little" else "little"
    monkeypatch.setattr(sys, "byteorder", swapped)
    assert block_in(parts_of(LOGS)[0]).times[0].tolist() == list(range(1, 9))
    assert parts_of(LOGS) != written


def test_windows_end_at_lines_and_long_ones_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start of a journal has none."""
    monkeypatch.setattr(journal_index, "INDEXED_FROM", 30)
    monkeypatch.setattr(journal_index, "WINDOW", 25)
    monkeypatch.setattr(journal_index, "LONGEST_WINDOW", 50)
    ahead = WindowsAhead(0)
    found = [ahead.add(b"x" * size + b"\n") for size in (19, 19, 19, 19, 69, 29)]
    assert [each and (each.start, each.end) for each in found] == [None, None, None, (40, 80), None, (150, 180)]


def test_windows_come_in_order() -> None:
    """One that is before another is skipped, as one that is not valid."""
    first, second = window_of(0, [b"one"]), window_of(4, [b"two"])
    lines = [each.line()[:-1] for each in (first, second)]
    assert list(windows_in([lines[0], lines[0], b"torn", lines[1], lines[0]])) == [first, second]
    assert window_in(lines[0]) == Window(0, 4, first.digest, [["lines", 4]])
