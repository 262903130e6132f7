"""Every storage against the contract of its port."""

from __future__ import annotations

from pathlib import Path

import pytest

from hexloop.adapters.storage.faults import FaultyStorage
from hexloop.adapters.storage.local import DIGESTS, LocalStorage
from hexloop.adapters.storage.memory import MemoryStorage
from hexloop.app.contracts.storage import StorageContract
from hexloop.ports.storage import Publication, Storage


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
