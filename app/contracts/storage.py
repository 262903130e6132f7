"""What a storage does."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hexloop.domain.errors import StorageError
from hexloop.ports.storage import Entry, Publication, Storage

CHUNKS = (b"one", memoryview(b"two"), b"", bytes(100_000))
DATA = b"".join(CHUNKS)

# One storage, emptied by the test itself, serves all examples of it; and many classes inherit the test on purpose.
AS_INHERITED = [HealthCheck.function_scoped_fixture, HealthCheck.differing_executors]


def check_bytes(storage: Storage, path: str, expected: bytes, start: int = 0) -> None:
    """A file holds the bytes expected, from `start` on; where not, says how many are alike.

    Without pytest's own comparison, which draws all of a hundred thousand bytes where CI is set, and takes minutes.
    """
    found = b"".join(storage.read(path, start))
    if found != expected:
        alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(found, expected, strict=False)))
        pytest.fail(f"{path} from byte {start} on: {len(found)} bytes for {len(expected)}, the first {alike} right")


class StorageContract:
    """The suite of the Storage port."""

    @pytest.fixture
    def storage(self) -> Storage:
        """The adapter under test: a storage in which nothing is stored."""
        raise NotImplementedError

    def test_what_is_written_is_read(self, storage: Storage) -> None:
        """The chunks of a file, bytes or views, come back joined."""
        storage.write("folder/deeper/file", CHUNKS)

        check_bytes(storage, "folder/deeper/file", DATA)

    @pytest.mark.parametrize("start", [0, 1, 3, len(DATA) - 1, len(DATA), len(DATA) + 1])
    def test_a_file_is_read_from_any_byte_on(self, storage: Storage, start: int) -> None:
        """What comes before is left out; from its end on a file has no bytes."""
        storage.write("folder/file", CHUNKS)

        check_bytes(storage, "folder/file", DATA[start:], start)

    def test_an_empty_file_is_a_file(self, storage: Storage) -> None:
        """A file without chunks exists and has no bytes."""
        assert storage.write("empty", []).size == 0
        check_bytes(storage, "empty", b"")
        assert storage.list("") == (Entry("empty", False),)

    @given(chunks=st.lists(st.binary(max_size=50), max_size=5))
    @settings(max_examples=25, deadline=None, suppress_health_check=AS_INHERITED)
    def test_a_digest_tells_the_bytes_and_not_the_chunks(self, storage: Storage, chunks: list[bytes]) -> None:
        """Size and digest are those of the joined bytes, the same at writing and at reading through."""
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
        """A folder lists its own files and folders, sorted by name; a folder that is not there lists none."""
        for path in ("b/2", "b/1/x", "c", "a/1"):
            storage.write(path, [b"."])

        assert storage.list("") == (Entry("a", True), Entry("b", True), Entry("c", False))
        assert storage.list("b") == (Entry("1", True), Entry("2", False))
        assert storage.list("not there") == ()
        assert storage.list("b/not there") == ()
        assert storage.list("c") == ()

    def test_a_file_is_never_overwritten(self, storage: Storage) -> None:
        """A write to a path that is taken, by a file or a folder, raises StorageError and changes nothing."""
        storage.write("folder/file", CHUNKS)

        for path in ("folder/file", "folder", "folder/file/below"):
            with pytest.raises(StorageError):
                storage.write(path, [b"other"])

        check_bytes(storage, "folder/file", DATA)
        assert storage.list("folder") == (Entry("file", False),)

    def test_a_write_that_fails_leaves_no_file(self, storage: Storage) -> None:
        """Where the chunks break off, their own error comes through and the path is free."""

        def breaking_off() -> Iterator[bytes]:
            yield b"some"
            raise EOFError

        storage.write("folder/before", CHUNKS)
        with pytest.raises(EOFError):
            storage.write("folder/file", breaking_off())

        assert storage.list("folder") == (Entry("before", False),)
        storage.write("folder/file", [b"again"])
        check_bytes(storage, "folder/file", b"again")

    def test_what_is_not_there_cannot_be_read(self, storage: Storage) -> None:
        """Reading a file that is not there, or a folder, raises a StorageError that names it."""
        storage.write("folder/file", CHUNKS)

        for path in ("missing", "folder/missing", "folder"):
            with pytest.raises(StorageError, match=path):
                list(storage.read(path))
            with pytest.raises(StorageError, match=path):
                storage.digest(path)

    def test_a_folder_moves_with_all_that_is_in_it(self, storage: Storage) -> None:
        """After a move everything is under the new name, in folders made as needed, and nothing under the old."""
        storage.write("old/file", CHUNKS)
        storage.write("old/deeper/file", [b"deep"])

        storage.move("old", "new/place")

        assert storage.list("old") == ()
        check_bytes(storage, "new/place/file", DATA)
        check_bytes(storage, "new/place/deeper/file", b"deep")

    def test_a_file_moves(self, storage: Storage) -> None:
        """A file has its new name and not its old one, and its neighbours stay."""
        storage.write("folder/a", [b"a"])
        storage.write("folder/ab", [b"ab"])

        storage.move("folder/a", "folder/c")

        assert storage.list("folder") == (Entry("ab", False), Entry("c", False))
        check_bytes(storage, "folder/c", b"a")

    def test_a_move_never_overwrites(self, storage: Storage) -> None:
        """A move onto a name that is taken, or of something that is not there, raises StorageError and does nothing."""
        storage.write("a/file", [b"a"])
        storage.write("b/file", [b"b"])

        for source, destination in (("a", "b"), ("a/file", "b/file"), ("a/file", "b"), ("missing", "c")):
            with pytest.raises(StorageError):
                storage.move(source, destination)

        check_bytes(storage, "a/file", b"a")
        check_bytes(storage, "b/file", b"b")
        assert storage.list("") == (Entry("a", True), Entry("b", True))

    def test_what_is_removed_is_gone(self, storage: Storage) -> None:
        """A file, or a folder with all that is in it, is gone, and its neighbours stay; its path can be used again."""
        for path in ("a/1", "a/deeper/2", "ab/3", "c"):
            storage.write(path, [b"."])

        for path in ("a", "c", "not there", "ab/not there"):
            storage.remove(path)

        assert storage.list("") == (Entry("ab", True),)
        assert storage.write("a/1", [b"new"]).size == 3

    @pytest.mark.parametrize("path", ["../file", "folder/../../file", "/file", "folder//file", "."])
    def test_no_path_leads_out(self, storage: Storage, path: str) -> None:
        """A path that could mean a file outside of the storage raises StorageError."""
        with pytest.raises(StorageError):
            storage.write(path, [b"."])

    def test_the_capabilities_say_how_a_folder_appears_and_where(self, storage: Storage) -> None:
        """The capabilities name one kind of publication, and a location for messages."""
        assert storage.capabilities.publication in Publication
        assert storage.capabilities.location
