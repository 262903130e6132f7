"""Contract of the Hub port, run on the hubs that need no network, and on a server on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hexloop.adapters.hub import FolderHub, MemoryHub
from hexloop.adapters.hub.hugging_face import HuggingFaceHub
from hexloop.app.testing.contracts.storage import HubContract
from hexloop.ports.hub import Hub
from tests.engines.publishing_hub import publishing_hub


class TestMemoryHub(HubContract):
    @pytest.fixture
    def hub(self) -> Hub:
        return MemoryHub()


class TestFolderHub(HubContract):
    @pytest.fixture
    def hub(self, tmp_path: Path) -> Hub:
        return FolderHub(tmp_path / "hub")


class TestHuggingFaceHub(HubContract):
    @pytest.fixture
    def hub(self) -> Iterator[Hub]:
        with publishing_hub() as server:
            yield HuggingFaceHub(server.address, "hf_0123456789")
