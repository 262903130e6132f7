"""Functions of batches (tensors in mappings, lists and tuples): move, copy, count, slice and fingerprint them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor

Transfer = Callable[[Any], Any]
"""A function that moves a batch to a device."""


def transfer_to(device: torch.device | str, non_blocking: bool = False) -> Transfer:
    """Return a function that moves the tensors of a batch to `device`; for the CPU, it returns the batch as it is."""
    target = torch.device(device)
    if target.type == "cpu":
        return unchanged

    def move(batch: Any) -> Any:
        if isinstance(batch, Tensor):
            return batch.to(target, non_blocking=non_blocking)
        return map_entries(move, batch)

    return move


def unchanged(batch: Any) -> Any:
    """Return the batch as it is."""
    return batch


def map_entries(function: Callable[[Any], Any], batch: Any) -> Any:
    """Return a batch like `batch` with the results of `function` for the entries of a mapping, list or tuple."""
    if isinstance(batch, Mapping):
        return _mapping_like(batch, {name: function(value) for name, value in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(function, batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map(function, batch))
    return batch


def shallow_copy(batch: Any) -> Any:
    """Return a new mapping or list of the same tensors, which the receiver may change; other batches unchanged."""
    if isinstance(batch, dict | list) or (isinstance(batch, Mapping) and hasattr(batch, "__copy__")):
        return copy(batch)
    if isinstance(batch, Mapping):
        with suppress(TypeError):  # a type whose constructor does not take a dictionary
            return _mapping_like(batch, dict(batch))
    return batch


def row_count(batch: Any) -> int:
    """Return the samples in a batch; 0 if they cannot be told.

    They are the entries of a list of mappings; otherwise the length of the first dimension of the first tensor; without
    a tensor, the length of the first list of strings.
    """
    return _tensor_rows(batch) or _string_rows(batch)


def _tensor_rows(batch: Any) -> int:
    if isinstance(batch, Tensor):
        return batch.shape[0] if batch.ndim else 0
    if is_list_of(Mapping, batch):
        return len(batch)
    return next(filter(None, map(_tensor_rows, _entries(batch))), 0)


def _string_rows(batch: Any) -> int:
    return len(batch) if is_list_of(str, batch) else next(filter(None, map(_string_rows, _entries(batch))), 0)


def _entries(batch: Any) -> Iterable[Any]:
    if isinstance(batch, (dict, Mapping)):
        return batch.values()
    return batch if isinstance(batch, list | tuple) else ()


def is_list_of(kind: type[Any], batch: Any) -> bool:
    """Return whether a batch is a list of samples of this type, from a collate function that changes nothing."""
    return isinstance(batch, list) and bool(batch) and all(isinstance(each, kind) for each in batch)


def slice_rows(batch: Any, wanted: range, rows: int) -> Any:
    """Return some rows of a batch of `rows` rows: of each tensor, and of each list with one value per row."""
    if isinstance(batch, Tensor):
        return batch[wanted.start : wanted.stop] if batch.ndim else batch
    if isinstance(batch, Mapping):
        return _mapping_like(batch, {name: slice_rows(value, wanted, rows) for name, value in batch.items()})
    if isinstance(batch, list | tuple):
        is_of_rows = not any(isinstance(each, Tensor | Mapping | list | tuple) for each in batch)
        if len(batch) == rows and (is_of_rows or is_list_of(Mapping, batch)):
            return batch[wanted.start : wanted.stop]
        parts: Sequence[Any] = [slice_rows(value, wanted, rows) for value in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch


def _mapping_like(batch: Mapping[str, Any], values: dict[str, Any]) -> Any:
    """Return the values in a mapping of the same type as `batch`, which must be constructible from a dictionary."""
    return values if type(batch) is dict else type(batch)(values)  # type: ignore[call-arg]


def batch_fingerprint(batch: Any) -> str | None:
    """Return 16 hexadecimal digits (xxh3-64) of a batch's values, types and shapes; None if some are on a device."""
    digest = xxhash.xxh3_64()
    for name, leaf in _leaves("", batch):
        if isinstance(leaf, Tensor):
            if leaf.device.type != "cpu":
                return None
            digest.update(f"{name} {leaf.dtype} {tuple(leaf.shape)}\n".encode())
            digest.update(leaf.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        elif isinstance(leaf, np.ndarray) and leaf.dtype != object:
            digest.update(f"{name} {leaf.dtype} {leaf.shape}\n".encode())
            digest.update(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data)
        else:
            plain = leaf is None or isinstance(leaf, np.generic | str | bytes | int | float)
            digest.update(f"{name} {repr(leaf) if plain else type(leaf).__name__}\n".encode())
    return digest.hexdigest()


def is_comparable(batch: Any) -> bool:
    """Return whether the fingerprint of a batch covers all its values."""
    kinds = (Tensor, np.number, np.bool_, str, bytes, int, float)
    return all(
        leaf is None or isinstance(leaf, kinds) or (isinstance(leaf, np.ndarray) and leaf.dtype != object)
        for _, leaf in _leaves("", batch)
    )


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a nested value, in an order that does not depend on the insertion order of its mappings."""
    inner: Iterable[tuple[Any, Any]]
    if isinstance(value, Mapping):
        inner = sorted(value.items(), key=lambda item: str(item[0]))
    elif isinstance(value, list | tuple):
        inner = enumerate(value)
    else:
        yield name, value
        return
    for key, each in inner:
        yield from _leaves(f"{name}/{key}", each)
