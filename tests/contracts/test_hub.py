"""Contract of the Hub port, run on the hubs that need no network."""

from __future__ import annotations

from pathlib import Path

import pytest

from hexloop.adapters.hub import FolderHub, MemoryHub
from hexloop.app.testing.contracts.storage import HubContract
from hexloop.ports.hub import Hub


class TestMemoryHub(HubContract):
    @pytest.fixture
    def hub(self) -> Hub:
        return MemoryHub()


class TestFolderHub(HubContract):
    @pytest.fixture
    def hub(self, tmp_path: Path) -> Hub:
        return FolderHub(tmp_path / "hub")
