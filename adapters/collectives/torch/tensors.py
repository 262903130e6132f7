"""Tensors of all processes, exchanged on their device."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from hexloop.domain.errors import DataError

MOST_DIMENSIONS = 8

NUMERIC = (Tensor, np.ndarray, np.generic, int, float)
"""What is sent as a tensor."""


_HOST_GROUPS: dict[int, Any] = {}
"""The group for host tensors of each default group, by the identity of the latter."""


def host_group(timeout: float) -> Any:
    """Return a group of all processes for host tensors. The first call is collective and creates it."""
    default = id(dist.group.WORLD)
    if default not in _HOST_GROUPS:
        _HOST_GROUPS[default] = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
    return _HOST_GROUPS[default]


class TensorRanks:
    """Implements the evaluator's `RankGatherer` over torch.distributed's default group."""

    def __init__(self, device: torch.device | str) -> None:
        self._size = dist.get_world_size()
        self._device = torch.device(device)

    def parts(self, values: Any, rows: int) -> list[tuple[Any, int]]:
        """Return the nested tensors of every process, in order of rank, with their number of rows.

        Tensors may differ in all sizes, but not in the number of dimensions. Lists of strings and the like are sent as
        JSON. Raises DataError if JSON cannot represent them.
        """
        leaves = list(_leaves(values))
        tensors = [torch.as_tensor(leaf) for leaf in leaves if isinstance(leaf, NUMERIC)]
        own = [tensor.reshape(tensor.shape or (1,)).contiguous() for tensor in tensors]
        shapes = self._shapes(own, rows)
        gathered = [self._gather_padded(leaf, [sizes[at] for sizes, _ in shapes]) for at, leaf in enumerate(own)]
        objects = self._objects([leaf for leaf in leaves if not isinstance(leaf, NUMERIC)])
        found = []
        for rank, (_, count) in enumerate(shapes):
            numeric, other = iter([each[rank] for each in gathered]), iter(objects[rank])
            everything = (next(numeric if isinstance(leaf, NUMERIC) else other) for leaf in leaves)
            found.append((_rebuilt(values, everything), count))
        return found

    def loss_weights(self, rows: Sequence[int]) -> list[int]:
        """Return the weight of each process's mean loss: its rows."""
        return list(rows)

    def each(self, value: Tensor) -> list[Tensor]:
        """Return every process's tensor; all have the same shape."""
        found = [torch.empty_like(value) for _ in range(self._size)]
        dist.all_gather(found, value.contiguous())
        return found

    def total(self, value: Tensor) -> Tensor:
        """Return the sum of all processes' tensors, which have the same shape."""
        found = value.clone()
        dist.all_reduce(found)
        return found

    def _shapes(self, leaves: list[Tensor], rows: int) -> list[tuple[list[list[int]], int]]:
        """Return the tensor shapes and the number of rows of each process."""
        described = [rows]
        for leaf in leaves:
            described += [leaf.ndim, *leaf.shape, *[0] * (MOST_DIMENSIONS - leaf.ndim)]
        found = []
        for answer in self.each(torch.tensor(described, device=self._device)):
            count, *numbers = answer.tolist()
            step = MOST_DIMENSIONS + 1
            shapes = [numbers[at + 1 : at + 1 + numbers[at]] for at in range(0, len(numbers), step)]
            found.append((shapes, count))
        return found

    def _gather_padded(self, own: Tensor, shapes: list[list[int]]) -> list[Tensor]:
        """Return every process's tensor, in its own shape."""
        widest = [max(sizes) for sizes in zip(*shapes, strict=True)]
        missing = [wide - size for wide, size in zip(widest, own.shape, strict=True)]
        sent = own.to(self._device)
        sent = sent.to(torch.uint8) if sent.dtype is torch.bool else sent
        if any(missing):
            sent = pad(sent, [end for size in reversed(missing) for end in (0, size)])
        trimmed = (each[tuple(map(slice, shape))] for each, shape in zip(self.each(sent), shapes, strict=True))
        return [each.to(own.dtype) for each in trimmed]

    def _objects(self, lists: list[Any]) -> list[list[Any]]:
        """Return every process's lists."""
        if not lists:
            return [[] for _ in range(self._size)]
        try:
            sent = json.dumps(lists).encode()
        except (TypeError, ValueError) as error:
            raise DataError(
                f"The predictions contain objects that cannot be sent to the other processes ({error}); let "
                "preprocess_logits_for_metrics return tensors, numbers and strings."
            ) from error
        own = torch.frombuffer(bytearray(sent), dtype=torch.uint8).to(self._device)
        lengths = [int(each) for each in self.each(torch.tensor([len(sent)], device=self._device))]
        received = self.each(pad(own, (0, max(lengths) - len(sent))))
        trimmed = (each[:length] for each, length in zip(received, lengths, strict=True))
        return [json.loads(each.cpu().numpy().tobytes()) for each in trimmed]


def _is_list_of_objects(values: Any) -> bool:
    """Return whether `values` is a non-empty list with one non-tensor object per row."""
    inner = (Tensor, np.ndarray, Mapping, tuple, list)
    return isinstance(values, list | tuple) and len(values) > 0 and not any(isinstance(each, inner) for each in values)


def _leaves(values: Any) -> Iterator[Any]:
    """Yield the tensors, numbers and lists of objects in a nested value, in order."""
    if isinstance(values, NUMERIC) or _is_list_of_objects(values):
        yield values
    elif isinstance(values, str):
        yield [values]
    elif isinstance(values, Mapping):
        for value in values.values():
            yield from _leaves(value)
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _leaves(value)


def _rebuilt(values: Any, leaves: Iterator[Any]) -> Any:
    """Return the same nested value with other leaves."""
    if isinstance(values, (*NUMERIC, str)) or _is_list_of_objects(values):
        return next(leaves)
    if isinstance(values, Mapping):
        named = {name: _rebuilt(value, leaves) for name, value in values.items()}
        return named if type(values) is dict else type(values)(named)  # type: ignore[call-arg]
    if isinstance(values, tuple) and hasattr(values, "_fields"):
        return type(values)(*(_rebuilt(value, leaves) for value in values))
    if isinstance(values, list | tuple):
        return type(values)(_rebuilt(value, leaves) for value in values)
    return values
