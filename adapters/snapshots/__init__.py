"""Snapshots adapters: copies of the run state in host memory, here of bytes without a framework."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from attrs import evolve

from hexloop.ports.state import Part


class InMemorySnapshots:
    """Snapshots adapter that copies bytes; buffers are reused."""

    def __init__(self) -> None:
        self._copies: dict[tuple[str, str, int], bytearray] = {}

    def reserve(self, owners: Mapping[str, Sequence[Part]]) -> Callable[[], None]:
        """Return a no-op: memory is allocated when a part is first copied and its size is known."""
        return lambda: None

    def take(self, owner: str, parts: Iterable[Part]) -> list[Part]:
        """Copy the parts; see `Snapshots.take`."""
        return [self._take(owner, part) for part in parts]

    def _take(self, owner: str, part: Part) -> Part:
        data = part.read().cast("B")
        key = (owner, part.name, part.offset)
        copy = self._copies.get(key)
        if copy is None or len(copy) != len(data):
            copy = self._copies[key] = bytearray(data)
        else:
            copy[:] = data
        return evolve(part, read=lambda: memoryview(copy).toreadonly(), source=None)
