"""What reading a checkpoint costs: in proportion to what is in it, whatever that is, and never more than is needed."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from hexloop.adapters.storage.memory import MemoryStorage
from hexloop.domain.checkpoints import selection
from hexloop.domain.checkpoints.manifest import Lineage, Manifest, checkpoint_name
from hexloop.domain.checkpoints.reading import read_manifest, verify
from hexloop.domain.checkpoints.selection import newest, newest_first, readable_manifests
from hexloop.domain.checkpoints.survey import FolderStatus, examine
from hexloop.domain.errors import CheckpointError, DamagedCheckpointError, StorageError, UnreadableCheckpointError
from hexloop.domain.limits import reading_limits
from hexloop.ports.storage import Entry
from tests.unit.checkpoints.small_store import names, save_all
from tests.unit.checkpoints.test_manifest import EXAMPLE


class Counting(MemoryStorage):
    """Counts listings and reads. hollow: files that take that many bytes on the disk. failing: folders not listed."""

    def __init__(self) -> None:
        super().__init__()
        self.listings: Counter[str] = Counter()
        self.reads: Counter[str] = Counter()
        self.hollow: dict[str, int] = {}
        self.failing: set[str] = set()

    def list(self, folder: str) -> tuple[Entry, ...]:
        self.listings[folder] += 1
        if folder in self.failing:
            raise StorageError(f"Cannot list {folder}.")
        return tuple(
            evolve(entry, on_disk=self.hollow.get(f"{folder}/{entry.name}", entry.size))
            for entry in super().list(folder)
        )

    def read(self, path: str, start: int = 0) -> Iterator[memoryview]:
        self.reads[path] += 1
        return super().read(path, start)


def with_files(storage: MemoryStorage, paths: list[str], step: int = 5) -> str:
    """Save a checkpoint with further files, of 10 bytes each, and return its name."""
    save_all(storage, "mine", [step])
    name = checkpoint_name(step)
    manifest = read_manifest(storage, name)
    files = {path: storage.write(f"{name}/{path}", [b"0123456789"]) for path in paths}
    storage.damage(f"{name}/manifest.json", evolve(manifest, files={**manifest.files, **files}).to_json())
    return name


def test_each_folder_is_listed_once_and_each_file_read_once() -> None:
    """However many files there are."""
    storage = Counting()
    name = with_files(storage, [f"{folder}/{number}" for folder in ("a", "a/b", "c") for number in range(60)])
    storage.listings.clear()
    storage.reads.clear()
    assert len(verify(storage, name).manifest.files) > 180
    assert set(storage.listings.values()) == {1}
    assert storage.listings.keys() <= {name, *(f"{name}/{folder}" for folder in ("a", "a/b", "c", "weights"))}
    assert set(storage.reads.values()) == {1}


def test_a_folder_that_cannot_be_listed_is_asked_once() -> None:
    """All its files count as unreadable, and the message names the first of them and how many there are."""
    storage = Counting()
    name = with_files(storage, [f"a/{number:03}" for number in range(100)])
    storage.failing.add(f"{name}/a")
    storage.listings.clear()
    with pytest.raises(
        UnreadableCheckpointError, match=r"a/000, a/001, .*, a/007, and 92 more cannot be read"
    ) as raised:
        verify(storage, name)
    assert storage.listings[f"{name}/a"] == 1
    assert len(str(raised.value)) < 500


def test_a_message_names_the_first_of_many_damaged_files() -> None:
    """And says how many there are."""
    storage = Counting()
    name = with_files(storage, [f"a/{number:04}" for number in range(1000)])
    storage.remove(f"{name}/a")
    with pytest.raises(DamagedCheckpointError, match=r"a/0007 is missing; and 992 more\.$") as raised:
        verify(storage, name)
    assert len(str(raised.value)) < 500


def test_holes_are_not_read() -> None:
    """Far more zeros than bytes on the disk are refused before anything is read; the limit can be raised."""
    storage = Counting()
    name = with_files(storage, ["a/hollow", "b"])
    with reading_limits(hole_bytes=9):
        assert verify(storage, name)
        storage.hollow = dict.fromkeys([f"{name}/{path}" for path in read_manifest(storage, name).files], 0)
        storage.reads.clear()
        with pytest.raises(
            UnreadableCheckpointError, match=r"0 are on the disk, and the others are holes, in a/hollow, b"
        ):
            verify(storage, name)
        assert set(storage.reads) == {f"{name}/manifest.json"}
        with (
            pytest.warns(UserWarning, match="is skipped"),
            pytest.raises(UnreadableCheckpointError, match="It may be good, and no other checkpoint is"),
        ):
            newest(storage, quarantine=True)
        assert names(storage) == [name]
        storage.damage(f"{name}/a/hollow", b"longer than the manifest says")
        with pytest.raises(UnreadableCheckpointError, match="in b, state"):
            verify(storage, name)
        storage.hollow = {f"{name}/a/hollow": 0}
        with pytest.raises(DamagedCheckpointError, match="a/hollow has 29 bytes"):
            verify(storage, name)
    assert verify(storage, with_files(storage, ["b"], 6))


def test_a_status_takes_one_reading_of_the_manifest() -> None:
    """That of a checkpoint, whether it is good or not."""
    storage = Counting()
    name = with_files(storage, ["a"])
    for broken in (False, True):
        if broken:
            storage.remove(f"{name}/a")
        storage.reads.clear()
        assert examine(storage, name).status is (FolderStatus.BAD if broken else FolderStatus.GOOD)
        assert storage.reads[f"{name}/manifest.json"] == 1


def in_order(manifests: dict[str, Manifest]) -> Iterator[str]:
    """Yield names as `newest_first` does, by a search through all for each."""
    remaining, lineage = dict(manifests), None
    while remaining:
        of_lineage = {name: each for name, each in remaining.items() if lineage is None or lineage.holds(each)}
        candidates = of_lineage or remaining
        name = max(candidates, key=lambda name: (remaining[name].session, remaining[name].step))
        yield name
        lineage = Lineage.after(remaining.pop(name))


SESSIONS = st.sampled_from("abcd")


@given(st.dictionaries(st.integers(0, 20), st.tuples(SESSIONS, st.dictionaries(SESSIONS, st.integers(0, 20)))))
def test_the_order_is_that_of_a_search_for_each(drawn: dict[int, tuple[str, dict[str, int]]]) -> None:
    """For any lineages, possible or not."""
    manifests = {
        checkpoint_name(step): evolve(EXAMPLE, run="r", session=session, ancestors=ancestors, step=step)
        for step, (session, ancestors) in drawn.items()
    }
    assert list(newest_first(manifests)) == list(in_order(manifests))


def test_the_order_of_many_checkpoints_takes_few_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is found without asking whether every other one belongs to its lineage."""
    asked = Counter[str]()
    monkeypatch.setattr(Lineage, "holds", lambda *_: asked.update(["holds"]))
    manifests = {
        checkpoint_name(step): evolve(EXAMPLE, run="r", session=f"{step // 10:05}", ancestors={}, step=step)
        for step in range(5000)
    }
    assert list(newest_first(manifests)) == [checkpoint_name(step) for step in reversed(range(5000))]
    assert not asked


def test_the_search_ends_after_many_folders_that_are_no_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names one of them; up to that number, they are only warned of."""
    monkeypatch.setattr(selection, "MOST_BAD", 20)
    storage = Counting()
    for step in range(20):
        storage.write(f"checkpoint-{step}/other", [b"x"])
    with pytest.warns(UserWarning, match=r"it has no manifest\.json") as warned:
        assert newest(storage) is None
    assert len(warned) == 20
    storage.write("checkpoint-20/other", [b"x"])
    storage.reads.clear()
    warnings.simplefilter("ignore")
    for read in (newest, readable_manifests):
        with pytest.raises(CheckpointError, match=r"more than 20 folders.*checkpoint-0 in mem"):
            read(storage)
