"""Nobody writes anything down."""

from __future__ import annotations

from hexloop.ports.journal import Fact


class NoJournal:
    """Answers the Journal port by forgetting."""

    def note(self, kind: str, **facts: Fact) -> None:
        """Forget it."""

    def close(self) -> None:
        """There is nothing to close."""
