"""A storage whose writes wait until a test opens its gate."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from hexloop.adapters.storage.memory import MemoryStorage
from hexloop.ports.storage import Stored

PATIENCE = 10.0
"""Seconds after which a wait is a failure of the test."""


class GatedStorage(MemoryStorage):
    """Memory storage that writes only while the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.reached = threading.Event()

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> Stored:
        """Write once the gate is open."""
        self.reached.set()
        assert self.gate.wait(PATIENCE)
        return super().write(path, chunks)
