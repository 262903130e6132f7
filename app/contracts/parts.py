"""Parts, taken as they are at one moment."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import frozen

from hexloop.ports.state import JSON, Part

BITS = {"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16}
BITS |= {"I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, JSON: 8}
"""How many bits an element of a dtype has."""


@frozen
class Content:
    """What a part says, without how it is read."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int
    data: bytes

    def part(self) -> Part:
        """A part that hands out these bytes."""
        return Part(self.name, self.dtype, self.shape, self.offset, self.length, lambda: memoryview(self.data))


def contents(parts: Iterable[Part]) -> list[Content]:
    """What the parts say now, in the order of their names and offsets."""
    taken = [Content(part.name, part.dtype, part.shape, part.offset, part.length, bytes(part.read())) for part in parts]
    return sorted(taken, key=lambda content: (content.name, content.offset))


def kept(parts: Iterable[Part]) -> list[Part]:
    """The parts, which from now on hand out what they hand out now."""
    return [content.part() for content in contents(parts)]
