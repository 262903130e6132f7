"""Exportable objects that hold numpy arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from hexloop.domain.json_documents import json_part, json_value
from hexloop.ports.state import Part

TYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "?",
}
NAMES = {np.dtype(code): name for name, code in TYPES.items()}


def part_of(name: str, array: np.ndarray[Any, Any]) -> Part:
    """Return an array as one part."""
    data = array.tobytes()
    return Part(name, NAMES[array.dtype], array.shape, 0, array.size, lambda: memoryview(data))


def array_of(part: Part) -> np.ndarray[Any, Any]:
    """Return the array in a part."""
    return np.frombuffer(part.read(), TYPES[part.dtype]).reshape(part.shape)


class Keeper:
    """Exportable that holds arrays and JSON values."""

    def __init__(
        self, arrays: dict[str, np.ndarray[Any, Any]] | None = None, values: dict[str, Any] | None = None
    ) -> None:
        self.arrays = dict(arrays or {})
        self.values = dict(values or {})
        self.loads = 0

    def export(self) -> Iterator[Part]:
        """Export arrays and values."""
        for name, array in self.arrays.items():
            yield part_of(name, array)
        for name, value in self.values.items():
            yield json_part(name, value)

    def load(self, parts: Iterable[Part]) -> None:
        """Load the parts with the names of the stored arrays and values."""
        found = {part.name: part for part in parts}
        if found.keys() != self.arrays.keys() | self.values.keys():
            raise ValueError(f"There are {sorted(found)}.")
        self.loads += 1
        self.arrays = {name: array_of(found[name]) for name in self.arrays}
        self.values = {name: json_value(found[name]) for name in self.values}


def weights() -> dict[str, np.ndarray[Any, Any]]:
    """Return tensors of several dtypes and shapes, including empty ones and scalars."""
    random = np.random.default_rng(0)
    return {
        "embedding.weight": random.normal(size=(7, 5)).astype("<f4"),
        "flags": np.array([True, False, True]),
        "half": random.normal(size=(3,)).astype("<f2"),
        "steps": np.array(17, "<i8"),
        "none": np.zeros((0, 4), "<f4"),
        "double": random.normal(size=(2, 3, 4)),
    }


def blank(keeper: Keeper) -> Keeper:
    """Return a keeper with the same names and empty values."""
    return Keeper({name: np.zeros_like(array) for name, array in keeper.arrays.items()}, dict.fromkeys(keeper.values))


def assert_equal(one: dict[str, np.ndarray[Any, Any]], other: dict[str, np.ndarray[Any, Any]]) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert array.dtype == other[name].dtype
        np.testing.assert_array_equal(array, other[name])
