"""Copies in ordinary memory, for whatever hands out bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from attrs import evolve

from hexloop.ports.state import Part

Place = tuple[str, str, int]
"""Whose part it is, its name, and its first element."""


class InMemorySnapshots:
    """Answers the Snapshots port; what it has once made room for is used again."""

    def __init__(self) -> None:
        self._copies: dict[Place, bytearray] = {}

    def reserve(self, owners: Mapping[str, Sequence[Part]]) -> Callable[[], None]:
        """Nothing: ordinary memory is made when its size is known, as a part is first taken."""
        return lambda: None

    def take(self, owner: str, parts: Iterable[Part]) -> list[Part]:
        """Copy the parts; see `Snapshots.take`."""
        return [self._take(owner, part) for part in parts]

    def _take(self, owner: str, part: Part) -> Part:
        data = part.read().cast("B")
        place = (owner, part.name, part.offset)
        copy = self._copies.get(place)
        if copy is None or len(copy) != len(data):
            copy = self._copies[place] = bytearray(data)
        else:
            copy[:] = data
        return evolve(part, read=lambda: memoryview(copy).toreadonly(), source=None)
