"""Reusable memory for copies of a run's state at one moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from hexloop.ports.state import Part


class Snapshots(Protocol):
    """Copies of parts. There is one copy at a time: copying a part again replaces its previous copy."""

    def reserve(self, owners: Mapping[str, Sequence[Part]]) -> Callable[[], None]:
        """Return a function that allocates memory for these parts before the first copy; another thread may call it.

        Only the names, dtypes and shapes of the parts are used.
        """

    def take(self, owner: str, parts: Iterable[Part]) -> list[Part]:
        """Return copies of the parts, whose bytes stay as they are now while the run continues.

        owner: the component that has the parts ("model", "optimizer", ...). Another thread may read the copies.
        """
