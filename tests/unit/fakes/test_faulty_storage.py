"""A storage that fails by plan."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hexloop.domain.errors import StorageError, StorageFullError
from hexloop.ports.storage import Publication, Storage, Stored
from hexloop.testing import Died, Effect, Fault, FaultyStorage, MemoryStorage

TEN = [b"01234", b"56789"]


def tree(storage: Storage, folder: str = "") -> dict[str, bytes]:
    """Return every file with its bytes."""
    files: dict[str, bytes] = {}
    for entry in storage.list(folder):
        path = f"{folder}/{entry.name}".lstrip("/")
        files |= tree(storage, path) if entry.is_folder else {path: b"".join(storage.read(path))}
    return files


def folder_of_four(publication: Publication = Publication.RENAME) -> MemoryStorage:
    """Return a folder with four files, one of them in a subfolder."""
    storage = MemoryStorage(publication)
    for name in ("a", "b", "c/d", "e"):
        storage.write(f"folder/{name}", [b"."])
    return storage


@pytest.mark.parametrize(("effect", "error"), [(Effect.FAIL, StorageError), (Effect.FULL, StorageFullError)])
def test_the_planned_operation_fails_without_effect(effect: Effect, error: type[StorageError]) -> None:
    """Only the operation of that number raises, and the storage is unchanged."""
    storage = FaultyStorage(MemoryStorage(), [Fault(2, effect)])
    storage.write("a", TEN)

    with pytest.raises(error, match="write of b"):
        storage.write("b", TEN)

    assert tree(storage.inner) == {"a": b"0123456789"}
    assert storage.write("b", TEN).size == 10


def test_operations_can_be_counted_by_name() -> None:
    """A fault of the second write does not count other operations; it may occur several times in a row."""
    storage = FaultyStorage(MemoryStorage(), [Fault(2, Effect.FAIL, operation="write", times=2)])
    storage.list("")
    storage.write("a", TEN)
    storage.list("")
    for _ in range(2):
        with pytest.raises(StorageError):
            storage.write("b", TEN)

    storage.write("b", TEN)

    assert storage.operations == [("list", ""), ("write", "a"), ("list", ""), *[("write", "b")] * 3]


@pytest.mark.parametrize(
    "operation",
    [
        lambda storage: storage.read("folder/a"),
        lambda storage: storage.list("folder"),
        lambda storage: storage.digest("folder/a"),
        lambda storage: storage.move("folder", "other"),
        lambda storage: storage.remove("folder"),
        lambda storage: storage.sync(["folder/a"]),
    ],
)
def test_every_operation_can_fail_and_die(operation: Callable[[Storage], object]) -> None:
    """A plan can fail any operation, or let the process die before the operation has any effect."""
    inner = folder_of_four()
    before = tree(inner)

    with pytest.raises(StorageError):
        operation(FaultyStorage(inner, [Fault(1, Effect.FAIL)]))
    with pytest.raises(Died):
        operation(FaultyStorage(inner, [Fault(1, Effect.DIE, done=0)]))

    assert tree(inner) == before


def test_a_dead_process_does_nothing_more() -> None:
    """After its death every operation raises Died, which `except Exception` does not catch, and has no effect."""
    storage = FaultyStorage(MemoryStorage(), [Fault(1, Effect.DIE, done=1)])
    with pytest.raises(Died):
        storage.write("a", TEN)
    for operation in (
        lambda: storage.write("b", TEN),
        lambda: storage.remove("a"),
        lambda: storage.list(""),
    ):
        with pytest.raises(Died):
            operation()

    assert storage.dead
    assert not issubclass(Died, Exception)
    assert tree(storage.inner) == {"a": b"0123456789"}
    assert storage.operations == [("write", "a")]


@pytest.mark.parametrize(("done", "left"), [(0.0, b""), (0.5, b"01234"), (0.99, b"012345678"), (1.0, b"0123456789")])
def test_a_torn_write_keeps_its_first_bytes(done: float, left: bytes) -> None:
    """The caller gets success, or dies; the file holds the given number of bytes."""
    expected = MemoryStorage().write("a", TEN)
    torn = FaultyStorage(MemoryStorage(), [Fault(1, Effect.TEAR, done=done)])
    dead = FaultyStorage(MemoryStorage(), [Fault(1, Effect.DIE, done=done)])

    assert torn.write("a", TEN) == expected
    with pytest.raises(Died):
        dead.write("a", TEN)

    assert tree(torn) == tree(dead.inner) == {"a": left}
    assert (torn.digest("a") == expected) == (done == 1)


@pytest.mark.parametrize(("done", "durable"), [(0.0, []), (0.5, ["a"]), (0.7, ["a", "b"]), (1.0, ["a", "b", "c"])])
@pytest.mark.parametrize("effect", [Effect.TEAR, Effect.DIE])
def test_a_torn_sync_makes_the_first_files_durable(done: float, durable: list[str], effect: Effect) -> None:
    """The others are lost in a power cut, whether the caller gets success or dies."""
    inner = MemoryStorage()
    storage = FaultyStorage(inner, [Fault(1, effect, "sync", done)])
    for name in "abc":
        storage.write(name, TEN)

    try:
        storage.sync(["a", "b", "c"])
    except Died:
        assert effect is Effect.DIE

    assert sorted(tree(inner)) == ["a", "b", "c"]
    inner.crash()
    assert sorted(tree(inner)) == durable
    assert storage.operations[-1] == ("sync", "a, b, c")


@pytest.mark.parametrize(("done", "left"), [(0.0, "abc/de"), (0.5, "c/de"), (1.0, "")])
def test_a_torn_removal_leaves_the_last_files(done: float, left: str) -> None:
    """The first files of a folder are removed, the others remain."""
    storage = FaultyStorage(folder_of_four(), [Fault(1, Effect.DIE, done=done)])

    with pytest.raises(Died):
        storage.remove("folder")

    assert "".join(path.removeprefix("folder/") for path in tree(storage.inner)) == left


@pytest.mark.parametrize(
    ("publication", "done", "moved"),
    [
        (Publication.RENAME, 0.75, []),
        (Publication.RENAME, 1.0, ["a", "b", "c/d", "e"]),
        (Publication.MANIFEST_LAST, 0.75, ["a", "b", "c/d"]),
        (Publication.MANIFEST_LAST, 0.0, []),
    ],
)
@pytest.mark.parametrize("effect", [Effect.TEAR, Effect.DIE])
def test_a_torn_move_depends_on_the_storage(
    publication: Publication, done: float, moved: list[str], effect: Effect
) -> None:
    """With atomic moves, all files have the new name or none; otherwise the first of them do."""
    storage = FaultyStorage(folder_of_four(publication), [Fault(1, effect, done=done)])
    assert storage.capabilities.publication is publication

    try:
        storage.move("folder", "other")
    except Died:
        assert effect is Effect.DIE

    assert [path for path in tree(storage.inner) if path.startswith("other")] == [f"other/{name}" for name in moved]
    assert len(tree(storage.inner)) == 4


def test_reading_cannot_be_torn() -> None:
    """A plan that tears a read-only operation leaves it unchanged."""
    storage = FaultyStorage(folder_of_four(), [Fault(1, Effect.TEAR, done=0, times=3)])

    assert len(storage.list("folder")) == 4
    assert b"".join(storage.read("folder/a")) == b"."
    assert isinstance(storage.digest("folder/a"), Stored)


@pytest.mark.parametrize("wrong", [{"at": 0}, {"done": 1.5}, {"times": 0}, {"operation": "writes"}])
def test_an_impossible_plan_is_refused(wrong: dict[str, object]) -> None:
    """Numbers out of range and operations that a storage does not have raise ValueError."""
    with pytest.raises(ValueError, match="must be"):
        Fault(**{"at": 1, "effect": Effect.FAIL, **wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("operation", "act"),
    [
        ("write", lambda storage: storage.write("b", TEN)),
        ("write", lambda storage: (storage.write("b", TEN), storage.sync(["b"]))),
        ("move", lambda storage: storage.move("a", "c")),
        ("remove", lambda storage: storage.remove("a")),
    ],
)
def test_lost_operations_are_visible_until_a_power_cut(operation: str, act: Callable[[Storage], object]) -> None:
    """Lost writes, moves and removals are visible to all readers, and undone by the next crash."""
    inner = MemoryStorage()
    inner.write("a", TEN)
    inner.sync(["a"])
    before = tree(inner)
    act(FaultyStorage(inner, [Fault(1, Effect.LOSE, operation)], inner.losing))
    assert tree(inner) != before
    inner.crash(lambda _: 1.0)
    assert tree(inner) == before


def test_operations_after_a_loss_are_durable_where_possible() -> None:
    """A later write survives a crash; a file in a folder whose rename was lost exists beside the old name."""
    inner = MemoryStorage()
    storage = FaultyStorage(inner, [Fault(1, Effect.LOSE, "move")], inner.losing)
    storage.write("old/a", TEN)
    storage.sync(["old/a"])
    storage.move("old", "new")
    storage.write("new/b", TEN)
    storage.sync(["new/b"])
    inner.crash()
    assert sorted(tree(inner)) == ["new/b", "old/a"]


def test_a_lost_sync_loses_the_whole_batch() -> None:
    """A disk that acknowledges a sync from its cache loses every file of it, and keeps those of the next sync."""
    inner = MemoryStorage()
    storage = FaultyStorage(inner, [Fault(1, Effect.LOSE, "sync")], inner.losing)
    for name in "abc":
        storage.write(name, TEN)
    storage.sync(["a", "b"])
    storage.sync(["c"])
    inner.crash()
    assert sorted(tree(inner)) == ["c"]


def test_a_loss_needs_a_storage_that_supports_it() -> None:
    """A plan with a loss is refused if the wrapped storage has no support for losing acknowledged operations."""
    with pytest.raises(ValueError, match=r"losing=\.\.\., such as MemoryStorage\.losing"):
        FaultyStorage(MemoryStorage(), [Fault(1, Effect.LOSE)])
