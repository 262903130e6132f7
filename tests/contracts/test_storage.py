"""Contract of the Storage port, run on each storage."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from hexloop.adapters.storage import DIGESTS
from hexloop.adapters.storage.faults import FaultyStorage
from hexloop.adapters.storage.fsspec import FsspecStorage
from hexloop.adapters.storage.local import LocalStorage
from hexloop.adapters.storage.memory import MemoryStorage
from hexloop.adapters.storage.tiered import TieredStorage
from hexloop.adapters.storage.within import StorageWithin
from hexloop.app.testing.contracts.storage import StorageContract
from hexloop.domain.errors import StorageError
from hexloop.ports.storage import Entry, Publication, Storage, StorageCapabilities, Stored


@pytest.mark.parametrize("publication", Publication)
class TestMemoryStorage(StorageContract):
    @pytest.fixture
    def storage(self, publication: Publication) -> Storage:
        return MemoryStorage(publication)


class TestFaultyStorageWithoutFaults(StorageContract):
    @pytest.fixture
    def storage(self) -> Storage:
        return FaultyStorage(MemoryStorage())


@pytest.mark.parametrize("digest", DIGESTS)
class TestLocalStorage(StorageContract):
    @pytest.fixture
    def storage(self, digest: str, tmp_path: Path) -> Storage:
        return LocalStorage(tmp_path / "root", digest)


@pytest.mark.parametrize("digest", DIGESTS)
class TestFsspecInMemory(StorageContract):
    @pytest.fixture
    def storage(self, digest: str) -> Storage:
        return FsspecStorage(f"memory://{uuid.uuid4().hex}/runs", digest=digest)


class TestFsspecOfAFolder(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return FsspecStorage(f"file://{tmp_path}/not/there/yet")


class TestStorageWithin(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return StorageWithin(LocalStorage(tmp_path / "root"), "run-0/inner")

    def test_it_leaves_the_rest_alone(self) -> None:
        """What is written is in the folder, and a path that leads out of it is refused."""
        whole = MemoryStorage()
        whole.write("beside", [b"1"])
        inner = StorageWithin(whole, "run-0")
        inner.write("file", [b"2"])
        assert [entry.name for entry in inner.list("")] == ["file"]
        assert [entry.name for entry in whole.list("run-0")] == ["file"]
        with pytest.raises(StorageError):
            inner.write("../other", [b"3"])
        for folder in ("", "..", "a/../b"):
            with pytest.raises(ValueError, match="not the path of a folder"):
                StorageWithin(whole, folder)


class TestTieredStorage(StorageContract):
    """The slow tier keeps up, whatever the order of the two threads."""

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Iterator[Storage]:
        storage = TieredStorage(LocalStorage(tmp_path / "fast"), MemoryStorage(Publication.MANIFEST_LAST))
        yield storage
        storage.close()


class TestTieredStorageThatSendsNothing(StorageContract):
    """All transfers wait in the outbox."""

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return TieredStorage(LocalStorage(tmp_path / "fast"), MemoryStorage(Publication.MANIFEST_LAST), sends=False)


class OnAnotherMachineEachTime:
    """Two tiers, of which the fast one is lost after each operation."""

    def __init__(self) -> None:
        self.slow = MemoryStorage(Publication.MANIFEST_LAST)
        self.capabilities = StorageCapabilities(Publication.MANIFEST_LAST, "another machine each time")

    @contextmanager
    def tiers(self) -> Iterator[Storage]:
        storage = TieredStorage(MemoryStorage(), self.slow)
        try:
            yield storage
        finally:
            storage.close()

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> Stored:
        with self.tiers() as storage:
            return storage.write(path, chunks)

    def sync(self, paths: Sequence[str]) -> None:
        with self.tiers() as storage:
            storage.sync(paths)

    def read(self, path: str, start: int = 0) -> Iterator[memoryview]:
        with self.tiers() as storage:
            yield from storage.read(path, start)

    def list(self, folder: str) -> tuple[Entry, ...]:
        with self.tiers() as storage:
            return storage.list(folder)

    def move(self, source: str, destination: str) -> None:
        with self.tiers() as storage:
            storage.move(source, destination)

    def remove(self, path: str) -> None:
        with self.tiers() as storage:
            storage.remove(path)

    def digest(self, path: str) -> Stored:
        with self.tiers() as storage:
            return storage.digest(path)


class TestTieredStorageOnAnotherMachineEachTime(StorageContract):
    """Files that only the slow tier has are found."""

    @pytest.fixture
    def storage(self) -> Storage:
        return OnAnotherMachineEachTime()
