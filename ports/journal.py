"""What happened in a run, written down for good while it happens.

A journal only takes notes: one kind of thing that happened, with plain facts about it. What is noted, and how two
journals are compared, is the domain's (`hexloop.domain.journal`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

Fact: TypeAlias = "str | int | float | bool | Sequence[Fact] | Mapping[str, Fact] | None"
"""What JSON can say."""


class Journal(Protocol):
    """A list of notes that only grows, and that outlives the process however it ends."""

    def note(self, kind: str, **facts: Fact) -> None:
        """Add a note at the end; once this returns, the death of the process does not lose it.

        Any thread may note. No fact is named "kind". Raises OSError where the note cannot be kept.
        """
        ...

    def close(self) -> None:
        """No more notes for now; a later one opens the journal again, and goes on at its end."""
        ...
