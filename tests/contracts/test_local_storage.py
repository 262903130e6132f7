"""The local storage beyond its contract: durability, links, errors and direct writes."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import mmap
import os
import random
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from hexloop.adapters.storage.local import LocalStorage, syncing
from hexloop.adapters.storage.local.direct import BLOCK, DIRECT_MINIMUM
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
"""Chunk sizes around the minimum that is written directly."""

DATA = bytes(range(256)) * 40_000
"""Ten megabytes: more than one chunk."""


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    """Return a storage whose folder does not exist yet."""
    return LocalStorage(tmp_path / "some" / "root")


def pages_of_noise() -> mmap.mmap:
    """Return a few megabytes that start at a page of memory."""
    memory = mmap.mmap(-1, 3 * DIRECT_MINIMUM)
    memory.write(random.Random(0).randbytes(len(memory)))
    return memory


def root_of(storage: LocalStorage) -> Path:
    return Path(storage.capabilities.local_folder or "")


def test_it_has_an_absolute_root_and_renames_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The root stays the same when the working directory changes, and folders are published by an atomic rename."""
    monkeypatch.chdir(tmp_path)
    capabilities = LocalStorage("results").capabilities
    assert capabilities.publication is Publication.RENAME
    assert capabilities.location == capabilities.local_folder == str(tmp_path / "results")


def test_reading_does_not_create_the_root(storage: LocalStorage) -> None:
    """Only a write creates the root."""
    assert storage.list("") == ()
    storage.remove("checkpoint-1")
    assert not root_of(storage).exists()


def test_digests_are_standard(storage: LocalStorage) -> None:
    """Size and digest are those that standard tools compute, when writing and when reading."""
    expected = Stored(len(DATA), f"xxh3-128:{xxhash.xxh3_128_hexdigest(DATA)}")
    view = memoryview(DATA)
    assert storage.write("a/b.bin", [view[:5], b"", view[5:]]) == expected
    assert storage.digest("a/b.bin") == expected
    strong = LocalStorage(root_of(storage), digest="blake2b")
    assert strong.digest("a/b.bin") == Stored(len(DATA), f"blake2b:{hashlib.blake2b(DATA).hexdigest()}")
    assert strong.write("c.bin", [DATA]) == strong.digest("a/b.bin")


def test_an_unknown_digest_is_refused() -> None:
    """The error lists the available digests."""
    with pytest.raises(ConfigurationError, match=r"'md5'.*xxh3-128, blake2b"):
        LocalStorage("anywhere", digest="md5")


def test_a_memoryview_of_numbers_is_written_as_bytes(storage: LocalStorage) -> None:
    """Chunks may be views of larger items; their bytes are written."""
    storage.write("numbers.bin", [memoryview(DATA).cast("I"), memoryview(DATA).cast("q", (2, len(DATA) // 16))])
    assert root_of(storage).joinpath("numbers.bin").read_bytes() == DATA + DATA


def test_reading_yields_large_independent_chunks(storage: LocalStorage) -> None:
    """Chunks have at least a MiB, except the last, and stay unchanged while reading continues."""
    storage.write("a.bin", [DATA])
    chunks = list(storage.read("a.bin"))
    assert all(len(chunk) >= 1 << 20 for chunk in chunks[:-1])
    assert b"".join(chunks) == DATA


class Synced:
    """Records which files and folders were synced to the disk, and what was renamed, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[str, str]] = []
        monkeypatch.setattr(syncing, "MOST_UNWRITTEN", -1)
        fsync, rename = os.fsync, os.rename

        def seen_fsync(descriptor: int) -> None:
            self.seen.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}")))
            fsync(descriptor)

        def seen_rename(source: str, destination: str) -> None:
            self.seen.append(("rename", destination))
            rename(source, destination)

        monkeypatch.setattr(os, "fsync", seen_fsync)
        monkeypatch.setattr(os, "rename", seen_rename)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux shows the path of a descriptor")
def test_completed_operations_are_synced_to_disk(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync covers the files and all folders above them, a move the folders of both sides, a removal nothing."""
    root, synced = root_of(storage), Synced(monkeypatch)
    storage.write("a/b/c.bin", [b"x"])
    storage.write("a/d.bin", [b"x"])
    assert synced.seen == []
    storage.sync(["a/b/c.bin", "a/d.bin"])
    new = [root / "a" / "b" / "c.bin", root / "a" / "d.bin", root / "a" / "b", root / "a", root, root.parent]
    assert sorted(synced.seen) == sorted(("sync", str(path)) for path in (*new, root.parent.parent))
    synced.seen.clear()
    storage.write("a/e.bin", [b"x"])
    storage.sync(["a/e.bin"])
    assert sorted(synced.seen) == sorted(("sync", str(path)) for path in (root / "a" / "e.bin", root / "a", root))
    synced.seen.clear()
    storage.move("a/b", "d/e")
    assert synced.seen[0] == ("rename", str(root / "d" / "e"))
    assert sorted(synced.seen[1:]) == sorted(("sync", str(path)) for path in (root / "a", root / "d", root))
    synced.seen.clear()
    storage.remove("d/e")
    assert synced.seen == []


def test_a_batch_is_synced_by_several_threads(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are synced at the same time, each once, and all threads have ended when it returns."""
    monkeypatch.setattr(syncing, "MOST_UNWRITTEN", -1)
    fsync, running, most = os.fsync, set[int](), 0
    together = threading.Barrier(2)

    def seen_fsync(descriptor: int) -> None:
        nonlocal most
        running.add(threading.get_ident())
        most = max(most, len(running))
        with suppress(threading.BrokenBarrierError):
            together.wait(1)
        fsync(descriptor)
        running.discard(threading.get_ident())

    before = threading.active_count()
    paths = [f"folder/{number}" for number in range(30)]
    for path in paths:
        storage.write(path, [b"x"])
    monkeypatch.setattr(os, "fsync", seen_fsync)
    storage.sync(paths)
    assert most > 1
    assert threading.active_count() == before


@pytest.mark.parametrize(("number", "kind"), [(errno.EIO, StorageError), (errno.ENOSPC, StorageFullError)])
def test_a_disk_that_cannot_sync_is_reported(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[StorageError]
) -> None:
    """The error of a thread is raised, with the paths."""
    paths = [f"folder/{each}" for each in range(9)]
    for path in paths:
        storage.write(path, [b"x"])

    def failing(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(kind, match=r"Cannot sync folder/0, folder/1"):
        storage.sync(paths)


def test_a_file_system_that_cannot_sync_folders_syncs_files(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders are skipped; a file that cannot be synced is an error."""
    monkeypatch.setattr(syncing, "MOST_UNWRITTEN", -1)
    fsync = os.fsync

    def without_folders(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        fsync(descriptor)

    def nothing(descriptor: int) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    storage.write("a", [b"x"])
    monkeypatch.setattr(os, "fsync", without_folders)
    storage.sync(["a"])
    monkeypatch.setattr(os, "fsync", nothing)
    with pytest.raises(StorageError, match="Cannot sync a in"):
        storage.sync(["a"])


class SyncedTogether:
    """Stands in for the function that syncs a file system, and counts its calls and those of fsync."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, result: bool | int = True) -> None:
        self.systems, self.files, self.result = list[str](), 0, result
        fsync = os.fsync

        def seen_fsync(descriptor: int) -> None:
            self.files += 1
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", seen_fsync)
        monkeypatch.setattr(syncing, "_syncfs", lambda: self)

    def __call__(self, path: str) -> bool:
        self.systems.append(path)
        if isinstance(self.result, bool):
            return self.result
        raise OSError(self.result, os.strerror(self.result), path)


def test_a_batch_is_synced_in_two_waits(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of waits does not depend on the number of files, while little else is unwritten."""
    monkeypatch.setattr(syncing, "MOST_UNWRITTEN", float("inf"))
    for count in (1, 30):
        paths = [f"{count}/{number}" for number in range(count)]
        for path in paths:
            storage.write(path, [b"x"])
        with monkeypatch.context() as patch:
            synced = SyncedTogether(patch)
            storage.sync(paths)
            assert (len(synced.systems), synced.files) == (1, 1), "the file system, and what describes the files"


@pytest.mark.parametrize("unwritten", [syncing.MOST_UNWRITTEN + 1, float("inf")])
def test_other_programs_are_not_waited_for(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, unwritten: float
) -> None:
    """If the system holds much that is unwritten, or it is unknown how much, each file is synced by itself."""
    storage.write("a", [b"x"])
    storage.write("b", [b"x"])
    monkeypatch.setattr(syncing, "_unwritten", lambda: unwritten)
    synced = SyncedTogether(monkeypatch)
    storage.sync(["a", "b"])
    assert synced.systems == []
    assert synced.files >= 3


def test_a_file_system_that_cannot_be_synced_at_once(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file is synced by itself; an error of the disk is raised."""
    monkeypatch.setattr(syncing, "MOST_UNWRITTEN", float("inf"))
    storage.write("a", [b"x"])
    storage.write("b", [b"x"])
    synced = SyncedTogether(monkeypatch, result=False)
    storage.sync(["a", "b"])
    assert synced.files >= 3
    SyncedTogether(monkeypatch, result=errno.EIO)
    with pytest.raises(StorageError, match="Cannot sync a, b in"):
        storage.sync(["a", "b"])


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")
def test_what_is_unwritten_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Linux states it; infinity for a file without it, or without the file."""
    assert 0 <= syncing._unwritten() < float("inf")
    for content, bytes_ in (
        (b"Dirty:  12 kB\nWriteback:  3 kB\nWritebackTmp: 9 kB\n", 15 * 1024),
        (b"Dirty: 1 kB\n", None),
    ):
        (tmp_path / "meminfo").write_bytes(content)
        monkeypatch.setattr(syncing, "_MEMORY", str(tmp_path / "meminfo"))
        assert syncing._unwritten() == (float("inf") if bytes_ is None else bytes_)
    monkeypatch.setattr(syncing, "_MEMORY", str(tmp_path / "missing"))
    assert syncing._unwritten() == float("inf")


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root mounts file systems, on Linux")
def test_a_synced_file_survives_a_power_loss(tmp_path: Path) -> None:
    """What the disk has when `sync` and `move` return: a copy of it, mounted, has the files with their bytes."""
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("there is no mkfs.ext4")
    for journal in ("has_journal", "^has_journal"):
        disk, copy, mounted = tmp_path / "disk", tmp_path / "copy", tmp_path / "mounted"
        mounted.mkdir(exist_ok=True)
        with disk.open("wb") as file:
            file.truncate(16 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-O", journal, disk], check=True)
        if subprocess.run(["mount", "-o", "loop", disk, mounted], capture_output=True, check=False).returncode:
            pytest.skip("nothing can be mounted")
        try:
            storage = LocalStorage(mounted / "run")
            for name in "abc":
                storage.write(f"staged/{name}", [name.encode() * 5000])
            storage.sync([f"staged/{name}" for name in "abc"])
            storage.move("staged", "published")
            shutil.copyfile(disk, copy)
        finally:
            subprocess.run(["umount", mounted], check=True)
        subprocess.run(["mount", "-o", "loop", copy, mounted], check=True)
        try:
            after = LocalStorage(mounted / "run")
            found = {name: b"".join(after.read(f"published/{name}")) for name in "abc"}
        finally:
            subprocess.run(["umount", mounted], check=True)
        assert found == {name: name.encode() * 5000 for name in "abc"}, journal


@pytest.mark.parametrize("path", ["", "/etc/passwd", "..", "a/../../b", "a/..", "a//b", ".", "a\0b"])
def test_a_path_outside_of_the_root_is_refused(storage: LocalStorage, tmp_path: Path, path: str) -> None:
    """No operation touches anything outside of the root, or the root itself."""
    storage.write("a/kept.txt", [b"kept"])
    before = sorted(tmp_path.rglob("*"))
    attempts = (
        lambda: storage.write(path, [b"x"]),
        lambda: list(storage.read(path)),
        lambda: storage.digest(path),
        lambda: storage.sync([path]),
        lambda: storage.move(path, "b"),
        lambda: storage.move("a", path),
        lambda: storage.remove(path),
        lambda: storage.list(path or ".."),
    )
    for attempt in attempts:
        with pytest.raises(StorageError, match="leads out of"):
            attempt()
    assert sorted(tmp_path.rglob("*")) == before


def test_links_out_of_the_root_are_not_followed(storage: LocalStorage, tmp_path: Path) -> None:
    """The target of a symbolic link outside of the root is neither read nor changed; a link within it is followed."""
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


def test_the_root_may_be_a_link(tmp_path: Path) -> None:
    """The root itself may be a link, such as one to a larger disk."""
    tmp_path.joinpath("large").mkdir()
    tmp_path.joinpath("root").symlink_to(tmp_path / "large")
    LocalStorage(tmp_path / "root").write("a.txt", [b"a"])
    assert tmp_path.joinpath("large", "a.txt").read_bytes() == b"a"


@pytest.mark.parametrize("data", [DATA, b"less than a block"], ids=["blocks", "less"])
def test_a_full_disk_raises_storage_full(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """The error says that the disk is full, existing files stay, and no partial file is left."""
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


def test_an_aborted_write_leaves_nothing(storage: LocalStorage) -> None:
    """An error raised by the chunks is propagated, and the name is free again."""

    def chunks() -> Iterator[bytes]:
        yield DATA
        raise OSError("the source is gone")

    with pytest.raises(OSError, match="the source is gone") as raised:
        storage.write("a.bin", chunks())
    assert not isinstance(raised.value, StorageError)
    assert storage.list("") == ()


def test_nothing_is_overwritten(storage: LocalStorage) -> None:
    """Neither a write nor a move replaces a file, a folder (empty or not) or a dangling link."""
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


def test_removing_a_folder_keeps_the_targets_of_links(storage: LocalStorage, tmp_path: Path) -> None:
    """Removing a folder removes the links in it, but not their targets."""
    tmp_path.joinpath("outside").mkdir()
    tmp_path.joinpath("outside", "file").write_text("kept")
    storage.write("folder/a/b.bin", [b"x"])
    root_of(storage).joinpath("folder", "link").symlink_to(tmp_path / "outside")
    storage.remove("folder")
    assert storage.list("") == ()
    assert tmp_path.joinpath("outside", "file").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root ignores permissions")
def test_missing_permissions_are_reported(storage: LocalStorage) -> None:
    """The message names the path, the cause and the fix."""
    storage.write("folder/a", [b"x"])
    root_of(storage).joinpath("folder").chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(StorageError, match=r"write folder/b.*Permission denied. Grant this user access"):
        storage.write("folder/b", [b"x"])


def test_a_root_that_is_a_file_is_reported(tmp_path: Path) -> None:
    """If the root is a file, writing reports it and listing returns nothing."""
    tmp_path.joinpath("root").write_text("a file")
    storage = LocalStorage(tmp_path / "root")
    with pytest.raises(StorageError, match=r"Cannot write a\.txt in .*root: "):
        storage.write("a.txt", [b"x"])
    assert storage.list("") == ()


def test_a_listing_distinguishes_folders_from_files(storage: LocalStorage) -> None:
    """Names are sorted, each with whether it is a folder."""
    for path in ("b/x", "a", "c/y/z"):
        storage.write(path, [b"1"])
    assert storage.list("") == (Entry("a", False), Entry("b", True), Entry("c", True))
    assert storage.list("c") == (Entry("y", True),)
    assert storage.list("a") == ()


@pytest.mark.parametrize("size", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 4097])
@pytest.mark.parametrize("chunk", [BLOCK, 3_000_001])
def test_large_files_hold_what_was_written(tmp_path: Path, size: int, chunk: int) -> None:
    """Whole blocks bypass the page cache and the end does not; the file holds what was written, however it was cut."""
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
def test_chunks_of_any_alignment_are_written(cuts: list[tuple[int, int]], readable_only: bool) -> None:
    """The file holds the chunks, whether or not they are aligned to pages of memory and of the file."""
    memory = memoryview(pages_of_noise())
    chunks = [memory[start : start + size] for start, size in cuts]
    if readable_only:
        chunks = [chunk.toreadonly() for chunk in chunks]
    with TemporaryDirectory() as folder:
        LocalStorage(folder).write("file", chunks)
        assert Path(folder, "file").read_bytes() == b"".join(chunks)


def test_aligned_pages_are_written_without_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large chunk that is aligned in memory and in the file is not copied first."""
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
def test_a_file_system_without_direct_writes_uses_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused_at: int, refusal: int
) -> None:
    """If a write that bypasses the cache is refused, at any block, writing continues through the cache."""
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
    assert len(refused) in (0, refused_at)  # 0 where the file system cannot be queried


def test_holes_are_listed(tmp_path: Path) -> None:
    """The bytes that a file takes on the disk are listed; they are its size unless it consists of a hole."""
    (tmp_path / "whole").write_bytes(bytes(range(256)) * (1 << 13))
    (tmp_path / "hollow").write_bytes(b"x")
    os.truncate(tmp_path / "hollow", 1 << 40)
    (tmp_path / "folder").mkdir()
    listed = {entry.name: (entry.size, entry.on_disk) for entry in LocalStorage(tmp_path).list("")}
    assert listed["whole"] == (1 << 21, 1 << 21)
    assert listed["folder"] == (None, None)
    size, on_disk = listed["hollow"]
    assert size == 1 << 40
    assert on_disk is not None
    assert on_disk < 1 << 20
