"""Tensors of all processes, exchanged on their device."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from enum import IntEnum
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from hexloop.domain.errors import CollectiveError, DataError

NUMERIC = (Tensor, np.ndarray, np.generic, int, float)
"""What is sent as a tensor."""

SIZES = 59
"""How many sizes of tensors a header has space for. More are sent in a message of their own."""

LONGEST_CAUSE = 2000
"""Characters of an error that are sent to the other processes."""


class Announced(IntEnum):
    """What a header announces: a part of a batch, that there are no more batches, or a failure."""

    PART = 0
    END = 1
    FAILURE = 2


_GROUPS: dict[tuple[int, str | None, tuple[int, ...]], Any] = {}
"""The groups that were made: by the identity of the default group, back end and ranks."""


def host_group(timeout: float, ranks: Sequence[int]) -> Any:
    """Return a group of these ranks for host tensors. The first call is collective over them and creates it."""
    return _group("gloo", ranks, timeout=timedelta(seconds=timeout))


def device_group(ranks: Sequence[int]) -> Any:
    """Return a group of these ranks for tensors on the device; see `host_group`."""
    return _group(None, ranks)


def _group(backend: str | None, ranks: Sequence[int], **options: Any) -> Any:
    key = id(dist.group.WORLD), backend, tuple(ranks)
    if key not in _GROUPS:
        _GROUPS[key] = dist.new_group(list(ranks), backend=backend, use_local_synchronization=True, **options)
    return _GROUPS[key]


class TensorRanks:
    """Implements the evaluator's `RankGatherer` over a group of torch.distributed, by default that of all processes.

    `parts`, `finish` and `fail` exchange headers of one size first, so a process that fails or has fewer batches meets
    the others in the same operation, and all of them raise an error instead of waiting.

    announces: whether `fail` sends the failure. It must not if the model's forward waits for the other processes: they
    would be in another operation.
    """

    def __init__(self, device: torch.device | str, announces: bool = True, group: Any = None) -> None:
        self._group, self._size, self._rank = group, dist.get_world_size(group), dist.get_rank(group)
        self._device = torch.device(device)
        self._announces = announces
        self._batches = 0
        self._is_over = False

    def parts(self, values: Any, rows: int, loss: Tensor | None = None) -> list[tuple[Any, int, Tensor | None]]:
        """Return the nested tensors of every process, in order of rank, with their number of rows and their loss.

        Values may have another structure or other types and sizes on each process. Lists of strings and the like are
        sent as JSON. Raises DataError if JSON cannot represent them, or if another process has no more batches, and
        CollectiveError if another one failed.
        """
        own = (loss, values)
        tensors, objects = _split(own)
        text = self._json(objects)
        structure = repr(_structure(own, iter(tensors)))
        sizes = [size for each in tensors for size in each.shape]
        headers = self._headers(Announced.PART, rows, _digest(structure), len(text), sizes)
        self._batches += 1
        if len({header[2] for header in headers}) == 1:
            found = self._alike(own, tensors, text, headers)
        else:
            found = self._packed(own)
        return [(each, header[1], its_loss) for (its_loss, each), header in zip(found, headers, strict=True)]

    def finish(self) -> None:
        """Check that no process has another batch. Raises DataError, or CollectiveError if another one failed."""
        self._headers(Announced.END)

    def fail(self, error: Exception) -> None:
        """Report the error of this process, which the others raise. No-op if all have raised it already."""
        if self._announces and not self._is_over:
            logging.getLogger("hexloop").error("The evaluation fails on rank %d: %r", self._rank, error)
            self._report(error)

    def loss_weights(self, rows: Sequence[int]) -> list[int]:
        """Return the weight of each process's mean loss: its rows."""
        return list(rows)

    def each(self, value: Tensor) -> list[Tensor]:
        """Return every process's tensor; all have the same shape."""
        found = [torch.empty_like(value) for _ in range(self._size)]
        dist.all_gather(found, value.contiguous(), self._group)
        return found

    def total(self, value: Tensor) -> Tensor:
        """Return the sum of all processes' tensors, which have the same shape."""
        found = value.clone()
        dist.all_reduce(found, group=self._group)
        return found

    def _report(self, error: Exception) -> None:
        with suppress(RuntimeError):  # what the others raise; or they have ended
            self._headers(Announced.FAILURE, cause=f"{type(error).__name__}: {error}")

    # Headers

    def _headers(
        self, kind: Announced, rows: int = 0, digest: int = 0, text: int = 0, sizes: Sequence[int] = (), cause: str = ""
    ) -> list[list[int]]:
        """Return the header of each process: kind, rows, digest of the structure, length of the text, count, sizes.

        Raises an error, on all processes, unless all have a part or all are at the end.
        """
        encoded = cause[:LONGEST_CAUSE].encode()
        own = [kind, rows, digest, len(encoded) if kind is Announced.FAILURE else text, len(sizes), *sizes[:SIZES]]
        headers = self._numbers(own, 5 + SIZES)
        kinds = {header[0] for header in headers}
        if len(kinds) > 1 or Announced.FAILURE in kinds:
            self._is_over = True
            lengths = [header[3] if header[0] == Announced.FAILURE else 0 for header in headers]
            causes = [each.decode(errors="replace") for each in self._bytes(encoded, lengths)]
            raise self._error([header[0] for header in headers], causes)
        longest = max(header[4] for header in headers)
        if longest > SIZES:
            every = self._numbers(list(sizes), longest)
            return [[*header[:5], *more] for header, more in zip(headers, every, strict=True)]
        return headers

    def _error(self, kinds: Sequence[int], causes: Sequence[str]) -> Exception:
        """Return what to raise if the headers do not announce the same."""
        failed = [rank for rank, kind in enumerate(kinds) if kind == Announced.FAILURE]
        if failed:
            return CollectiveError(f"The evaluation failed on rank {failed[0]}: {causes[failed[0]]}")
        ended, more = kinds.index(Announced.END), kinds.index(Announced.PART)
        return DataError(
            f"Rank {ended} has {self._batches} batches to evaluate, and rank {more} has more, but all ranks must have "
            "the same number. Let every rank read the same data, of which hexloop gives each its share."
        )

    def _numbers(self, numbers: list[int], length: int) -> list[list[int]]:
        """Return every process's numbers, all padded to the same length."""
        own = torch.tensor(numbers + [0] * (length - len(numbers)), device=self._device)
        found: list[list[int]] = torch.stack(self.each(own)).tolist()
        return found

    # Contents

    def _json(self, objects: list[Any]) -> bytes:
        """Return objects as JSON, nothing for none. Raises DataError, and reports it: the others wait for a part."""
        try:
            return json.dumps(objects).encode() if objects else b""
        except (TypeError, ValueError) as error:
            refused = DataError(
                f"The predictions contain objects that cannot be sent to the other processes ({error}); let "
                "preprocess_logits_for_metrics return tensors, numbers and strings."
            )
            self._report(refused)
            raise refused from error

    def _alike(self, own: Any, tensors: list[Tensor], text: bytes, headers: list[list[int]]) -> list[Any]:
        """Return every process's values, which have the structure of this one's."""
        sizes = [iter(header[5:]) for header in headers]
        gathered = []
        for tensor in tensors:
            shapes = [[next(each) for _ in range(tensor.ndim)] for each in sizes]
            gathered.append(self._gather_padded(tensor, shapes))
        lengths = [header[3] for header in headers]
        texts = self._bytes(text, lengths) if max(lengths) else [b"[]"] * self._size
        found = []
        for rank, received in enumerate(texts):
            numeric, other = iter([each[rank] for each in gathered]), iter(json.loads(received))
            found.append(_rebuilt(own, numeric, other))
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

    def _packed(self, own: Any) -> list[Any]:
        """Return every process's values, whatever their structure."""
        tensors: list[Tensor] = []
        document = json.dumps(_node(own, tensors)).encode()
        data = [each.reshape(-1).view(torch.uint8).to(self._device) for each in tensors if each.numel()]
        joined = torch.cat(data) if data else torch.empty(0, dtype=torch.uint8, device=self._device)
        lengths = self._numbers([len(document), len(joined)], 2)
        documents = self._bytes(document, [length for length, _ in lengths])
        received = self.each(pad(joined, (0, max(length for _, length in lengths) - len(joined))))
        return [
            _from_node(json.loads(each), own, _Reader(part)) for each, part in zip(documents, received, strict=True)
        ]

    def _bytes(self, own: bytes, lengths: list[int]) -> list[bytes]:
        """Return every process's bytes, whose lengths are known."""
        sent = torch.frombuffer(bytearray(own), dtype=torch.uint8) if own else torch.empty(0, dtype=torch.uint8)
        received = self.each(pad(sent.to(self._device), (0, max(lengths) - len(own))))
        return [each[:length].cpu().numpy().tobytes() for each, length in zip(received, lengths, strict=True)]


def _digest(structure: str) -> int:
    return int.from_bytes(blake2b(structure.encode(), digest_size=7).digest())


# Nested values


def _split(values: Any) -> tuple[list[Tensor], list[Any]]:
    """Return the tensors and numbers in a nested value, as tensors, and the lists of objects, both in order."""
    leaves = list(_leaves(values))
    tensors = [_as_tensor(leaf) for leaf in leaves if isinstance(leaf, NUMERIC)]
    return tensors, [leaf for leaf in leaves if not isinstance(leaf, NUMERIC)]


def _as_tensor(leaf: Any) -> Tensor:
    """Return a contiguous tensor of at least one dimension."""
    tensor = torch.as_tensor(leaf).detach()
    return tensor.reshape(tensor.shape or (1,)).contiguous()


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


def _structure(values: Any, tensors: Iterator[Tensor]) -> Any:
    """Return what values of several processes must have in common to be exchanged tensor by tensor."""
    if isinstance(values, NUMERIC):
        tensor = next(tensors)
        return str(tensor.dtype), tensor.ndim
    if _is_list_of_objects(values):
        return "objects"
    if isinstance(values, Mapping):
        return {name: _structure(value, tensors) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [type(values).__name__, *(_structure(value, tensors) for value in values)]
    return type(values).__name__


def _rebuilt(values: Any, tensors: Iterator[Tensor], objects: Iterator[Any]) -> Any:
    """Return the same nested value with other tensors and objects."""
    if isinstance(values, NUMERIC):
        return next(tensors)
    if isinstance(values, str) or _is_list_of_objects(values):
        received = next(objects)
        return received[0] if isinstance(values, str) else received
    if isinstance(values, Mapping):
        return _mapping_like(values, {name: _rebuilt(value, tensors, objects) for name, value in values.items()})
    if isinstance(values, list | tuple):
        return _sequence_like(values, [_rebuilt(value, tensors, objects) for value in values])
    return values


def _node(values: Any, tensors: list[Tensor]) -> dict[str, Any]:
    """Return a nested value as a JSON document, and append its tensors to `tensors`."""
    if isinstance(values, NUMERIC):
        tensors.append(tensor := _as_tensor(values))
        return {"tensor": [str(tensor.dtype).removeprefix("torch."), *tensor.shape]}
    if isinstance(values, str) or _is_list_of_objects(values):
        return {"objects": values}
    if isinstance(values, Mapping):
        return {"mapping": [[name, _node(value, tensors)] for name, value in values.items()]}
    if isinstance(values, list | tuple):
        return {_sequence_name(values): [_node(value, tensors) for value in values]}
    return {"nothing": None}


def _sequence_name(values: list[Any] | tuple[Any, ...]) -> str:
    """Return whether a sequence is a "list" or a "tuple"."""
    return "list" if isinstance(values, list) else "tuple"


class _Reader:
    """Reads tensors one after the other from bytes."""

    def __init__(self, data: Tensor) -> None:
        self._data, self._at = data, 0

    def next(self, dtype: str, shape: Sequence[int]) -> Tensor:
        kind: torch.dtype = getattr(torch, dtype)
        start, self._at = self._at, self._at + int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        return self._data[start : self._at].clone().view(kind).reshape(tuple(shape))


def _from_node(node: dict[str, Any], like: Any, data: _Reader) -> Any:
    """Return the value of a document, in the types of `like` where it has the same structure."""
    ((kind, held),) = node.items()
    if kind == "tensor":
        return data.next(held[0], held[1:])
    if kind == "mapping":
        alike = like if isinstance(like, Mapping) else {}
        return _mapping_like(alike, {name: _from_node(each, alike.get(name), data) for name, each in held})
    if kind in ("list", "tuple"):
        own = list(like) if isinstance(like, list if kind == "list" else tuple) else []
        parts = (own[at] if at < len(own) else None for at in range(len(held)))
        values = [_from_node(each, part, data) for each, part in zip(held, parts, strict=True)]
        is_named = hasattr(like, "_fields") and len(own) == len(held)
        return _sequence_like(like, values) if is_named else values if kind == "list" else tuple(values)
    return held


def _mapping_like(like: Any, values: dict[Any, Any]) -> Any:
    return values if type(like) is dict else type(like)(values)


def _sequence_like(like: Any, values: list[Any]) -> Any:
    return type(like)(*values) if hasattr(like, "_fields") else type(like)(values)
