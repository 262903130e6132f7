"""A fast tier in front of a slow one that is slow, fails, or is still behind when the process ends.

Run as a program, this file is a process that saves while its slow tier is blocked, to be killed.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from hexloop.adapters.storage.faults import Effect, Fault, FaultyStorage
from hexloop.adapters.storage.local import LocalStorage
from hexloop.adapters.storage.memory import MemoryStorage
from hexloop.adapters.storage.tiered import TieredStorage
from hexloop.domain.checkpoints.reading import verify
from hexloop.domain.errors import ConfigurationError, StorageError
from hexloop.ports.storage import Publication, Storage, Stored
from tests.unit.checkpoints.small_store import make_store, names, save_all, tree, weights_at

ROOT = Path(__file__).parents[2]
PROGRAM = (sys.executable, "-m", "tests.engines.test_tiered_storage")
NO_PAUSE = (0.0,)


class StandingStill(MemoryStorage):
    """Accepts a number of files, then blocks until released."""

    def __init__(self, files: int = 0) -> None:
        super().__init__(Publication.MANIFEST_LAST)
        self.files, self.waits, self.may_go_on = files, threading.Event(), threading.Event()

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> Stored:
        self.files -= 1
        if self.files < 0:
            self.waits.set()
            self.may_go_on.wait()
        return super().write(path, chunks)


@pytest.fixture
def fast(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "fast", "blake2b")


@pytest.fixture
def slow() -> Iterator[StandingStill]:
    slow = StandingStill()
    yield slow
    slow.may_go_on.set()


def assert_same(one: Storage, other: Storage) -> None:
    assert tree(one) == tree(other)


def test_a_run_does_not_wait_for_a_slow_tier(fast: LocalStorage, slow: StandingStill) -> None:
    """All checkpoints are saved and rotated while nothing is uploaded; later the tiers have the same content."""
    storage = TieredStorage(fast, slow)
    save_all(storage, "mine", [1, 2, 3, 4], limit=2)
    assert names(storage) == ["checkpoint-3", "checkpoint-4"]
    assert names(slow) == []
    slow.may_go_on.set()
    storage.close(60)
    assert storage.pending == ()
    assert_same(slow, fast)


def test_rotation_keeps_checkpoints_until_they_are_uploaded(fast: LocalStorage, slow: StandingStill) -> None:
    """A checkpoint that is rotated before its upload is uploaded completely, and then removed from the slow tier."""
    arrived: list[int] = []
    true_remove = slow.remove

    def remove(path: str) -> None:
        if path in ("checkpoint-1", "checkpoint-2"):
            arrived.append(int(path[-1]))
        elif path.endswith("/manifest.json") and names(slow, path.rpartition("/")[0]):
            step = verify(slow, path.rpartition("/")[0]).manifest.step
            assert b"".join(slow.read(f"checkpoint-{step}/weights/all.bin")) == weights_at("mine", step)
        true_remove(path)

    slow.remove = remove  # type: ignore[method-assign]
    storage = TieredStorage(fast, slow)
    save_all(storage, "mine", [1, 2, 3], limit=1)
    assert names(storage) == ["checkpoint-3"]
    slow.may_go_on.set()
    storage.close(60)
    assert arrived == [1, 2]
    assert_same(slow, fast)


@pytest.mark.parametrize("files", range(8))
def test_the_next_process_continues_the_outbox(fast: LocalStorage, files: int) -> None:
    """Whatever had been uploaded, another process uploads the rest on its own, and nothing twice."""
    slow = StandingStill(files)
    dead = TieredStorage(fast, slow)
    save_all(dead, "mine", [1, 2, 3], limit=2)
    assert slow.waits.wait(60)
    left = MemoryStorage(Publication.MANIFEST_LAST)
    for path, data in tree(slow).items():
        if data:
            left.write(path, [data])
    copy = LocalStorage(Path(fast.capabilities.location).parent / "copy", "blake2b")
    for path, data in tree(fast).items():
        copy.write(path, [data])
    slow.may_go_on.set()
    dead.close(60)
    storage = TieredStorage(copy, left)
    assert names(storage) == ["checkpoint-2", "checkpoint-3"]
    storage.close(60)
    assert_same(left, copy)
    assert names(left) == ["checkpoint-2", "checkpoint-3"]


def test_the_next_process_continues_the_outbox_of_a_killed_one(tmp_path: Path) -> None:
    """After a real kill during an upload the next process uploads the rest, even if it only reads."""
    with subprocess.Popen([*PROGRAM, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "standing still\n"
        process.kill()
    assert process.returncode == -signal.SIGKILL
    remote = LocalStorage(tmp_path / "slow")
    assert "manifest.json" not in names(remote, "checkpoint-1")
    storage = TieredStorage(LocalStorage(tmp_path / "fast"), remote)
    assert storage.pending == ("checkpoint-1", "checkpoint-2", "checkpoint-3")
    state = make_store(storage).resume()
    assert state is not None
    assert state.step == 3
    storage.close(60)
    assert names(remote) == ["checkpoint-2", "checkpoint-3"]
    for name in names(remote):
        verify(remote, name)
    assert_same(remote, LocalStorage(tmp_path / "fast"))


def test_a_program_waits_for_uploads_at_exit(tmp_path: Path) -> None:
    """The storage does not have to be closed if the slow tier works."""
    subprocess.run([*PROGRAM, str(tmp_path), "to the end"], check=True, cwd=ROOT)
    assert names(LocalStorage(tmp_path / "slow")) == ["checkpoint-2", "checkpoint-3"]
    assert tree(LocalStorage(tmp_path / "slow")) == tree(LocalStorage(tmp_path / "fast"))


@pytest.mark.filterwarnings("ignore:Uploading to")
@pytest.mark.parametrize("effect", [Effect.FAIL, Effect.FULL, Effect.TEAR])
def test_every_operation_on_the_slow_tier_may_fail(fast: LocalStorage, effect: Effect) -> None:
    """Whichever operation fails, or is partly done, is repeated; the slow tier gets what was sent."""
    for at in range(1, 12):
        root = LocalStorage(f"{fast.capabilities.location}-{at}", "blake2b")
        slow = MemoryStorage(Publication.MANIFEST_LAST)
        storage = TieredStorage(root, FaultyStorage(slow, [Fault(at, effect, "write", times=2)]), pauses=NO_PAUSE)
        save_all(storage, "mine", [1, 2], limit=1)
        storage.close(60)
        assert_same(slow, root)
        verify(slow, "checkpoint-2")


def test_a_slow_tier_that_keeps_failing_is_reported_and_nothing_is_lost(
    fast: LocalStorage, caplog: pytest.LogCaptureFixture
) -> None:
    """The run continues and logs it once; in the end it lists the files not uploaded and keeps them for later."""
    slow = MemoryStorage(Publication.MANIFEST_LAST)
    broken = FaultyStorage(slow, [Fault(1, Effect.FAIL, "write", times=10**9)])
    storage = TieredStorage(fast, broken, pauses=NO_PAUSE)
    save_all(storage, "mine", [1])
    while sum(operation == "write" for operation, _ in broken.operations) < 3:
        time.sleep(0.001)
    save_all(storage, "mine", [2, 3], limit=2)
    (told,) = [text for text in caplog.messages if "is retried while the run continues" in text]
    assert "Planned fault" in told
    with pytest.raises(
        StorageError, match=r"Not yet uploaded to .*: checkpoint-1, checkpoint-2, checkpoint-3 \(Planned fault"
    ):
        storage.close(0.01)
    again = TieredStorage(fast, slow)
    again.close(60)
    assert_same(slow, fast)


def test_another_machine_resumes_from_the_slow_tier(tmp_path: Path) -> None:
    """With an empty fast tier, checkpoints are read from the slow one, and rotated there."""
    slow = LocalStorage(tmp_path / "slow")
    first = TieredStorage(LocalStorage(tmp_path / "one"), slow)
    save_all(first, "mine", [1, 2])
    first.close(60)
    second = TieredStorage(LocalStorage(tmp_path / "two"), slow)
    store = make_store(second, limit=2)
    state = store.resume()
    assert state is not None
    assert state.step == 2
    state.step = 3
    list(store.save(state))
    assert names(second) == ["checkpoint-2", "checkpoint-3"]
    second.close(60)
    assert names(slow) == ["checkpoint-2", "checkpoint-3"]


def test_an_unreachable_slow_tier_is_not_needed_if_the_fast_one_has_a_checkpoint(fast: LocalStorage) -> None:
    """A run resumes from the local tier; with nothing local it raises an error instead of starting over."""
    silent = FaultyStorage(MemoryStorage(), [Fault(1, Effect.FAIL, times=10**9)])
    with pytest.raises(StorageError, match="Planned fault"):
        make_store(TieredStorage(fast, silent, sends=False)).resume()
    save_all(fast, "mine", [1])
    state = make_store(TieredStorage(fast, silent, sends=False)).resume()
    assert state is not None
    assert state.step == 1


def test_one_file_of_a_pending_upload_cannot_be_removed(fast: LocalStorage) -> None:
    """One file of a folder that is still to be uploaded cannot be removed alone."""
    storage = TieredStorage(fast, MemoryStorage(), sends=False)
    storage.write(".staging/a", [b"a"])
    storage.move(".staging", "folder")
    with pytest.raises(StorageError, match="part of a pending upload"):
        storage.remove("folder/a")
    assert names(storage, "folder") == ["a"]


def test_the_outbox_is_not_accessible_as_files(fast: LocalStorage) -> None:
    """It is neither listed nor accessible under its name, and nothing of it remains once everything is uploaded."""
    storage = TieredStorage(fast, MemoryStorage(), sends=False)
    storage.write("a", [b"a"])
    assert names(storage) == ["a"]
    assert names(fast) == [".hexloop/outbox", "a"]
    for attempt in (
        lambda: storage.write(".hexloop/outbox/x", []),
        lambda: storage.remove(".hexloop/outbox"),
        lambda: storage.move(".hexloop/outbox", "b"),
        lambda: storage.move("a", ".hexloop/outbox/a"),
        lambda: storage.read(".hexloop/outbox"),
    ):
        with pytest.raises(StorageError, match="belongs to the storage"):
            attempt()
    TieredStorage(fast, MemoryStorage()).close(60)
    assert names(fast, ".hexloop/outbox") == []


def test_a_fast_tier_needs_an_atomic_rename(fast: LocalStorage) -> None:
    """A storage without one is refused, and the tiers' locations are named."""
    with pytest.raises(ConfigurationError, match="it has no atomic rename"):
        TieredStorage(MemoryStorage(Publication.MANIFEST_LAST), fast)
    capabilities = TieredStorage(fast, MemoryStorage()).capabilities
    assert capabilities.location == f"{fast.capabilities.location}, and then memory"
    assert capabilities.local_folder == fast.capabilities.local_folder


class StandingStillOnDisk(LocalStorage):
    """Accepts one file, and then blocks."""

    files, waits = 0, threading.Event()

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> Stored:
        if self.files == 1:
            self.waits.set()
            threading.Event().wait()
        self.files += 1
        return super().write(path, chunks)


def save_to(folder: Path, slow: type[LocalStorage]) -> None:
    """Save three times to two tiers."""
    save_all(TieredStorage(LocalStorage(folder / "fast"), slow(folder / "slow")), "mine", [1, 2, 3], limit=2)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        save_to(Path(sys.argv[1]), LocalStorage)
    else:
        save_to(Path(sys.argv[1]), StandingStillOnDisk)
        StandingStillOnDisk.waits.wait()
        print("standing still", flush=True)
