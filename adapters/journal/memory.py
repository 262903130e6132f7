"""A journal in memory, for tests and for programs that read their own run."""

from __future__ import annotations

from hexloop.ports.journal import Fact


class MemoryJournal:
    """Answers the Journal port with a list: `notes` holds a dictionary for each, its kind under "kind"."""

    def __init__(self) -> None:
        self.notes: list[dict[str, Fact]] = []

    def note(self, kind: str, **facts: Fact) -> None:
        """Add it to the list."""
        self.notes.append({"kind": kind, **facts})

    def close(self) -> None:
        """The list stays."""


class NoJournal:
    """Answers the Journal port by forgetting."""

    def note(self, kind: str, **facts: Fact) -> None:
        """Forget it."""

    def close(self) -> None:
        """There is nothing to close."""
