"""The runs below a folder, from the ends of their files."""

from __future__ import annotations

import json
import os
import time
from collections import ChainMap
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


def test_the_first_runs_are_read_before_all_folders_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of a folder with many runs has rows at once."""
    monkeypatch.setattr(watching, "SHOWN_AT_ONCE", 2)
    for number in range(6):
        write(tmp_path / str(number), 1)
    index = RunIndex(tmp_path)
    counts = [len(index.runs(0.0)) for _ in range(4)]
    assert counts[1:] == [1, 2, 2]  # of the folder itself there is no run
    while not index.is_complete:
        index.runs(0.0)
    assert sorted(run.folder for run in index.known()) == [str(number) for number in range(6)]


def test_little_time_reads_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs that changed last, at least one; later calls read the others, and a removed run disappears."""
    monkeypatch.setattr(watching, "SHOWN_AT_ONCE", 0)
    for number in range(6):
        run = write(tmp_path / str(number), 1)
        os.utime(run / "journal.jsonl", (number, number))
    index = RunIndex(tmp_path)
    counts: list[int] = []
    while not counts or not index.is_complete:
        counts.append(len(index.runs(0.0)))
        if counts[-1] == 1:
            assert index.runs(0.0)[0].folder == "5"
            assert index.waiting > 0
    assert counts == sorted(counts)
    assert counts[-1] == 6
    (tmp_path / "3" / "journal.jsonl").unlink()
    assert len(index.runs()) == 5


@pytest.mark.parametrize(
    "folder",
    [
        "../outside",
        "..",
        "/etc",
        ".hidden",
        "link",
        "one/checkpoint-5",
        "none",
        "",
        "a/b/c/d/e",
        "\0",
        "one/../two",
        "\ud800",
    ],
)
def test_only_runs_that_the_list_would_have_are_found(tmp_path: Path, folder: str) -> None:
    """Before the list is read, too."""
    for name in ("one", "one/checkpoint-5", ".hidden", "group/two", "a/b/c/d/e"):
        write(tmp_path / "runs" / name, 1)
    write(tmp_path / "outside", 1)
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "runs" / "one")
    index = RunIndex(tmp_path / "runs")
    assert index.find(folder) is None
    assert index.find("group/two") is index.find("group/two") is not None
    assert [each.folder for each in index.known()] == ["group/two"]


def test_a_journal_in_a_known_folder_is_found(tmp_path: Path) -> None:
    """Also where the hidden folder was there before it, and no entry of the run's folder changes."""
    (tmp_path / "one" / ".hexloop").mkdir(parents=True)
    os.utime(tmp_path / "one", (1.0, 1.0))
    index = RunIndex(tmp_path)
    assert index.runs() == []
    write(tmp_path / "one" / ".hexloop", 1)
    assert [each.folder for each in index.runs()] == ["one"]


def test_the_last_evaluation_is_listed(tmp_path: Path) -> None:
    """Also where many logs follow it; a run that does not evaluate is not searched for it."""
    for name, strategy in (("one", "steps"), ("two", "no")):
        folder = tmp_path / name
        folder.mkdir()
        notes = [{"kind": "began", "step": 0, "time": 1.0, "settings": {"eval_strategy": strategy}}]
        notes += [{"kind": "logged", "step": step, "time": 2.0, "values": {"eval_f1": step / 100}} for step in (10, 20)]
        notes += [{"kind": "logged", "step": step, "time": 2.0, "values": {"loss": 1.0}} for step in range(21, 1_000)]
        (folder / "journal.jsonl").write_text("".join(f"{json.dumps(note)}\n" for note in notes))
    found = {each.folder: each for each in RunIndex(tmp_path).runs()}
    assert found["one"].last_value("eval_f1") == 0.2
    assert found["two"].last_value("eval_f1") is None
    assert found["one"].history.last_step == 999


def test_equal_arguments_are_kept_once(tmp_path: Path) -> None:
    """Runs share them, and each has its own."""
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        settings = {f"argument {index}": index for index in range(100)} | {"seed": number, "flag": [1, True, 1][number]}
        note = {"kind": "began", "step": 0, "time": 1.0, "settings": settings}
        (folder / "journal.jsonl").write_text(json.dumps(note) + "\n")
    found = {each.folder: each.history.settings for each in RunIndex(tmp_path).runs()}
    assert [found[str(number)]["seed"] for number in range(3)] == [0, 1, 2]
    assert found["1"]["flag"] is True
    assert found["2"]["argument 7"] == 7
    assert sum(len(each.maps[0]) for each in found.values() if isinstance(each, ChainMap)) <= 4


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
