"""The results of an evaluation, and the collection of predictions and labels of many batches into arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from hexloop.adapters.evaluator.torch.arrays import Array, ArrayStore, MemoryArrays, RowBuffer
from hexloop.domain.errors import DataError

NUMBERS = np.ndarray | np.generic | int | float
"""The types, besides tensors, that are collected into arrays."""

MOST_BYTES = 1 << 26
"""The bytes of tensors that may wait on the device before they are moved to the host, unless `to_host` decides."""

MOST_TENSORS = 4096
"""The number of tensors that may wait on the device, however small; each takes an allocation."""


class EvalPrediction:
    """The argument of `compute_metrics`: arrays of shape (samples, ...), or tuples and dictionaries of them.

    Uneven second dimensions are padded with -100. Unpacks as `(predictions, label_ids[, inputs][, losses])`.

    Args:
        predictions: the model's outputs except its loss.
        label_ids: the labels.
        inputs: the inputs, if `include_for_metrics` asks for them; else None.
        losses: the loss of each sample, if `include_for_metrics` asks for them; else None.
    """

    def __init__(self, predictions: Any, label_ids: Any, inputs: Any = None, losses: Any = None) -> None:
        self.predictions = predictions
        self.label_ids = label_ids
        self.inputs = inputs
        self.losses = losses

    @property
    def elements(self) -> tuple[Any, ...]:
        """Predictions and labels, and inputs and losses if there are any."""
        further = tuple(value for value in (self.inputs, self.losses) if value is not None)
        return (self.predictions, self.label_ids, *further)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.elements)

    def __getitem__(self, idx: int) -> Any:
        if not 0 <= idx < len(self.elements):
            raise IndexError(f"Index {idx} is out of range: EvalPrediction has {len(self.elements)} elements.")
        return self.elements[idx]


class Collector(Protocol):
    """Collects a value of each batch: a tensor of shape (rows, ...), or tuples, lists and mappings of them."""

    def add(self, batch: Any, samples: int) -> None:
        """Add the value of a batch of `samples` rows. Raises DataError if it cannot be joined with earlier ones."""
        ...

    def to_host(self) -> None:
        """Move to the host what is still on the device."""
        ...

    def result(self) -> Any:
        """Return everything as arrays; None if nothing was added. Call it once."""
        ...


class JoinedCollector:
    """Collects arrays of shape (samples, ...), in the same structure of tuples, lists and mappings as the first batch.

    Values other than tensors, arrays and numbers are collected in a list: one entry per batch, or one per row if the
    batch has a list of such values. What has no meaning when joined position by position, such as a list with a
    dictionary for each row, is collected in a list with an entry per batch.
    store: where the arrays are stored. expected: the number of samples; 0 if unknown.
    waits: tensors stay on their device until `to_host` is called, however many there are.
    """

    def __init__(self, store: ArrayStore | None = None, expected: int = 0, waits: bool = False) -> None:
        self._store, self._expected, self._waits = store or MemoryArrays(), expected, waits
        self._parts: Collector | None = None

    def add(self, batch: Any, samples: int) -> None:
        """Add the value of one batch."""
        if self._parts is None:
            self._parts = self._parts_for(batch, samples)
        self._parts.add(batch, samples)

    def to_host(self) -> None:
        """Move to the host what is still on the device."""
        if self._parts is not None:
            self._parts.to_host()

    def result(self) -> Any:
        """Return all arrays."""
        return None if self._parts is None else self._parts.result()

    def _parts_for(self, value: Any, samples: int) -> Collector:
        if isinstance(value, Tensor | NUMBERS):
            rows = len(value) if isinstance(value, Tensor | np.ndarray) and value.ndim else 1
            return _Tensors(RowBuffer(self._store, self._expected if rows == samples else 0), self._waits)
        if isinstance(value, tuple | list) and _is_list_of_rows(value, samples):
            return _Batches()
        if isinstance(value, Mapping) or (isinstance(value, tuple | list) and not _is_row_of_objects(value)):
            parts = value.items() if isinstance(value, Mapping) else enumerate(value)
            return _Nested({name: self._parts_for(each, samples) for name, each in parts}, value)
        return _Objects()


class BatchCollector:
    """Collects a list with the arrays of each batch."""

    def __init__(self) -> None:
        self._batches: list[Any] = []
        self._moved = 0

    def add(self, batch: Any, samples: int) -> None:
        """Add the value of one batch, and leave it on its device."""
        self._batches.append(batch)

    def to_host(self) -> None:
        """Convert what was added since the last call to arrays."""
        for index in range(self._moved, len(self._batches)):
            self._batches[index] = map_tensors(to_array, self._batches[index])
        self._moved = len(self._batches)

    def result(self) -> Any:
        """Return the list."""
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
                raise _mismatch(batch, np.empty(0))
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
            waiting = [torch.cat(waiting)]  # one copy instead of many
        for tensor in waiting:
            self._rows.add(to_array(tensor))

    def result(self) -> Any:
        self.to_host()
        return self._rows.joined()


class _Nested:
    """A mapping, a tuple or a list; the parts of the latter are named by their indices."""

    def __init__(self, parts: dict[Any, Collector], like: Any) -> None:
        self._parts, self._like = parts, like

    def add(self, batch: Any, samples: int) -> None:
        if isinstance(self._like, Mapping):
            fits = isinstance(batch, Mapping) and batch.keys() == self._parts.keys()
        else:
            fits = type(batch) is type(self._like) and len(batch) == len(self._parts)
        if not fits:
            raise _mismatch(batch, self._like)
        for name, part in self._parts.items():
            part.add(batch[name], samples)

    def to_host(self) -> None:
        for part in self._parts.values():
            part.to_host()

    def result(self) -> Any:
        found = {name: part.result() for name, part in self._parts.items()}
        is_mapping = isinstance(self._like, Mapping)
        return mapping_like(self._like, found) if is_mapping else sequence_like(self._like, list(found.values()))


class _Objects:
    """Values that are not tensors or numbers. If all are None, the result is None."""

    def __init__(self) -> None:
        self._found: list[Any] = []

    def add(self, batch: Any, samples: int) -> None:
        self._found += batch if isinstance(batch, tuple | list) else [batch]

    def to_host(self) -> None:
        pass

    def result(self) -> Any:
        return None if all(each is None for each in self._found) else self._found


class _Batches:
    """Values that are kept batch by batch, as arrays."""

    def __init__(self) -> None:
        self._found: list[Any] = []

    def add(self, batch: Any, samples: int) -> None:
        self._found.append(map_tensors(to_array, batch))

    def to_host(self) -> None:
        pass

    def result(self) -> Any:
        return self._found


def map_tensors(change: Callable[[Tensor], Any], values: Any) -> Any:
    """Return the values, in the same structure, with `change` applied to each tensor."""
    if isinstance(values, Tensor):
        return change(values)
    if isinstance(values, Mapping):
        return mapping_like(values, {name: map_tensors(change, value) for name, value in values.items()})
    if isinstance(values, tuple | list):
        return sequence_like(values, [map_tensors(change, value) for value in values])
    return values


def to_array(tensor: Tensor) -> Array:
    """Return an array of shape (rows, ...); a scalar becomes one row, and bfloat16, which numpy lacks, float32."""
    tensor = tensor.detach()
    if not tensor.is_cpu:
        tensor = tensor.cpu()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    array: Array = tensor.numpy()
    return array if array.ndim else array.reshape(1)


def plain(value: Any) -> Any:
    """Convert nested scalars and arrays of numpy and torch to plain numbers and lists."""
    if isinstance(value, Tensor):
        value = to_array(value)
    if isinstance(value, np.generic | np.ndarray):
        return value.item() if value.size == 1 else value.tolist()
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return list(map(plain, value))
    return value


def _is_row_of_objects(values: Any) -> bool:
    """Return whether a tuple or list is not empty and contains one plain object per row, and nothing else."""
    return len(values) > 0 and not any(
        isinstance(each, Tensor | np.ndarray | Mapping | tuple | list) for each in values
    )


def _is_list_of_rows(values: list[Any] | tuple[Any, ...], samples: int) -> bool:
    """Return whether a sequence has an entry for each row: mappings, or tensors that do not have the batch's rows.

    The positions of other sequences have a meaning, such as the layers of a model.
    """
    if values and all(isinstance(each, Mapping) for each in values):
        return True
    of_tensors = isinstance(values, list) and all(isinstance(each, Tensor | np.ndarray) for each in values)
    return of_tensors and len(values) == samples and any(each.shape[:1] != (samples,) for each in values)


def sequence_like(like: Any, values: list[Any]) -> Any:
    """Return the values in a tuple or list of the same type as `like`."""
    return type(like)(*values) if hasattr(like, "_fields") else type(like)(values)


def mapping_like(like: Any, values: dict[Any, Any]) -> Any:
    """Return the values in a mapping of the same type as `like`, if that can be built from a dictionary."""
    try:
        return type(like)(values)
    except TypeError:
        return values


def _mismatch(batch: Any, like: Any) -> DataError:
    return DataError(
        f"A batch returned {_described(batch)}, and an earlier one {_described(like)}, which cannot be joined; let the "
        "model return the same structure for every batch, or set eval_do_concat_batches=False."
    )


def _described(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} of {', '.join(map(str, value))}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"
