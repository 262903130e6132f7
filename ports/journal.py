"""Durable record of what happens in a run.

A journal only takes notes: the kind of an event, with plain facts. What is noted, and how two journals are compared, is
defined by the domain (`hexloop.domain.journal`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

Fact: TypeAlias = "str | int | float | bool | Sequence[Fact] | Mapping[str, Fact] | None"
"""A JSON value."""


class Journal(Protocol):
    """An append-only list of notes that survives the process, however it ends."""

    def note(self, kind: str, **facts: Fact) -> None:
        """Append a note; once this returns, the death of the process does not lose it.

        Thread-safe. No fact may be named "kind". Raises OSError if the note cannot be stored.
        """

    def close(self) -> None:
        """Close the journal. A later note reopens it and is appended."""
