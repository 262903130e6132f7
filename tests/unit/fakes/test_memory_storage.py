"""An in-memory storage with power cuts, size limits and corruption."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from hexloop.domain.errors import StorageError, StorageFullError
from hexloop.ports.storage import Entry
from hexloop.testing import Died, MemoryStorage


def dying_after(*chunks: bytes) -> Iterator[bytes]:
    """Yield chunks, and die while they are read."""
    yield from chunks
    raise Died


def test_synced_files_and_moves_survive_a_power_cut() -> None:
    """A file that was synced, and the new name of a completed move, exist after a crash; other files do not."""
    storage = MemoryStorage()
    storage.write("a/file", [b"1"])
    storage.sync(["a/file"])
    storage.write("a/other", [b"2"])
    storage.move("a", "b")

    storage.crash()

    assert storage.list("") == (Entry("b", True),)
    assert b"".join(storage.read("b/file")) == b"1"


def test_a_power_cut_may_keep_any_part_of_what_was_not_synced() -> None:
    """The caller chooses which files, and how much of them, the disk had written; they are durable from then on."""
    storage = MemoryStorage()
    for name in ("lost", "empty", "half", "whole"):
        storage.write(name, [b"0123456789"])
    storage.write("synced", [b"synced"])
    storage.sync(["synced"])
    shares = {"lost": None, "empty": 0.0, "half": 0.55, "whole": 1.0}

    storage.crash(shares.__getitem__)
    storage.crash()

    found = {entry.name: b"".join(storage.read(entry.name)) for entry in storage.list("")}
    assert found == {"empty": b"", "half": b"01234", "synced": b"synced", "whole": b"0123456789"}


def test_only_existing_files_can_be_synced() -> None:
    """A missing file is an error, and none of the others becomes durable."""
    storage = MemoryStorage()
    storage.write("a", [b"1"])
    with pytest.raises(StorageError, match="missing"):
        storage.sync(["a", "missing"])
    storage.crash()
    assert storage.list("") == ()


def test_a_removal_may_be_undone_by_a_power_cut() -> None:
    """Removed files reappear after a crash, unless a durable operation followed."""
    storage = MemoryStorage()
    storage.write("a", [b"1"])
    storage.sync(["a"])
    storage.remove("a")
    assert storage.list("") == ()
    storage.crash()
    assert storage.list("") == (Entry("a", False),)

    storage.remove("a")
    storage.write("b", [b"2"])
    storage.sync(["b"])
    storage.crash()
    assert storage.list("") == (Entry("b", False),)


def test_a_write_that_dies_leaves_a_torn_file_until_a_power_cut() -> None:
    """The next process finds the first bytes, which are lost if the machine crashed as well."""
    storage = MemoryStorage()
    with pytest.raises(Died):
        storage.write("file", dying_after(b"one", b"two"))

    assert b"".join(storage.read("file")) == b"onetwo"
    assert storage.digest("file").size == 6
    storage.crash()
    assert storage.list("") == ()


def test_a_full_storage_refuses_larger_files() -> None:
    """The refused file leaves nothing behind, other files stay, and a removal frees space."""
    storage = MemoryStorage(capacity=10)
    storage.write("a", [bytes(6)])

    with pytest.raises(StorageFullError, match="10 bytes of memory are full"):
        storage.write("b", [bytes(2), bytes(3)])

    assert storage.list("") == (Entry("a", False),)
    assert storage.write("b", [bytes(2), bytes(2)]).size == 4
    storage.remove("a")
    assert storage.write("c", [bytes(6)]).size == 6


def test_corruption_is_detected_by_reading() -> None:
    """A file with silently changed bytes has another digest, also after a crash."""
    storage = MemoryStorage()
    stored = storage.write("a", [b"good"])

    storage.damage("a", b"bad!")
    storage.crash()

    assert b"".join(storage.read("a")) == b"bad!"
    assert storage.digest("a") != stored
    assert storage.digest("a").size == stored.size
    with pytest.raises(StorageError, match="missing"):
        storage.damage("missing", b"")


def test_threads_do_not_interfere() -> None:
    """Files written, moved and removed in several threads at once are all complete."""
    storage = MemoryStorage()
    failures: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for number in range(100):
                storage.write(f"{name}/new", [name.encode(), bytes([number])])
                storage.move(f"{name}/new", f"{name}/{number}")
                storage.remove(f"{name}/{number - 2}")
                storage.list("")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    for name in "abcd":
        assert [entry.name for entry in storage.list(name)] == ["98", "99"]
        assert b"".join(storage.read(f"{name}/99")) == name.encode() + b"\x63"
