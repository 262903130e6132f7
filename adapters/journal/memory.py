"""A journal in memory, and one that records nothing."""

from __future__ import annotations

from hexloop.ports.journal import Fact


class MemoryJournal:
    """Journal adapter for tests and for programs that read their own run.

    `notes` holds one dictionary per note, with its kind under "kind".
    """

    def __init__(self) -> None:
        self.notes: list[dict[str, Fact]] = []

    def note(self, kind: str, **facts: Fact) -> None:
        """Append to `notes`."""
        self.notes.append({"kind": kind, **facts})

    def close(self) -> None:
        """No-op; `notes` stays."""


class NoJournal:
    """Journal adapter that records nothing."""

    def note(self, kind: str, **facts: Fact) -> None:
        """No-op."""

    def close(self) -> None:
        """No-op."""
