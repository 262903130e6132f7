"""Spools in a folder and in memory: what they keep, and what another process reads."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hexloop.adapters.spool import FileSpool, MemorySpool
from hexloop.domain.limits import reading_limits


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "logs"


def fill(spool: FileSpool, *numbers: int) -> None:
    for number in numbers:
        assert spool.append(number, {"value": number, "odd": float("nan") if number % 2 else None})


def numbers_in(spool: FileSpool, after: int = 0, most: int = 1000) -> list[int]:
    return [number for number, _ in spool.read(after, most)]


def test_entries_are_read_by_another_process(folder: Path) -> None:
    """In order, from a number on, while the writer still has the files open; NaN is kept."""
    spool = FileSpool(folder)
    fill(spool, 1, 2, 5)
    other = FileSpool(folder)
    assert numbers_in(other) == [1, 2, 5]
    assert numbers_in(other, after=1, most=1) == [2]
    assert dict(other.read(1, 1)[0][1]) == {"value": 2, "odd": None}
    assert str(other.read(0, 1)[0][1]["odd"]) == "nan"
    spool.close(remove=False)


def test_an_incomplete_line_is_skipped(folder: Path) -> None:
    """As a process leaves it that is killed; the next one appends to a file of its own."""
    spool = FileSpool(folder)
    fill(spool, 1, 2)
    spool.close(remove=False)
    [path] = folder.glob("entries-*")
    path.write_bytes(path.read_bytes()[:-5])
    later = FileSpool(folder)
    assert later.keep(lambda entry: True) == 1
    fill(later, 2, 3)
    assert numbers_in(later) == [1, 2, 3]
    later.close(remove=False)


def test_files_that_all_receivers_have_are_removed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A receiver that is behind keeps what it lacks."""
    monkeypatch.setattr("hexloop.adapters.spool.SEGMENT", 100)
    spool = FileSpool(folder)
    spool.describe("quick", {})
    spool.describe("slow", {})
    fill(spool, *range(1, 41))
    files = len(list(folder.glob("entries-*")))
    assert files > 10
    spool.move("quick", 40)
    assert len(list(folder.glob("entries-*"))) == files
    spool.move("slow", 20)
    assert 2 < len(list(folder.glob("entries-*"))) < files
    assert numbers_in(spool, after=20) == list(range(21, 41))
    spool.move("slow", 40)
    assert len(list(folder.glob("entries-*"))) == 1
    assert (FileSpool(folder).position("slow"), FileSpool(folder).position("other")) == (40, 0)
    spool.close(remove=True)
    assert not folder.exists()
    spool.move("slow", 41)
    spool.describe("slow", {})
    assert not folder.exists(), "a thread that comes late leaves nothing behind"


def test_the_limit_holds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it nothing is appended."""
    monkeypatch.setattr("hexloop.adapters.spool.SEGMENT", 100)
    spool = FileSpool(folder)
    with reading_limits(spool_bytes=500):
        taken = [spool.append(number, {"value": number}) for number in range(100)]
    assert taken[:5] == [True] * 5
    assert not taken[-1]
    assert sum(path.stat().st_size for path in folder.iterdir()) < 700
    spool.close(remove=False)


def test_entries_can_be_dropped(folder: Path) -> None:
    """The largest number that was used is returned, also of those that are dropped or were received."""
    spool = FileSpool(folder)
    fill(spool, 1, 2, 3)
    spool.close(remove=False)
    later = FileSpool(folder)
    assert later.keep(lambda entry: entry["value"] != 3) == 3
    assert numbers_in(later) == [1, 2]
    later.describe("a", {})
    later.move("a", 9)
    assert later.keep(lambda entry: False) == 9
    later.close(remove=False)


@pytest.mark.parametrize("text", ["", "x", "-3", "1" * 30])
def test_damaged_files_of_receivers_are_ignored(text: str, folder: Path) -> None:
    """The receiver then has nothing, and no facts."""
    spool = FileSpool(folder)
    spool.describe("a", {"fact": 1})
    assert spool.facts("a") == {"fact": 1}
    (folder / "a.position").write_text(text)
    (folder / "a.receiver.json").write_text(text)
    other = FileSpool(folder)
    assert (other.position("a"), other.facts("a"), other.receivers()) == (0, None, ["a"])


def test_files_that_are_held_do_not_change(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are links where the file system has them, and copies elsewhere; and are gone when released."""
    source = tmp_path / "weights"
    source.write_text("new")
    spool = FileSpool(folder)
    linked = spool.hold("checkpoint-1", [("a/weights", str(source))])
    monkeypatch.setattr(os, "link", lambda *_, **__: (_ for _ in ()).throw(OSError()))
    copied = spool.hold("checkpoint-1", [("weights", str(source))])
    source.unlink()
    first, second = spool.location(linked), spool.location(copied)
    assert first is not None
    assert second is not None
    assert Path(first).name == "checkpoint-1"
    assert (Path(first, "a", "weights").read_text(), Path(second, "weights").read_text()) == ("new", "new")
    spool.release(linked)
    assert spool.location(linked) is None
    with pytest.raises(OSError, match="missing"):
        spool.hold("checkpoint-2", [("weights", str(tmp_path / "missing"))])
    assert len(list((folder / "held").iterdir())) == 1


def test_no_other_folder_is_handed_out(folder: Path, tmp_path: Path) -> None:
    """A spool may have been changed by hand."""
    spool = FileSpool(folder)
    kept = spool.hold("checkpoint-1", [])
    (tmp_path / "secret").mkdir()
    (folder / "held" / kept.partition("/")[0] / "link").symlink_to(tmp_path / "secret")
    parent = kept.partition("/")[0]
    for wrong in (
        "",
        "/etc",
        "../../secret",
        "model-x/..",
        f"{parent}/..",
        f"{parent}/link",
        f"{parent}/",
        "model-/a/b",
    ):
        assert spool.location(wrong) is None
        spool.release(wrong)
    assert spool.location(kept) is not None


def test_a_spool_in_memory_has_room_for_nothing() -> None:
    """But it knows positions and facts."""
    spool = MemorySpool()
    assert not spool.append(1, {})
    assert (list(spool.read(0, 9)), spool.keep(lambda entry: True), spool.facts("a")) == ([], 0, None)
    spool.move("a", 3)
    spool.describe("a", {"fact": 1})
    assert (spool.position("a"), spool.facts("a"), spool.receivers()) == (3, {"fact": 1}, ["a"])
    with pytest.raises(OSError, match="no folder"):
        spool.hold("a", [])
    assert spool.location("a") is None
    spool.release("a")
    spool.close(remove=True)


def test_lines_are_json(folder: Path) -> None:
    """Any program reads them."""
    spool = FileSpool(folder)
    fill(spool, 2)
    [path] = folder.glob("entries-*")
    assert json.loads(path.read_text()) == {"number": 2, "value": 2, "odd": None}
    spool.close(remove=False)
