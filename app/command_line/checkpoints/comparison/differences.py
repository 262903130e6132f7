"""What two checkpoints may differ in, for people and for programs."""

from __future__ import annotations

import json
from typing import Any

from attrs import asdict, frozen

from hexloop.app.command_line.checkpoints.comparison.fields import MISSING, FieldName, told_name
from hexloop.domain.json_documents import finite_json

LONGEST = 60
"""How many characters of a value are shown."""


@frozen
class Largest:
    """The largest absolute difference of two tensors: where it is, and both elements there."""

    difference: float
    index: tuple[int, ...]
    values: tuple[Any, Any]


@frozen
class TensorDiffers:
    """A tensor of `group` that differs, or that only one has: then the kind of the other is None.

    kinds: dtype and shape in each. elements: how many differ, of how many; None where they were not compared.
    largest: None where no element can be subtracted from the other, or only the bits of equal values differ.
    """

    group: str
    name: str
    kinds: tuple[str | None, str | None]
    elements: tuple[int, int] | None = None
    largest: Largest | None = None

    def __str__(self) -> str:
        return f"  {self.group}: tensor {self.name}{self._how()}"

    def _how(self) -> str:
        one, other = self.kinds
        if one is None or other is None:
            return f" is only in the {'second' if one is None else 'first'}, {one or other}"
        if self.elements is None:
            return f" is {one} in the first and {other} in the second"
        count = f"{self.elements[0]:,} of {self.elements[1]:,} elements differ"
        if self.largest is None:
            return f", {one}: {count}, in their bits alone"
        return (
            f", {one}: {count}, by at most {self.largest.difference:.6g}, at {list(self.largest.index)} "
            f"({' and '.join(_numbers(*self.largest.values))})"
        )

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {"kind": "tensor", **finite_json(asdict(self))}


@frozen
class FieldDiffers:
    """A field of a JSON document; MISSING where only one has it."""

    file: str
    name: FieldName
    one: Any
    other: Any

    def __str__(self) -> str:
        what = f"  {self.file}: {told_name(self.name)}" if self.name else f"  {self.file}"
        if MISSING in (self.one, self.other):
            where, value = ("second", self.other) if self.one is MISSING else ("first", self.one)
            return f"{what} is only in the {where}" + (f", {_shown(value)}" if self.name else "")
        if isinstance(self.one, list) and isinstance(self.other, list):
            return f"{what}{self._elements(self.one, self.other)}"
        return f"{what} is {_shown(self.one)} and {_shown(self.other)}{self._apart()}"

    @staticmethod
    def _elements(one: list[Any], other: list[Any]) -> str:
        unequal = [index for index, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]]
        first = unequal[0]
        return (
            f": {len(unequal):,} of {len(one):,} elements differ, first [{first}], {_shown(one[first])} and "
            f"{_shown(other[first])}"
        )

    def _apart(self) -> str:
        both = (self.one, self.other)
        if any(isinstance(value, bool) or not isinstance(value, int | float) for value in both):
            return ""
        return f", {abs(self.one - self.other):.6g} apart"

    def document(self) -> dict[str, Any]:
        """For programs; a value that is missing is left out."""
        values = {name: value for name, value in (("one", self.one), ("other", self.other)) if value is not MISSING}
        return {"kind": "field", "file": self.file, "name": told_name(self.name), **finite_json(values)}


@frozen
class FileDiffers:
    """Any other file; the size is None where it is missing."""

    file: str
    one: int | None
    other: int | None

    def __str__(self) -> str:
        if self.one is None or self.other is None:
            return f"  {self.file} is only in the {'second' if self.one is None else 'first'}"
        return f"  {self.file} holds other bytes: {self.one:,} in the first, {self.other:,} in the second"

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {"kind": "file", **asdict(self)}


def _numbers(*values: Any) -> tuple[str, ...]:
    """Each value in as few digits as tell them apart, and as tell every float32 from the next."""
    short = tuple(f"{value:.9g}" if isinstance(value, float) else repr(value) for value in values)
    return short if len(set(short)) == len(values) else tuple(map(repr, values))


def _shown(value: Any) -> str:
    text = json.dumps(finite_json(value))
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
