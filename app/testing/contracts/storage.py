"""Contract suites of the Storage and Hub ports."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hexloop.app.testing.contracts.overriding import not_overridden
from hexloop.domain.errors import StorageError, UnavailableError
from hexloop.ports.hub import Hub
from hexloop.ports.storage import Entry, File, Publication, Storage

CHUNKS = (b"one", memoryview(b"two"), b"", bytes(100_000))
DATA = b"".join(CHUNKS)

# All examples of a test share one storage, which the test empties itself, and many classes inherit the test.
AS_INHERITED = [HealthCheck.function_scoped_fixture, HealthCheck.differing_executors]


def check_bytes(storage: Storage, path: str, expected: bytes, start: int = 0) -> None:
    """Check that a file has the expected bytes from `start` on; if not, report how many are equal.

    pytest's own comparison is not used: if CI is set, it formats all of the hundred thousand bytes, for minutes.

    Args:
        storage: the adapter under test.
        path: a path in it.
        expected: the bytes that it should hold.
        start: the first byte to compare.
    """
    found = b"".join(storage.read(path, start))
    if found != expected:
        equal = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(found, expected, strict=False)))
        pytest.fail(f"{path} from byte {start} on: {len(found)} bytes for {len(expected)}, the first {equal} right")


class StorageContract:
    """Contract suite of the Storage port."""

    @pytest.fixture
    def storage(self) -> Storage:
        """The adapter under test: an empty storage."""
        raise not_overridden(self)

    def test_what_is_written_is_read(self, storage: Storage) -> None:
        """Reading a file returns its chunks, bytes or memoryviews, joined."""
        storage.write("folder/deeper/file", CHUNKS)

        check_bytes(storage, "folder/deeper/file", DATA)

    @pytest.mark.parametrize("start", [0, 1, 3, len(DATA) - 1, len(DATA), len(DATA) + 1])
    def test_a_file_can_be_read_from_any_byte(self, storage: Storage, start: int) -> None:
        """Reading skips the bytes before `start`; from the end of the file on, there are none."""
        storage.write("folder/file", CHUNKS)

        check_bytes(storage, "folder/file", DATA[start:], start)

    def test_an_empty_file_exists(self, storage: Storage) -> None:
        """A file without chunks exists and is empty."""
        assert storage.write("empty", []).size == 0
        check_bytes(storage, "empty", b"")
        assert storage.list("") == (Entry("empty", False),)

    @given(chunks=st.lists(st.binary(max_size=50), max_size=5))
    @settings(max_examples=25, deadline=None, suppress_health_check=AS_INHERITED)
    def test_a_digest_depends_on_the_bytes_only(self, storage: Storage, chunks: list[bytes]) -> None:
        """Size and digest depend only on the joined bytes, and are the same when writing and when reading."""
        storage.remove("folder")
        joined = storage.write("folder/joined", [b"".join(chunks)])
        stored = storage.write("folder/chunks", chunks)
        other = storage.write("folder/other", [*chunks, b"x"])

        assert stored == joined == storage.digest("folder/chunks")
        assert stored.size == len(b"".join(chunks))
        assert other.digest != stored.digest
        algorithm, _, digest = stored.digest.partition(":")
        assert algorithm
        assert bytes.fromhex(digest)

    def test_names_are_listed_in_order(self, storage: Storage) -> None:
        """A folder lists its direct files and folders, sorted by name; a missing folder lists none."""
        for path in ("b/2", "b/1/x", "c", "a/1"):
            storage.write(path, [b"."])

        assert storage.list("") == (Entry("a", True), Entry("b", True), Entry("c", False))
        assert storage.list("b") == (Entry("1", True), Entry("2", False))
        assert storage.list("not there") == ()
        assert storage.list("b/not there") == ()
        assert storage.list("c") == ()

    def test_a_file_is_never_overwritten(self, storage: Storage) -> None:
        """Writing to the path of an existing file or folder raises StorageError and changes nothing."""
        storage.write("folder/file", CHUNKS)

        for path in ("folder/file", "folder", "folder/file/below"):
            with pytest.raises(StorageError):
                storage.write(path, [b"other"])

        check_bytes(storage, "folder/file", DATA)
        assert storage.list("folder") == (Entry("file", False),)

    def test_a_write_that_fails_leaves_no_file(self, storage: Storage) -> None:
        """If the chunks raise an error, it propagates, and no file exists at the path."""

        def breaking_off() -> Iterator[bytes]:
            yield b"some"
            raise EOFError

        storage.write("folder/before", CHUNKS)
        with pytest.raises(EOFError):
            storage.write("folder/file", breaking_off())

        assert storage.list("folder") == (Entry("before", False),)
        storage.write("folder/file", [b"again"])
        check_bytes(storage, "folder/file", b"again")

    def test_a_batch_of_files_is_synced(self, storage: Storage) -> None:
        """Syncing changes nothing that a reader sees; files may be synced again, and an empty batch is allowed.

        That they survive a crash cannot be tested from within the process.
        """
        paths = [f"folder/{number}/file" for number in range(12)]
        for path in paths:
            storage.write(path, CHUNKS)

        storage.sync(paths)
        storage.sync(paths[:1])
        storage.sync([])

        for path in paths:
            check_bytes(storage, path, DATA)
        storage.move("folder", "moved")
        storage.sync(["moved/3/file"])
        check_bytes(storage, "moved/3/file", DATA)

    def test_a_missing_file_cannot_be_read(self, storage: Storage) -> None:
        """Reading a missing file, or a folder, raises a StorageError with its path."""
        storage.write("folder/file", CHUNKS)

        for path in ("missing", "folder/missing", "folder"):
            with pytest.raises(StorageError, match=path):
                list(storage.read(path))
            with pytest.raises(StorageError, match=path):
                storage.digest(path)

    def test_a_folder_moves_with_its_contents(self, storage: Storage) -> None:
        """A move puts all contents under the new name, creating parent folders, and leaves nothing under the old."""
        storage.write("old/file", CHUNKS)
        storage.write("old/deeper/file", [b"deep"])

        storage.move("old", "new/place")

        assert storage.list("old") == ()
        check_bytes(storage, "new/place/file", DATA)
        check_bytes(storage, "new/place/deeper/file", b"deep")

    def test_a_file_moves(self, storage: Storage) -> None:
        """A moved file has its new name only, and its neighbours are unaffected."""
        storage.write("folder/a", [b"a"])
        storage.write("folder/ab", [b"ab"])

        storage.move("folder/a", "folder/c")

        assert storage.list("folder") == (Entry("ab", False), Entry("c", False))
        check_bytes(storage, "folder/c", b"a")

    def test_a_move_never_overwrites(self, storage: Storage) -> None:
        """Moving onto an existing path, or moving a missing one, raises StorageError and changes nothing."""
        storage.write("a/file", [b"a"])
        storage.write("b/file", [b"b"])

        for source, destination in (("a", "b"), ("a/file", "b/file"), ("a/file", "b"), ("missing", "c")):
            with pytest.raises(StorageError):
                storage.move(source, destination)

        check_bytes(storage, "a/file", b"a")
        check_bytes(storage, "b/file", b"b")
        assert storage.list("") == (Entry("a", True), Entry("b", True))

    def test_a_removal_is_complete(self, storage: Storage) -> None:
        """Removing deletes a file, or a folder with its contents, and nothing else; the path can be used again."""
        for path in ("a/1", "a/deeper/2", "ab/3", "c"):
            storage.write(path, [b"."])

        for path in ("a", "c", "not there", "ab/not there"):
            storage.remove(path)

        assert storage.list("") == (Entry("ab", True),)
        assert storage.write("a/1", [b"new"]).size == 3

    @pytest.mark.parametrize("path", ["../file", "folder/../../file", "/file", "folder//file", "."])
    def test_no_path_leaves_the_storage(self, storage: Storage, path: str) -> None:
        """A path that could lead outside the storage raises StorageError."""
        with pytest.raises(StorageError):
            storage.write(path, [b"."])

    def test_capabilities_are_described(self, storage: Storage) -> None:
        """The capabilities state how folders are published, and a location for messages."""
        assert storage.capabilities.publication in Publication
        assert storage.capabilities.location

    def test_the_time_of_a_write_is_reported_or_unknown(self, storage: Storage) -> None:
        """The capability `modified` returns seconds since the epoch or None; None for a file that does not exist."""
        storage.write("folder/file", CHUNKS)
        written = storage.capabilities.modified("folder/file")

        assert written is None or written > 1e9
        assert storage.capabilities.modified("folder/missing") is None


def content(files: Iterator[File]) -> dict[str, bytes]:
    """Return the bytes of each file by path.

    Args:
        files: the files, whose bytes can be read once.
    """
    return {file.path: b"".join(file.chunks) for file in files}


class HubContract:
    """Contract suite of the Hub port."""

    @pytest.fixture
    def hub(self) -> Hub:
        """The adapter under test: a hub without "someone/model" and "someone/other"."""
        raise not_overridden(self)

    def test_published_files_can_be_fetched(self, hub: Hub) -> None:
        """The fetched files have the published paths and bytes, however they were chunked."""
        hub.publish(
            "someone/model",
            [File("config.json", [b"{", memoryview(b"}")]), File("folder/weights", [bytes(1000)]), File("empty", [])],
            "first",
        )

        fetched = content(hub.fetch("someone/model"))
        assert fetched == {"config.json": b"{}", "folder/weights": bytes(1000), "empty": b""}

    def test_the_newest_version_is_fetched_unless_another_is_named(self, hub: Hub) -> None:
        """Versions have distinct names and never change; the last one published is the newest."""
        names = [hub.publish("someone/model", [File("file", [bytes([n])])], f"number {n}") for n in range(12)]

        assert len(set(names)) == 12
        assert content(hub.fetch("someone/model")) == {"file": b"\x0b"}
        for number, name in enumerate(names):
            assert content(hub.fetch("someone/model", name)) == {"file": bytes([number])}

    def test_a_version_changes_only_what_it_names(self, hub: Hub) -> None:
        """Other files stay; deleted ones are gone; in a deleted folder only what is published with it is left."""
        first = {"a": b"1", "b": b"2", "folder/one": b"3", "folder/two": b"4", "folder-two/one": b"5"}
        old = hub.publish("someone/model", [File(path, [data]) for path, data in first.items()], "first")
        hub.publish("someone/model", [File("folder/two", [b"6"])], "second", delete=["a", "folder/", "missing"])

        assert content(hub.fetch("someone/model")) == {"b": b"2", "folder/two": b"6", "folder-two/one": b"5"}
        assert content(hub.fetch("someone/model", old)) == first

    def test_a_branch_starts_from_the_main_one(self, hub: Hub) -> None:
        """It has the files of the main branch, and changes to it do not change that one."""
        hub.publish("someone/model", [File("a", [b"1"])], "one")
        hub.publish("someone/model", [File("b", [b"2"])], "two", branch="next")
        hub.publish("someone/model", [File("b", [b"3"])], "three", branch="next")

        assert content(hub.fetch("someone/model")) == {"a": b"1"}
        assert content(hub.fetch("someone/model", "next")) == {"a": b"1", "b": b"3"}

    def test_a_change_for_review_is_not_made(self, hub: Hub) -> None:
        """The newest version stays; the proposed one can be fetched by its name."""
        hub.publish("someone/model", [File("a", [b"1"])], "one")
        proposed = hub.publish("someone/model", [File("a", [b"2"])], "two", review=True)

        assert content(hub.fetch("someone/model")) == {"a": b"1"}
        assert content(hub.fetch("someone/model", proposed)) == {"a": b"2"}

    def test_a_version_that_is_no_longer_the_newest_is_not_built_on(self, hub: Hub) -> None:
        """Publishing on top of an older version raises UnavailableError, and changes nothing."""
        old = hub.publish("someone/model", [File("a", [b"1"])], "one")
        newest = hub.publish("someone/model", [File("a", [b"2"])], "two", parent=old)
        with pytest.raises(UnavailableError, match="someone/model"):
            hub.publish("someone/model", [File("a", [b"3"])], "three", parent=old)

        assert content(hub.fetch("someone/model")) == content(hub.fetch("someone/model", newest)) == {"a": b"2"}

    def test_the_address_is_a_text(self, hub: Hub) -> None:
        """It is stated in messages and in the outbox."""
        assert isinstance(hub.address, str)
        assert hub.address != ""

    def test_a_repository_is_created_once(self, hub: Hub) -> None:
        """Creating it again changes nothing, and the full name is returned."""
        assert hub.create("someone/model", private=True) == "someone/model"
        hub.publish("someone/model", [File("a", [b"1"])], "one")
        assert hub.create("someone/model") == "someone/model"

        assert content(hub.fetch("someone/model")) == {"a": b"1"}

    def test_a_file_of_this_machine_can_be_published(self, hub: Hub, tmp_path: Path) -> None:
        """A file that states where it lies is published like any other."""
        path = tmp_path / "weights"
        path.write_bytes(b"12")
        hub.publish("someone/model", [File("weights", iter([b"1", b"2"]), str(path))], "one")

        assert content(hub.fetch("someone/model")) == {"weights": b"12"}

    def test_models_are_independent(self, hub: Hub) -> None:
        """Publishing one model does not change another."""
        hub.publish("someone/model", [File("a", [b"1"])], "one")
        hub.publish("someone/other", [File("b", [b"2"])], "two")

        assert content(hub.fetch("someone/model")) == {"a": b"1"}
        assert content(hub.fetch("someone/other")) == {"b": b"2"}

    def test_an_unknown_version_is_refused(self, hub: Hub) -> None:
        """An unknown name or version raises a StorageError with that name."""
        with pytest.raises(StorageError, match="someone/model"):
            hub.fetch("someone/model")
        hub.publish("someone/model", [File("a", [b"1"])], "one")
        with pytest.raises(StorageError, match="no such version"):
            hub.fetch("someone/model", "no such version")

    def test_a_failure_publishes_nothing(self, hub: Hub) -> None:
        """If a file cannot be read to its end, the newest version is unchanged."""

        def breaking_off() -> Iterator[bytes]:
            yield b"some"
            raise EOFError

        hub.publish("someone/model", [File("a", [b"1"])], "one")
        with pytest.raises(EOFError):
            hub.publish("someone/model", [File("a", [b"2"]), File("b", breaking_off())], "two")

        assert content(hub.fetch("someone/model")) == {"a": b"1"}
