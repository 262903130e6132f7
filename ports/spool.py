"""What a run has for its loggers and they do not have yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

from hexloop.ports.journal import Fact

Entry: TypeAlias = Mapping[str, Fact]
"""A JSON object."""


class Spool(Protocol):
    """A list of numbered entries, in order, with a position in it for each receiver. Thread-safe.

    Entries, positions and facts outlive the process, unless the spool is in memory. Only what is asked of a spool here
    is known to it: what the entries mean is the domain's.
    """

    def append(self, number: int, entry: Entry) -> bool:
        """Add an entry whose number is above all others; return False if there is no room for it.

        Once this returns True, the death of the process does not lose the entry.
        """

    def read(self, after: int, most: int) -> Sequence[tuple[int, Entry]]:
        """Return the first entries with numbers above `after`, at most `most`."""

    def keep(self, wanted: Callable[[Entry], bool]) -> int:
        """Drop all entries that are not `wanted`; return the largest number that was used, 0 if there is none."""

    def position(self, receiver: str) -> int:
        """Return the number of the last entry that a receiver has; 0 if it has none."""

    def move(self, receiver: str, number: int) -> None:
        """Store that a receiver has all entries up to a number. Entries that all receivers have may be dropped."""

    def facts(self, receiver: str) -> Entry | None:
        """Return what `describe` stored; None if nothing."""

    def describe(self, receiver: str, facts: Entry) -> None:
        """Store what another process needs to know about a receiver. A described receiver keeps entries it lacks."""

    def receivers(self) -> Sequence[str]:
        """Return the receivers that are described."""

    def hold(self, name: str, files: Iterable[tuple[str, str]]) -> str:
        """Keep copies or hard links of files, from path in the folder to path on this machine; return its name.

        Raises OSError if there is no room, or the spool is in memory.
        """

    def location(self, folder: str) -> str | None:
        """Return the path on this machine of a folder that `hold` made; None if there is none."""

    def release(self, folder: str) -> None:
        """Remove a folder that `hold` made; one that is not there is ignored."""

    def close(self, remove: bool) -> None:
        """Let other processes use it. remove: with everything in it."""
