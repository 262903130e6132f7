"""Collecting what many batches gave into arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from hexloop.adapters.evaluator.torch.arrays import Array, ArrayStore, MemoryArrays, RowBuffer
from hexloop.domain.errors import DataError

NUMBERS = np.ndarray | np.generic | int | float
"""What goes into an array, besides tensors."""

MOST_BYTES = 1 << 26
"""So much of a tensor waits on the device before it is moved to the host, where nobody says after how many batches."""

MOST_TENSORS = 4096
"""As many tensors wait on the device at most, however small; each takes an allocation."""


class Collected(Protocol):
    """What each batch gave: a tensor of shape (rows, ...), or tuples, lists and mappings of them."""

    def add(self, batch: Any, samples: int) -> None:
        """Keep what a batch of so many samples gave. Raises DataError where it is unlike what earlier ones gave."""
        ...

    def to_host(self) -> None:
        """Move what is still on the device, and free the device of it."""
        ...

    def result(self) -> Any:
        """Everything, in arrays; None where there was nothing. To be asked once."""
        ...


class Joined:
    """Everything in arrays of shape (samples, ...), in the tuples, lists and mappings in which the first batch came.

    What is no tensor, array or number is kept in a list: an entry a batch, or an entry a row where a batch gives a list
    of such things. expected: how many samples there will be; 0 where nobody knows. room: where the arrays are kept.
    waits: tensors stay on their device until `to_host`, however many they are.
    """

    def __init__(self, room: ArrayStore | None = None, expected: int = 0, waits: bool = False) -> None:
        self._room, self._expected, self._waits = room or MemoryArrays(), expected, waits
        self._parts: Collected | None = None

    def add(self, batch: Any, samples: int) -> None:
        """Keep one batch."""
        if self._parts is None:
            self._parts = self._parts_for(batch, samples)
        self._parts.add(batch, samples)

    def to_host(self) -> None:
        """Move what is still on the device."""
        if self._parts is not None:
            self._parts.to_host()

    def result(self) -> Any:
        """All arrays."""
        return None if self._parts is None else self._parts.result()

    def _parts_for(self, value: Any, samples: int) -> Collected:
        if isinstance(value, Tensor | NUMBERS):
            rows = len(value) if isinstance(value, Tensor | np.ndarray) and value.ndim else 1
            return _Tensors(RowBuffer(self._room, self._expected if rows == samples else 0), self._waits)
        if isinstance(value, Mapping):
            return _Named({name: self._parts_for(each, samples) for name, each in value.items()}, value)
        if isinstance(value, tuple | list) and not _is_row_of_objects(value):
            return _Several([self._parts_for(each, samples) for each in value], value)
        return _Objects()


class InBatches:
    """A list with what each batch gave, in arrays of its own."""

    def __init__(self) -> None:
        self._batches: list[Any] = []
        self._moved = 0

    def add(self, batch: Any, samples: int) -> None:
        """Keep one batch where it is."""
        self._batches.append(batch)

    def to_host(self) -> None:
        """Make arrays of what was added since."""
        for index in range(self._moved, len(self._batches)):
            self._batches[index] = to_arrays(self._batches[index])
        self._moved = len(self._batches)

    def result(self) -> Any:
        """The list."""
        self.to_host()
        return self._batches or None


class _Tensors:
    """Tensors, which wait on their device, and then their rows."""

    def __init__(self, rows: RowBuffer, waits: bool) -> None:
        self._rows, self._waits = rows, waits
        self._waiting: list[Tensor] = []
        self._bytes = 0

    def add(self, batch: Any, samples: int) -> None:
        if not isinstance(batch, Tensor):
            if not isinstance(batch, NUMBERS):
                raise _unlike(batch, np.empty(0))
            self._rows.add(np.atleast_1d(np.asarray(batch)))
            return
        if batch.is_cpu:
            self._rows.add(to_array(batch))
            return
        self._waiting.append(batch.detach() if batch.ndim else batch.detach().reshape(1))
        self._bytes += batch.nbytes
        if not self._waits and (self._bytes >= MOST_BYTES or len(self._waiting) >= MOST_TENSORS):
            self.to_host()

    def to_host(self) -> None:
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        if len({(each.shape[1:], each.dtype) for each in waiting}) == 1:
            waiting = [torch.cat(waiting)]  # moved at once
        for tensor in waiting:
            self._rows.add(to_array(tensor))

    def result(self) -> Any:
        self.to_host()
        return self._rows.joined()


class _Several:
    """A tuple or a list."""

    def __init__(self, parts: list[Collected], like: Any) -> None:
        self._parts, self._like = parts, like

    def add(self, batch: Any, samples: int) -> None:
        if type(batch) is not type(self._like) or len(batch) != len(self._parts):
            raise _unlike(batch, self._like)
        for part, value in zip(self._parts, batch, strict=True):
            part.add(value, samples)

    def to_host(self) -> None:
        for part in self._parts:
            part.to_host()

    def result(self) -> Any:
        return sequence_like(self._like, [part.result() for part in self._parts])


class _Named:
    """A mapping."""

    def __init__(self, parts: dict[Any, Collected], like: Any) -> None:
        self._parts, self._like = parts, like

    def add(self, batch: Any, samples: int) -> None:
        if not isinstance(batch, Mapping) or batch.keys() != self._parts.keys():
            raise _unlike(batch, self._like)
        for name, part in self._parts.items():
            part.add(batch[name], samples)

    def to_host(self) -> None:
        for part in self._parts.values():
            part.to_host()

    def result(self) -> Any:
        return mapping_like(self._like, {name: part.result() for name, part in self._parts.items()})


class _Objects:
    """What is in no tensor. Nothing but None comes out as None."""

    def __init__(self) -> None:
        self._found: list[Any] = []

    def add(self, batch: Any, samples: int) -> None:
        if isinstance(batch, tuple | list):
            self._found.extend(batch)
        else:
            self._found.append(batch)

    def to_host(self) -> None:
        pass

    def result(self) -> Any:
        return None if all(each is None for each in self._found) else self._found


def to_arrays(batch: Any) -> Any:
    """The batch with arrays of one dimension or more in place of tensors."""
    if isinstance(batch, Tensor):
        return to_array(batch)
    if isinstance(batch, Mapping):
        return mapping_like(batch, {name: to_arrays(value) for name, value in batch.items()})
    if isinstance(batch, tuple | list):
        return sequence_like(batch, list(map(to_arrays, batch)))
    return batch


def to_array(tensor: Tensor) -> Array:
    """An array of one dimension or more, (rows, ...); bfloat16, which numpy does not have, becomes float32."""
    tensor = tensor.detach()
    if not tensor.is_cpu:
        tensor = tensor.cpu()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    array: Array = tensor.numpy()
    return array if array.ndim else array.reshape(1)


def _is_row_of_objects(values: Any) -> bool:
    """Whether a tuple or list, not empty, holds one thing a row that is no tensor, and holds nothing else."""
    return len(values) > 0 and not any(
        isinstance(each, Tensor | np.ndarray | Mapping | tuple | list) for each in values
    )


def sequence_like(like: Any, values: list[Any]) -> Any:
    """A tuple or list of the kind of `like`."""
    return type(like)(*values) if hasattr(like, "_fields") else type(like)(values)


def mapping_like(like: Any, values: dict[Any, Any]) -> Any:
    """A mapping of the kind of `like`, where that can be made from a dictionary."""
    try:
        return type(like)(values)
    except TypeError:
        return values


def _unlike(batch: Any, like: Any) -> DataError:
    return DataError(
        f"A batch gave {_described(batch)}, and an earlier one {_described(like)}, which cannot be joined; let the "
        "model return the same of every batch, or set eval_do_concat_batches=False."
    )


def _described(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} of {', '.join(map(str, value))}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"
