"""Whoever keeps something between steps, in numpy."""

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
    """An array as one part."""
    data = array.tobytes()
    return Part(name, NAMES[array.dtype], array.shape, 0, array.size, lambda: memoryview(data))


def array_of(part: Part) -> np.ndarray[Any, Any]:
    """A part as an array."""
    return np.frombuffer(part.read(), TYPES[part.dtype]).reshape(part.shape)


class Keeper:
    """Keeps arrays and JSON values; an Exportable."""

    def __init__(
        self, arrays: dict[str, np.ndarray[Any, Any]] | None = None, values: dict[str, Any] | None = None
    ) -> None:
        self.arrays = dict(arrays or {})
        self.values = dict(values or {})
        self.loads = 0

    def export(self) -> Iterator[Part]:
        """Arrays and values."""
        for name, array in self.arrays.items():
            yield part_of(name, array)
        for name, value in self.values.items():
            yield json_part(name, value)

    def load(self, parts: Iterable[Part]) -> None:
        """Take what has the names of what is kept."""
        found = {part.name: part for part in parts}
        if found.keys() != self.arrays.keys() | self.values.keys():
            raise ValueError(f"There are {sorted(found)}.")
        self.loads += 1
        self.arrays = {name: array_of(found[name]) for name in self.arrays}
        self.values = {name: json_value(found[name]) for name in self.values}


def weights() -> dict[str, np.ndarray[Any, Any]]:
    """Tensors of several types and shapes, empty ones and scalars among them."""
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
    """One that keeps the same names, and nothing else."""
    return Keeper({name: np.zeros_like(array) for name, array in keeper.arrays.items()}, dict.fromkeys(keeper.values))


def assert_equal(one: dict[str, np.ndarray[Any, Any]], other: dict[str, np.ndarray[Any, Any]]) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert array.dtype == other[name].dtype
        np.testing.assert_array_equal(array, other[name])
