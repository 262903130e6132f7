from __future__ import annotations

import errno
import fcntl
import hashlib
import mmap
import os
import random
import stat
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from hexloop.adapters.storage.local import BLOCK, DIRECT_MINIMUM, LocalStorage
from hexloop.domain.errors import ConfigurationError, StorageError, StorageFullError
from hexloop.ports.storage import PAGE, Entry, Publication, Stored

SIZES = [
    0,
    5,
    PAGE,
    DIRECT_MINIMUM - 1,
    DIRECT_MINIMUM,
    DIRECT_MINIMUM + 1,
    DIRECT_MINIMUM + PAGE - 1,
    2 * DIRECT_MINIMUM,
]
"""Of chunks: around what is worth a write of its own."""

DATA = bytes(range(256)) * 40_000
"""Ten megabytes: more than one chunk."""


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    """A storage whose folder is not there yet."""
    return LocalStorage(tmp_path / "some" / "root")


def pages_of_noise() -> mmap.mmap:
    """A few megabytes that begin with a page of memory."""
    memory = mmap.mmap(-1, 3 * DIRECT_MINIMUM)
    memory.write(random.Random(0).randbytes(len(memory)))
    return memory


def root_of(storage: LocalStorage) -> Path:
    return Path(storage.capabilities.local_folder or "")


def test_it_says_where_it_is_and_how_it_publishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The root is a folder, the same wherever the process goes later, and what is in it appears by a rename."""
    monkeypatch.chdir(tmp_path)
    capabilities = LocalStorage("results").capabilities
    assert capabilities.publication is Publication.RENAME
    assert capabilities.location == capabilities.local_folder == str(tmp_path / "results")


def test_reading_creates_nothing(storage: LocalStorage) -> None:
    """Only a write creates the root."""
    assert storage.list("") == ()
    storage.remove("checkpoint-1")
    assert not root_of(storage).exists()


def test_the_digest_is_of_the_usual_kind(storage: LocalStorage) -> None:
    """Size and digest are those of the bytes, as the usual tools compute them, on the way in and on the way out."""
    expected = Stored(len(DATA), f"xxh3-128:{xxhash.xxh3_128_hexdigest(DATA)}")
    view = memoryview(DATA)
    assert storage.write("a/b.bin", [view[:5], b"", view[5:]]) == expected
    assert storage.digest("a/b.bin") == expected
    strong = LocalStorage(root_of(storage), digest="blake2b")
    assert strong.digest("a/b.bin") == Stored(len(DATA), f"blake2b:{hashlib.blake2b(DATA).hexdigest()}")
    assert strong.write("c.bin", [DATA]) == strong.digest("a/b.bin")


def test_an_unknown_digest_is_refused() -> None:
    """The error names those that there are."""
    with pytest.raises(ConfigurationError, match=r"'md5'.*xxh3-128, blake2b"):
        LocalStorage("anywhere", digest="md5")


def test_a_view_of_numbers_is_written_as_its_bytes(storage: LocalStorage) -> None:
    """Chunks may be views of larger items; what counts is their bytes."""
    storage.write("numbers.bin", [memoryview(DATA).cast("I"), memoryview(DATA).cast("q", (2, len(DATA) // 16))])
    assert root_of(storage).joinpath("numbers.bin").read_bytes() == DATA + DATA


def test_reading_gives_large_chunks_that_stay(storage: LocalStorage) -> None:
    """A file comes in chunks of at least a MiB, but for the last, and reading on does not change those read."""
    storage.write("a.bin", [DATA])
    chunks = list(storage.read("a.bin"))
    assert all(len(chunk) >= 1 << 20 for chunk in chunks[:-1])
    assert b"".join(chunks) == DATA


class Synced:
    """Which files and folders were forced to the disk, and what was renamed, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[str, str]] = []
        fsync, rename = os.fsync, os.rename

        def seen_fsync(descriptor: int) -> None:
            self.seen.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}")))
            fsync(descriptor)

        def seen_rename(source: str, destination: str) -> None:
            self.seen.append(("rename", destination))
            rename(source, destination)

        monkeypatch.setattr(os, "fsync", seen_fsync)
        monkeypatch.setattr(os, "rename", seen_rename)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux tells the path of a descriptor")
def test_what_returns_is_on_the_disk(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write forces the file, then each folder up to the one that was there before; a move, both sides' folders."""
    root, synced = root_of(storage), Synced(monkeypatch)
    storage.write("a/b/c.bin", [b"x"])
    folders = [root / "a" / "b", root / "a", root, root.parent, root.parent.parent]
    assert synced.seen == [("sync", str(path)) for path in (root / "a" / "b" / "c.bin", *folders)]
    synced.seen.clear()
    storage.move("a/b", "d/e")
    moved = [("rename", str(root / "d" / "e")), ("sync", str(root / "d")), ("sync", str(root))]
    assert synced.seen == [*moved, ("sync", str(root / "a")), ("sync", str(root))]
    synced.seen.clear()
    storage.remove("d/e")
    assert synced.seen == [("sync", str(root / "d")), ("sync", str(root))]


@pytest.mark.parametrize("path", ["", "/etc/passwd", "..", "a/../../b", "a/..", "a//b", ".", "a\0b"])
def test_a_path_out_of_the_root_is_refused(storage: LocalStorage, tmp_path: Path, path: str) -> None:
    """No operation touches anything outside of the root, or the root itself."""
    storage.write("a/kept.txt", [b"kept"])
    before = sorted(tmp_path.rglob("*"))
    attempts = (
        lambda: storage.write(path, [b"x"]),
        lambda: list(storage.read(path)),
        lambda: storage.digest(path),
        lambda: storage.move(path, "b"),
        lambda: storage.move("a", path),
        lambda: storage.remove(path),
        lambda: storage.list(path or ".."),
    )
    for attempt in attempts:
        with pytest.raises(StorageError, match="leads out of"):
            attempt()
    assert sorted(tmp_path.rglob("*")) == before


def test_a_link_out_of_the_root_is_not_followed(storage: LocalStorage, tmp_path: Path) -> None:
    """What a symbolic link points to outside of the root is neither read nor changed; a link within it is followed."""
    outside = tmp_path / "outside"
    outside.mkdir()
    outside.joinpath("secret.txt").write_text("secret")
    storage.write("in/a.txt", [b"a"])
    root_of(storage).joinpath("link").symlink_to(outside)
    root_of(storage).joinpath("inner").symlink_to(root_of(storage) / "in")
    for attempt in (
        lambda: list(storage.read("link/secret.txt")),
        lambda: storage.write("link/new.txt", [b"x"]),
        lambda: storage.list("link"),
        lambda: storage.remove("link/secret.txt"),
    ):
        with pytest.raises(StorageError, match="leads out of"):
            attempt()
    assert [path.name for path in outside.iterdir()] == ["secret.txt"]
    assert b"".join(storage.read("inner/a.txt")) == b"a"


def test_a_root_that_is_a_link_is_fine(tmp_path: Path) -> None:
    """The root itself may be reached by a link, such as to a larger disk."""
    tmp_path.joinpath("large").mkdir()
    tmp_path.joinpath("root").symlink_to(tmp_path / "large")
    LocalStorage(tmp_path / "root").write("a.txt", [b"a"])
    assert tmp_path.joinpath("large", "a.txt").read_bytes() == b"a"


@pytest.mark.parametrize("data", [DATA, b"less than a block"], ids=["blocks", "less"])
def test_a_full_disk_is_told_as_such(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """Where the system has no room left, the error says so, what was there stays, and nothing half-written is left."""
    storage.write("kept.txt", [b"kept"])
    true_open = os.open

    def open_full(path: str, flags: int, mode: int = 0o777) -> int:
        descriptor = true_open(path, flags, mode)
        if not flags & os.O_CREAT:
            return descriptor
        os.close(descriptor)
        return true_open("/dev/full", os.O_WRONLY)

    monkeypatch.setattr(os, "open", open_full)
    with pytest.raises(StorageFullError, match="no space left"):
        storage.write("a/b.bin", [data])
    monkeypatch.undo()
    assert storage.list("a") == ()
    assert b"".join(storage.read("kept.txt")) == b"kept"


def test_a_write_that_breaks_off_leaves_nothing(storage: LocalStorage) -> None:
    """Where the chunks themselves raise, that error comes out, and the name is free again."""

    def chunks() -> Iterator[bytes]:
        yield DATA
        raise OSError("the source is gone")

    with pytest.raises(OSError, match="the source is gone") as raised:
        storage.write("a.bin", chunks())
    assert not isinstance(raised.value, StorageError)
    assert storage.list("") == ()


def test_nothing_is_ever_overwritten(storage: LocalStorage) -> None:
    """Neither a write nor a move replaces a file, a folder, not even an empty one, or a dangling link."""
    storage.write("file", [b"old"])
    storage.write("folder/file", [b"old"])
    root_of(storage).joinpath("empty").mkdir()
    root_of(storage).joinpath("dangling").symlink_to(root_of(storage) / "nowhere")
    for name in ("file", "folder", "empty", "dangling"):
        with pytest.raises(StorageError):
            storage.write(name, [b"new"])
        with pytest.raises(StorageError, match=r"exists already\. Remove it"):
            storage.move("folder/file", name)
    assert b"".join(storage.read("folder/file")) == b"old"
    assert not root_of(storage).joinpath("nowhere").exists()


def test_a_folder_goes_with_everything_in_it_but_what_links_point_to(storage: LocalStorage, tmp_path: Path) -> None:
    """Removing a folder removes links in it, and leaves alone what they point to."""
    tmp_path.joinpath("outside").mkdir()
    tmp_path.joinpath("outside", "file").write_text("kept")
    storage.write("folder/a/b.bin", [b"x"])
    root_of(storage).joinpath("folder", "link").symlink_to(tmp_path / "outside")
    storage.remove("folder")
    assert storage.list("") == ()
    assert tmp_path.joinpath("outside", "file").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_what_is_not_allowed_is_told(storage: LocalStorage) -> None:
    """Where rights are lacking, the message says which path, why, and what to do."""
    storage.write("folder/a", [b"x"])
    root_of(storage).joinpath("folder").chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(StorageError, match=r"write folder/b.*Permission denied. Grant this user access"):
        storage.write("folder/b", [b"x"])


def test_a_root_that_is_a_file_is_told(tmp_path: Path) -> None:
    """Where a file stands in the place of the root, writing says so, and listing finds nothing."""
    tmp_path.joinpath("root").write_text("a file")
    storage = LocalStorage(tmp_path / "root")
    with pytest.raises(StorageError, match=r"Cannot write a\.txt in .*root: "):
        storage.write("a.txt", [b"x"])
    assert storage.list("") == ()


def test_a_listing_tells_folders_from_files(storage: LocalStorage) -> None:
    """Names come sorted, each with whether it is a folder."""
    for path in ("b/x", "a", "c/y/z"):
        storage.write(path, [b"1"])
    assert storage.list("") == (Entry("a", False), Entry("b", True), Entry("c", True))
    assert storage.list("c") == (Entry("y", True),)
    assert storage.list("a") == ()


@pytest.mark.parametrize("size", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 4097])
@pytest.mark.parametrize("chunk", [BLOCK, 3_000_001])
def test_large_files_hold_what_was_written(tmp_path: Path, size: int, chunk: int) -> None:
    """Whole blocks go past the cache and the end through it; together they are the bytes that came, however cut."""
    data = random.Random(size).randbytes(size)
    storage = LocalStorage(tmp_path)
    stored = storage.write("file", [data[start : start + chunk] for start in range(0, size, chunk)])
    assert (tmp_path / "file").read_bytes() == data
    assert stored == storage.digest("file")
    assert stored.size == size


@given(
    cuts=st.lists(st.tuples(st.sampled_from([0, 1, 512, PAGE]), st.sampled_from(SIZES)), max_size=5),
    readable_only=st.booleans(),
)
def test_bytes_are_written_from_wherever_they_lie(cuts: list[tuple[int, int]], readable_only: bool) -> None:
    """Whether chunks begin and end with pages of memory and of the file or not, the file is what they hold."""
    memory = memoryview(pages_of_noise())
    chunks = [memory[start : start + size] for start, size in cuts]
    if readable_only:
        chunks = [chunk.toreadonly() for chunk in chunks]
    with TemporaryDirectory() as folder:
        LocalStorage(folder).write("file", chunks)
        assert Path(folder, "file").read_bytes() == b"".join(chunks)


def test_whole_pages_are_written_from_where_they_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large chunk that begins with a page of memory, where the file has come to one, is not copied first."""
    memory, write, in_place = pages_of_noise(), os.write, []

    def watching(descriptor: int, data: memoryview) -> int:
        if data.obj is memory:
            in_place.append(len(data))
        return write(descriptor, data)

    whole = memoryview(memory)
    chunks: list[bytes | memoryview] = [
        bytes(PAGE),
        whole[: DIRECT_MINIMUM + 5],
        whole[PAGE : PAGE + DIRECT_MINIMUM],
        bytes(PAGE - 5),
        whole[: 2 * PAGE + DIRECT_MINIMUM],
    ]
    monkeypatch.setattr(os, "write", watching)
    LocalStorage(tmp_path).write("file", chunks)
    monkeypatch.undo()
    assert in_place == [DIRECT_MINIMUM, DIRECT_MINIMUM + 2 * PAGE]
    assert (tmp_path / "file").read_bytes() == b"".join(chunks)


@pytest.mark.parametrize("refusal", [errno.EINVAL, errno.EFAULT])
@pytest.mark.parametrize("refused_at", [1, 2])
def test_a_file_system_that_wants_its_cache_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused_at: int, refusal: int
) -> None:
    """Where a write past the cache is refused, be it after one that was taken, it goes on through the cache."""
    write, refused = os.write, []

    def refusing(descriptor: int, data: memoryview) -> int:
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        if flags & os.O_DIRECT:
            refused.append(len(data))
            if len(refused) == refused_at:
                raise OSError(refusal, os.strerror(refusal))
            return write(descriptor, data[: BLOCK // 2])
        return write(descriptor, data)

    data = random.Random(0).randbytes(3 * BLOCK + 5)
    monkeypatch.setattr(os, "write", refusing)
    LocalStorage(tmp_path).write("file", [data])
    monkeypatch.undo()
    assert (tmp_path / "file").read_bytes() == data
    assert len(refused) in (0, refused_at)  # 0 where the file system of this machine cannot even be asked
