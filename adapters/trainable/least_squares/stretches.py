"""Lists of floats as parts: which stretch of a list is which slice of a named value."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from attrs import frozen

from hexloop.ports.state import Part


@frozen
class Stretch:
    """The elements `first` to `first + length` of `values` are those from `offset` on of the value `name`.

    size: the elements of the whole value. exported: False where it only loads, because somebody else exports it.
    """

    name: str
    size: int
    values: list[float]
    first: int
    length: int
    offset: int = 0
    exported: bool = True

    def read(self) -> memoryview:
        """The elements as they are now, as little-endian doubles."""
        return memoryview(struct.pack(f"<{self.length}d", *self.values[self.first : self.first + self.length]))

    def fill_from(self, whole: Sequence[float]) -> None:
        """Take the elements from the whole value."""
        self.values[self.first : self.first + self.length] = whole[self.offset : self.offset + self.length]


def export_stretches(stretches: Iterable[Stretch]) -> Iterator[Part]:
    """One part for each stretch that is exported and not empty."""
    for stretch in stretches:
        if stretch.exported and stretch.length > 0:
            yield Part(stretch.name, "F64", (stretch.size,), stretch.offset, stretch.length, stretch.read)


Piece: TypeAlias = "tuple[str, str, tuple[int, ...], int, tuple[float, ...]]"
"""Name, dtype, shape and offset of a part, and its elements."""


def piece_of(part: Part) -> Piece:
    """A part with its elements read (none where it holds no doubles)."""
    elements = struct.unpack(f"<{part.length}d", part.read()) if part.dtype == "F64" else ()
    return part.name, part.dtype, part.shape, part.offset, elements


def load_stretches(stretches: Iterable[Stretch], pieces: Iterable[Piece]) -> None:
    """Fill the stretches from pieces, which cover every value between them; a piece may come more than once.

    Raises ValueError, naming them, where one is missing, unknown or of another shape; nothing is changed then.
    """
    wanted = {stretch.name: stretch for stretch in stretches}
    wholes: dict[str, dict[int, float]] = {name: {} for name in wanted}
    problems: list[str] = []
    for name, dtype, shape, offset, elements in pieces:
        if name not in wanted:
            problems.append(f"{name!r} is unknown")
        elif (dtype, tuple(shape)) != ("F64", (wanted[name].size,)):
            problems.append(f"{name!r} is {dtype} {list(shape)} and should be F64 [{wanted[name].size}]")
        else:
            wholes[name] |= dict(enumerate(elements, offset))
    for name, stretch in wanted.items():
        lacking = stretch.size - len(wholes[name])
        if lacking:
            problems.append(f"{name!r} is missing, {lacking} of its {stretch.size} elements")
    if problems:
        raise ValueError(f"The saved state does not fit: {'; '.join(problems)}.")
    for name, stretch in wanted.items():
        stretch.fill_from([wholes[name][index] for index in range(stretch.size)])
