"""Tensors of all processes, on the device that they lie on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
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
"""What travels as a tensor."""


_HOST_GROUPS: dict[int, Any] = {}
"""The group for tensors of the host beside each default group, by the latter's identity."""


def host_group(timeout: float) -> Any:
    """A group of all processes that carries tensors of the host. Collective at the first call; later the same."""
    default = id(dist.group.WORLD)
    if default not in _HOST_GROUPS:
        _HOST_GROUPS[default] = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
    return _HOST_GROUPS[default]


class TensorRanks:
    """Answers `hexloop.adapters.evaluator.torch.evaluator.RankGatherer` over torch.distributed's default group."""

    def __init__(self, device: torch.device | str) -> None:
        self._size = dist.get_world_size()
        self._device = torch.device(device)

    def parts(self, values: Any, rows: int) -> list[tuple[Any, int]]:
        """What every process has of nested tensors, in the order of ranks, and of how many rows.

        Tensors may differ in all their sizes, not in their number of dimensions. Lists of texts and the like travel as
        JSON. Raises DataError where JSON cannot say them.
        """
        leaves = list(_leaves(values))
        own = [_vector(leaf).contiguous() for leaf in leaves if isinstance(leaf, NUMERIC)]
        shapes = self._shapes(own, rows)
        tensors = [self._cut(leaf, [sizes[at] for sizes, _ in shapes]) for at, leaf in enumerate(own)]
        objects = self._objects([leaf for leaf in leaves if not isinstance(leaf, NUMERIC)])
        found = []
        for rank, (_, count) in enumerate(shapes):
            numeric, other = iter([each[rank] for each in tensors]), iter(objects[rank])
            everything = (next(numeric if isinstance(leaf, NUMERIC) else other) for leaf in leaves)
            found.append((_rebuilt(values, everything), count))
        return found

    def each(self, value: Tensor) -> list[Tensor]:
        """Every process's tensor of one shape."""
        found = [torch.empty_like(value) for _ in range(self._size)]
        dist.all_gather(found, value.contiguous())
        return found

    def total(self, value: Tensor) -> Tensor:
        """The sum of every process's tensor of one shape."""
        found = value.clone()
        dist.all_reduce(found)
        return found

    def _shapes(self, leaves: list[Tensor], rows: int) -> list[tuple[list[list[int]], int]]:
        """For each process the shapes of its tensors, and its rows."""
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

    def _cut(self, own: Tensor, shapes: list[list[int]]) -> list[Tensor]:
        """Every process's tensor, of its own shape."""
        widest = [max(sizes) for sizes in zip(*shapes, strict=True)]
        missing = [wide - size for wide, size in zip(widest, own.shape, strict=True)]
        sent = own.to(self._device)
        sent = sent.to(torch.uint8) if sent.dtype is torch.bool else sent
        if any(missing):
            sent = pad(sent, [end for size in reversed(missing) for end in (0, size)])
        cut = (each[tuple(map(slice, shape))] for each, shape in zip(self.each(sent), shapes, strict=True))
        return [each.to(own.dtype) for each in cut]

    def _objects(self, lists: list[Any]) -> list[list[Any]]:
        """Every process's lists."""
        if not lists:
            return [[] for _ in range(self._size)]
        try:
            said = json.dumps(lists).encode()
        except (TypeError, ValueError) as error:
            raise DataError(
                f"The predictions hold what cannot be sent to the other processes ({error}); let "
                "preprocess_logits_for_metrics give tensors, numbers and texts."
            ) from error
        own = torch.frombuffer(bytearray(said), dtype=torch.uint8).to(self._device)
        lengths = [int(each) for each in self.each(torch.tensor([len(said)], device=self._device))]
        heard = self.each(pad(own, (0, max(lengths) - len(said))))
        return [json.loads(each[:length].cpu().numpy().tobytes()) for each, length in zip(heard, lengths, strict=True)]


def _vector(leaf: Any) -> Tensor:
    """A tensor of one dimension or more."""
    tensor = leaf if isinstance(leaf, Tensor) else torch.as_tensor(leaf)
    return tensor.reshape(-1) if tensor.ndim == 0 else tensor


def _is_list_of_objects(values: Any) -> bool:
    """Whether a list, not empty, holds one thing a row that is no tensor."""
    inner = (Tensor, np.ndarray, Mapping, tuple, list)
    return isinstance(values, list | tuple) and len(values) > 0 and not any(isinstance(each, inner) for each in values)


def _leaves(values: Any) -> Iterator[Any]:
    """The tensors, numbers and lists of objects that something is nested of, in order."""
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
    """The same nest with other leaves."""
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
