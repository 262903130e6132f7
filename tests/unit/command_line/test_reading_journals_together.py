"""Two journals that are read together have the notes, and the wrong lines, of each read alone."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.adapters import journal as adapter
from hexloop.adapters.journal import checked_notes, line_batches, read
from hexloop.app.command_line import runs
from hexloop.app.command_line.runs import JournalSide, read_together
from hexloop.domain.journal import compare, timelines

BEGAN = '{"kind": "began", "time": 1.5, "run": "a", "step": 0, "random": "r"}'


def line(kind: str, time: float, **facts: Any) -> str:
    return json.dumps({"kind": kind, "time": time, **facts})


WRONG = [
    '{"kind": "logged", "time": 1.0, "step": 3, "step": 4, "values": {"loss": 1}}',
    '{"kind": "logged", "time": 1.0, "step": 3, "values": {"loss": NaN}}',
    '{"kind": "logged", "time": 1.0, "step": 3, "values": {"loss": 1e999}}',
    '{"kind": "logged", "time": 1.0, "step": 3, "values": [1]}',
    '{"kind": "logged", "time": 1.0, "step": "3", "values": {}}',
    '{"kind": "logged", "time": 1.0, "step": 3, "values": {"loss": {"a": 1}}, "random": "\\ud800"}',
    '{"kind": "step", "time": 1.0, "step": 3, "batches": [5], "learning_rate": 1.0}',
    '{"kind": "step", "time": 1.0, "step": 3, "batches": ["5"], "learning_rate": [1.0]}',
    '{"kind": "losses", "time": 1.0, "first": -1, "losses": []}',
    '{"kind": "losses", "time": 1.0, "first": 1}',
    '{"kind": "new", "time": 1.0, "a": 1, "a": 2}',
    '{"kind": 5}', "[1]", "null", "5", '{"kind": "logged"', "", "[" * 300, '{"kind": "logged", "time": 1.0, "step',
    '{"kind": "logged", "time": 1.0, "step": 3, "values": {"' + "x" * 1500 + '": 1}}',
    '{"kind": "logged", "time": 1.0, "step": 4, "values": {"loss": 1}, "random": 5}',
]  # fmt: skip

texts = st.lists(
    st.one_of(
        st.builds(
            lambda step, loss: ("logged", {"step": step, "values": {"loss": loss}}), st.integers(0, 9), st.floats(0, 1)
        ),
        st.builds(lambda step: ("step", {"step": step, "batches": ["x"], "learning_rate": 0.5}), st.integers(0, 9)),
        st.builds(lambda first: ("losses", {"first": first, "losses": [0.5, 0.25]}), st.integers(0, 9)),
        st.just(("save", {"phase": "published", "checkpoint": "checkpoint-3", "weights": {"a": "b"}})),
        st.sampled_from(WRONG),
        st.just(BEGAN),
    ),
    max_size=30,
)


def written(folder: str, name: str, drawn: list[Any], time: float) -> Path:
    path = Path(folder, name)
    lines = [each if isinstance(each, str) else line(each[0], time, **each[1]) for each in [BEGAN, *drawn]]
    path.write_text("\n".join(lines) + "\n")
    return path


@given(texts, texts, st.booleans(), st.integers(1, 8))
def test_lines_that_are_equal_are_read_once_for_both(one: list[Any], other: list[Any], same: bool, batch: int) -> None:
    """Whatever lines are in them, and wherever they differ."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(adapter, "BATCH", batch)
        paths = (
            written(folder, "one", one, 7.25),
            written(folder, "other", one[:12] + other[:2] if same else other, 8.5),
        )
        sides = JournalSide(str(paths[0])), JournalSide(str(paths[1]))
        read_together(*sides)
        for side, path in zip(sides, paths, strict=True):
            lines = path.read_bytes().split(b"\n")
            alone = [(number, *checked_notes([each])) for number, each in enumerate(lines, 1)]
            expected = timelines([note for _, notes, _ in alone for note in notes])
            assert side.runs.by_name.keys() == expected.keys()
            for name, run in expected.items():
                assert side.runs.by_name[name].observations().keys() == run.observations().keys()
                assert not compare(side.runs.by_name[name], run).divergences
                assert side.runs.by_name[name].last_step == run.last_step
            wrong = [(number, problems[0][1]) for number, _, problems in alone if problems]
            assert side.wrong.count == len(wrong)
            if wrong:
                assert side.wrong.first == min(f"line {number}: {text}" for number, text in wrong[:1]) or batch > 1


@given(texts)
def test_lines_that_are_parsed_together_are_those_parsed_alone(drawn: list[Any]) -> None:
    """The fast way takes nothing that the strict one refuses, and the other way round."""
    lines = [(each if isinstance(each, str) else line(each[0], 1.5, **each[1])).encode() for each in drawn]
    together, problems = checked_notes(lines)
    alone = [checked_notes([each]) for each in lines]
    listed = [note for notes, _ in alone for note in notes]
    assert together == listed
    assert problems == [(index, text) for index, (_, each) in enumerate(alone) for _, text in each]
    with TemporaryDirectory() as folder:
        strict = read(written(folder, "strict", drawn, 1.5))
    assert all(note in strict for note in listed)


def test_batches_are_bounded_by_their_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long lines are not held together."""
    monkeypatch.setattr(adapter, "BATCH_BYTES", 100)
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"\n".join([b"x" * 60] * 5 + [b"y"] * 3))
    assert [len(batch) for batch in line_batches(path)] == [2, 2, 4]


def test_equal_lines_are_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although their times differ, and saves of other threads are between them."""
    drawn: list[Any] = [("logged", {"step": step, "values": {"loss": 0.5}}) for step in range(1, 2000)]
    save = ("save", {"phase": "published", "checkpoint": "checkpoint-3", "weights": {"a": "b"}})
    one = written(str(tmp_path), "one", [*drawn[:50], save, *drawn[50:]], 1.5)
    other = written(str(tmp_path), "other", [*drawn[:700], save, *drawn[700:]], 1.75)
    parsed: list[int] = []

    def counting(lines: list[bytes]) -> Any:
        parsed.append(len(lines))
        return checked_notes(lines)

    monkeypatch.setattr(runs, "checked_notes", counting)
    sides = JournalSide(str(one)), JournalSide(str(other))
    read_together(*sides)
    assert sum(parsed) < 1.2 * len(drawn)
    first, second = (side.chosen([]) for side in sides)
    assert first is not None
    assert second is not None
    assert compare(first, second).first is None
    assert len(compare(first, second).compared) == 3
