"""Memory that keeps the bytes of a run's state as they are at one moment, and is used again for the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from hexloop.ports.state import Part


class Snapshots(Protocol):
    """Copies of parts. There is one copy at a time: taking a part again gives up what was taken of it before."""

    def reserve(self, owners: Mapping[str, Sequence[Part]]) -> Callable[[], None]:
        """What makes room for these parts before they are first taken; it may be called in another thread.

        Only the parts' names, types and shapes are looked at.
        """
        ...

    def take(self, owner: str, parts: Iterable[Part]) -> list[Part]:
        """The same parts, whose bytes stay as they are now while the run goes on.

        `owner` is whose the parts are ("model", "optimizer", ...). What the copies read may be read in another thread.
        """
        ...
