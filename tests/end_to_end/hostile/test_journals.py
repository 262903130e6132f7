"""Hostile journals: links, pipes and endless lines in their place, for `runs diff` and for a run that writes one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.end_to_end.hostile.doors import ask
from tests.end_to_end.small.trainers import small_trainer

BEGAN = b'{"kind": "began", "run": "one", "step": 0}\n'


def piped(path: Path) -> None:
    os.mkfifo(path)


def linked(path: Path) -> None:
    (path.parents[1] / "outside").write_bytes(BEGAN)
    path.symlink_to(path.parents[1] / "outside")


def endless(path: Path) -> None:
    path.write_bytes(BEGAN)
    os.truncate(path, 40 << 30)


def long_line(path: Path) -> None:
    path.write_bytes(BEGAN + b'{"kind": "step", "step": ' + b"1" * (200 << 20))


JOURNALS: dict[str, tuple[Callable[[Path], None], str]] = {
    "a pipe": (piped, "not a regular file"),
    "a link": (linked, "it is a link, and links are not followed"),
    "an endless line": (endless, "its line 2 is longer than 16777216 bytes; line_bytes raises this limit"),
    "a long line": (long_line, "its line 2 is longer than"),
    "a folder": (Path.mkdir, "not a regular file"),
}


@pytest.mark.parametrize("name", JOURNALS)
def test_a_hostile_journal_is_refused(tmp_path: Path, name: str) -> None:
    """By name, whether the folder or the file is named, with the exit code of a wrong argument."""
    make, words = JOURNALS[name]
    for folder in ("bad", "good"):
        (tmp_path / folder).mkdir()
    make(tmp_path / "bad" / "journal.jsonl")
    (tmp_path / "good" / "journal.jsonl").write_bytes(BEGAN)
    by_folder, by_name = ask(
        ["runs", "diff", tmp_path / "bad", tmp_path / "good"],
        ["runs", "diff", tmp_path / "good", tmp_path / "bad" / "journal.jsonl"],
        declared=0,
    )
    assert by_folder.refuses("bad/journal.jsonl", words, code=2), by_folder
    if name != "a folder":
        assert by_name.refuses("bad/journal.jsonl", words, code=2), by_name


LINES = {
    "garbage": b"\xff\xfe\x00" * 1000 + b"\n" + b"[" * 1_000_000 + b"\n",
    "numbers": b'{"kind": "step", "step": ' + b"9" * 900 + b', "batches": 5, "learning_rate": {"a": []}}\n',
    "names": b'{"kind": "save", "checkpoint": "checkpoint-' + b"1" * 5000 + b'", "weights": 5}\n',
    "kinds": b'{"kind": "logged", "step": [], "values": [1]}\n{"kind": "losses", "first": "x", "losses": {"a": 1}}\n',
    "runs": b"".join(b'{"kind": "began", "run": "%d", "step": "x", "settings": 5}\n' % number for number in range(50)),
    "many values": b'{"kind": "losses", "first": 1, "losses": [' + b"0," * 7_000_000 + b"0]}\n",
    "many notes": b'{"kind":"a"}\n' * 1_000_000,
}


ONE, RANGE = "a line is not a valid note and was not compared; the first is line 2: ", "between 0 and 9007199254740992"
WRONG = {
    "numbers": f"{ONE}step: a number of 2990 bits is not {RANGE}; batches: 5 is not a list.",
    "names": f"{ONE}phase: it is missing; weights: 5 is not a JSON object.",
    "kinds": "2 lines are not valid notes and were not compared; the first is line 2: step: [] is not a whole number; "
    "values: [1] is not a JSON object.",
    "runs": "50 lines are not valid notes and were not compared; the first is line 2: step: 'x' is not a whole number; "
    "settings: 5 is not a JSON object.",
}
"""What is told of lines that are not notes."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.matrix] if name == "many notes" else []) for name in LINES]
)
def test_lines_that_are_no_notes_are_tolerated(tmp_path: Path, name: str) -> None:
    """Lines that are broken or of another form do no harm to the notes around them.

    Those that are JSON, but not notes, are counted, and the first is described.
    """
    for folder in ("bad", "good"):
        (tmp_path / folder).mkdir()
    step = b'{"kind": "step", "step": 3, "learning_rate": 0.5}\n'
    (tmp_path / "bad" / "journal.jsonl").write_bytes(BEGAN + LINES[name] + BEGAN.replace(b"one", b"last") + step)
    (tmp_path / "good" / "journal.jsonl").write_bytes(BEGAN + step)
    text, document, unknown = ask(
        ["runs", "diff", tmp_path / "bad", tmp_path / "good"],
        ["runs", "diff", tmp_path / "bad", tmp_path / "good", "--json"],
        ["runs", "diff", f"{tmp_path / 'bad'}@nowhere", tmp_path / "good"],
    )
    assert text.code == 0, text
    assert text.errors == (f"hexloop: {tmp_path}/bad/journal.jsonl: {WRONG[name]}\n" if name in WRONG else ""), text
    assert json.loads(document.output)["compared"] == {"learning rate": 1}
    assert unknown.refuses("name one of them", code=2), unknown
    assert len(unknown.errors) < 1000


@pytest.mark.parametrize("make", [piped, linked, Path.mkdir])
def test_a_run_does_not_write_through_a_link(
    tmp_path: Path, make: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """In the journal's place: the run goes on, the log says so, and nothing was written to the target."""
    folder = tmp_path / "output"
    folder.mkdir()
    make(folder / "journal.jsonl")
    trainer = small_trainer(folder, max_steps=2, save_strategy="steps", save_steps=2)
    trainer.train()
    (told,) = [text for text in caplog.messages if "it is a link" in text or "not a regular file" in text]
    assert "The run continues without it" in told
    assert "journal.jsonl" in told
    assert trainer.state.global_step == 2
    assert (folder / "checkpoint-2" / "manifest.json").exists()
    if make is linked:
        assert (tmp_path / "outside").read_bytes() == BEGAN
