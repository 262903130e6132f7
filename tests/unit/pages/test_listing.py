"""The runs below a folder, from the ends of their files."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from hexloop.app.pages import watching
from hexloop.app.pages.history import RunEnding
from hexloop.app.pages.watching import RunIndex


def write(folder: Path, logs: int, started: float = 100.0, name: str = "journal.jsonl") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("w") as file:
        file.write(f"{json.dumps({'kind': 'began', 'run': folder.name, 'step': 0, 'time': started})}\n")
        for step in range(1, logs + 1):
            values = {"loss": 1.0 / step, "learning_rate": 0.1, "epoch": 0.5}
            note = {"kind": "logged", "step": step, "time": started + step, "values": values, "random": "0" * 16}
            file.write(f"{json.dumps(note)}\n")
    return folder


def test_runs_are_found_with_what_they_are_doing(tmp_path: Path) -> None:
    """At several levels, the one that reported last first; checkpoints, hidden folders and links are left out."""
    write(tmp_path / "one", 5, 100.0)
    write(tmp_path / "group" / "two", 3, 200.0)
    write(tmp_path / "one" / "checkpoint-5", 1)
    write(tmp_path / ".hidden", 1)
    (tmp_path / "link").symlink_to(tmp_path / "one")
    (tmp_path / "three").mkdir()
    (tmp_path / "three" / "log.jsonl").write_text(
        '{"event": "started", "run": "x", "step": 0}\n{"step": 4, "loss": 2.0}\n'
    )
    (tmp_path / "empty").mkdir()
    found = RunIndex(tmp_path).runs()
    assert [each.folder for each in found] == ["group/two", "one", "three"]
    assert [each.history.last_step for each in found] == [3, 5, 4]
    assert [each.last_loss for each in found] == [1 / 3, 0.2, 2.0]
    assert found[0].history.sessions.entries[-1].outcome is RunEnding.LOST


def test_only_changed_runs_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is unchanged is the same object; a new run appears, and a removed one disappears."""
    write(tmp_path / "one", 5)
    two = write(tmp_path / "two", 5, 50.0)
    index = RunIndex(tmp_path)
    before = {each.folder: each for each in index.runs()}
    with (two / "journal.jsonl").open("a") as file:
        file.write(f"{json.dumps({'kind': 'logged', 'step': 9, 'time': 999.0, 'values': {'loss': 7.0}})}\n")
    write(tmp_path / "three", 1)
    after = {each.folder: each for each in index.runs()}
    assert next(iter(after)) == "two"
    assert after["one"] is before["one"]
    assert after["two"].last_loss == 7.0
    assert "three" in after
    (two / "journal.jsonl").unlink()
    assert {each.folder for each in index.runs()} == {"one", "three"}


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A pipe in the place of a journal, and a journal without notes."""
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "journal.jsonl")
    (tmp_path / "garbage").mkdir()
    (tmp_path / "garbage" / "journal.jsonl").write_bytes(b"\xff\n" * 1000)
    problems = {each.folder: each.problem for each in RunIndex(tmp_path).runs()}
    assert "not a regular file" in problems["pipe"]
    assert problems["garbage"] == "journal.jsonl has no notes of a run"
    with pytest.raises(FileNotFoundError):
        RunIndex(tmp_path / "missing").runs()


def test_folders_and_runs_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That some are left out is known."""
    for number in range(6):
        write(tmp_path / str(number), 1)
    index = RunIndex(tmp_path)
    assert (len(index.runs()), index.cut) == (6, False)
    monkeypatch.setattr(watching, "MOST_LISTED", 4)
    assert (len(index.runs()), index.cut) == (4, True)
    monkeypatch.setattr(watching, "MOST_FOLDERS", 3)
    assert (len(index.runs()), index.cut) == (2, True)


@pytest.mark.matrix
def test_two_hundred_long_runs_are_listed_in_a_second(tmp_path: Path) -> None:
    """Of 100,000 lines each: in processor time, because other processes use the machine too. Again, they take less."""
    source = write(tmp_path / "runs" / "run 0", 100_000) / "journal.jsonl"
    for number in range(1, 200):
        (tmp_path / "runs" / f"run {number}").mkdir()
        os.link(source, tmp_path / "runs" / f"run {number}" / "journal.jsonl")
    index = RunIndex(tmp_path / "runs")
    started = time.process_time()
    assert len(index.runs()) == 200
    first, started = time.process_time() - started, time.process_time()
    assert len(index.runs()) == 200
    assert first < 3.0  # 0.3 s on an idle core
    assert time.process_time() - started < 1.0
