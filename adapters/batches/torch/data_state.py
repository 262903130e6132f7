"""The state that data keep of themselves, in JSON and tensors."""

from __future__ import annotations

import base64
import math
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from attrs import asdict, define, evolve, field, frozen
from torch import Tensor

from hexloop.domain.errors import DataError
from hexloop.domain.json_documents import json_part, json_value
from hexloop.ports.state import JSON, Part

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


@frozen
class DataState:
    """What a `state_dict` gave, copied: a JSON document, in which the tensors stand by their names.

    JSON's own null, booleans, finite numbers, texts and lists stand for themselves; everything else is an object with
    one name, that of its kind.
    """

    document: Any
    tensors: Mapping[str, Tensor]


def is_stateful(data: Any) -> bool:
    """Whether `data` can say where it stands, and be put there again, exactly.

    A shuffled stream of the library `datasets` cannot: its state leaves out the rows in its buffer.
    """
    can = callable(getattr(data, "state_dict", None)) and callable(getattr(data, "load_state_dict", None))
    return can and not _shuffles_in_a_buffer(data)


def encode_state(owner: object, state: Any) -> DataState:
    """A copy of the `state` that `owner` gave. Raises DataError where it holds what a checkpoint cannot."""
    tensors: dict[str, Tensor] = {}
    return DataState(_encode(state, (), tensors, type(owner).__name__), tensors)


def decode_state(state: DataState) -> Any:
    """What was captured, in tensors and arrays of its own."""
    return _decode(state.document, state.tensors)


def state_parts(name: str, state: DataState) -> Iterator[Part]:
    """The state as parts: the document under `name`, each tensor under its own."""
    yield json_part(name, state.document)
    for each, tensor in state.tensors.items():
        yield Part(each, NAMES[tensor.dtype], tuple(tensor.shape), 0, tensor.numel(), partial(_bytes_of, tensor))


def state_from_parts(name: str, parts: Iterable[Part]) -> DataState | None:
    """The state of which `parts_of` made these parts; None where there are none.

    Raises ValueError where a part is missing, unknown or not whole.
    """
    found = {part.name: part for part in parts}
    if not found:
        return None
    document = found.pop(name, None)
    if document is None or document.dtype != JSON:
        raise ValueError(f"The state of the data lacks its document {name!r}; there are {sorted(found)}.")
    value = json_value(document)
    wanted = set(_names(value))
    if wanted != found.keys():
        raise ValueError(f"The state of the data should have the tensors {sorted(wanted)}, found {sorted(found)}.")
    return DataState(value, {each: _tensor(part) for each, part in found.items()})


def tensor_from_bytes(data: Tensor, at: int, dtype: str, shape: Sequence[int]) -> tuple[Tensor, int]:
    """The tensor whose bytes begin at `at` in `data`, a vector of bytes, and where they end. It is a copy."""
    kind = DTYPES[dtype]
    end = at + math.prod(shape) * kind.itemsize
    return data[at:end].clone().view(kind).reshape(tuple(shape)), end


def _bytes_of(tensor: Tensor) -> memoryview:
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy() if tensor.numel() else b"")  # type: ignore[arg-type]


def _tensor(part: Part) -> Tensor:
    if part.dtype not in DTYPES or part.length != math.prod(part.shape):
        raise ValueError(f"The part {part.name!r} of the data's state is {part.dtype} of shape {part.shape}, cut.")
    tensor = torch.empty(part.shape, dtype=DTYPES[part.dtype])
    if part.length:
        data = torch.frombuffer(bytearray(part.read()), dtype=DTYPES[part.dtype])
        tensor.copy_(data.reshape(part.shape))
    return tensor


def _encode(value: Any, path: tuple[str, ...], tensors: dict[str, Tensor], owner: str) -> Any:
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if type(value) is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if type(value) in (dict, OrderedDict):
        pairs = [
            [_encode(key, (*path, "key"), tensors, owner), _encode(each, (*path, str(key)), tensors, owner)]
            for key, each in value.items()
        ]
        return {"dict": pairs}
    if type(value) in (list, tuple):
        items = [_encode(each, (*path, str(number)), tensors, owner) for number, each in enumerate(value)]
        return items if type(value) is list else {"tuple": items}
    kind, tensor = _as_tensor(value)
    if tensor is None:
        raise DataError(
            f"The state_dict of {owner} holds a {type(value).__name__} at {'.'.join(path) or 'its top'}, but a "
            "checkpoint holds no pickle and so no object; let state_dict give numbers, texts, bytes, lists, tuples, "
            "dictionaries, arrays and tensors (of a random generator its state, not itself)."
        )
    name = "/".join([str(len(tensors)), *path])
    tensors[name] = tensor
    return {kind: name}


def _as_tensor(value: Any) -> tuple[str, Tensor | None]:
    """A tensor, an array or a number of numpy's as a tensor of its own; None where it is nothing of the kind."""
    if type(value) in (Tensor, torch.nn.Parameter):
        copied = value.detach().cpu().clone().contiguous()
        return "tensor", copied if copied.dtype in NAMES else None
    if isinstance(value, np.generic | np.ndarray):
        try:
            copied = torch.from_numpy(np.array(value, copy=True, order="C"))
        except TypeError:  # texts, objects, complex numbers
            return "array", None
        return ("array" if isinstance(value, np.ndarray) else "number"), copied if copied.dtype in NAMES else None
    return "object", None


def _decode(document: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(document, list):
        return [_decode(each, tensors) for each in document]
    if not isinstance(document, dict):
        return document
    ((kind, held),) = document.items()
    match kind:
        case "float":
            return float(held)
        case "bytes":
            return base64.b64decode(held)
        case "dict":
            return {_decode(key, tensors): _decode(value, tensors) for key, value in held}
        case "tuple":
            return tuple(_decode(each, tensors) for each in held)
        case "tensor":
            return tensors[held].clone()
        case "array":
            return tensors[held].numpy().copy()
        case "number":
            return tensors[held].numpy()[()]
    raise ValueError(f"The state of the data holds {kind!r}, which this hexloop does not know.")


def _names(document: Any) -> Iterator[str]:
    """The names of the tensors that a document speaks of."""
    if isinstance(document, list):
        for each in document:
            yield from _names(each)
    elif isinstance(document, dict):
        ((kind, held),) = document.items()
        if kind in ("tensor", "array", "number"):
            yield held
        elif kind in ("dict", "tuple"):
            yield from _names(held)


def _shuffles_in_a_buffer(data: Any) -> bool:
    waiting = [getattr(data, "_ex_iterable", None)]
    while waiting:
        source = waiting.pop()
        if type(source).__name__ == "BufferShuffledExamplesIterable":
            return True
        waiting += [] if source is None else [getattr(source, "ex_iterable", None)]
        waiting += getattr(source, "ex_iterables", None) or []
    return False


Progress = Callable[[int, int], None]
"""Told that so many of so many rows are passed over; called for the last time when these are equal."""


def no_progress(passed: int, total: int) -> None:
    """Nobody looks on."""


@define
class ReadPosition:
    """What a loop that counts rows does not know of the loader it reads from.

    epoch: the pass over the data. samples: how many of its samples are read. batch_size: samples in a whole batch.
    counts: the batches that each worker gave (one number where there are no workers); last: who gave the last, or -1.
    ended: whether each worker's rows came to their end before its last batch, which is not whole then.
    states: the data set's own state with each worker, as of the last batch that it gave; None where it has none.
    streams: where the random streams stood when the epoch began, for rows that are read here and have no state.
    """

    epoch: int
    batch_size: int
    counts: list[int]
    ended: list[bool]
    states: list[Any]
    samples: int = 0
    last: int = -1
    streams: Any = None

    @classmethod
    def at_the_start(cls, epoch: int, batch_size: int, readers: int) -> Self:
        """Nothing is read yet by any of the readers: the workers, or this process."""
        return cls(epoch, batch_size, [0] * readers, [False] * readers, [None] * readers)

    @classmethod
    def after(cls, epoch: int, samples: int, batch_size: int, readers: int) -> Self:
        """Where reading stands after so many samples, where nothing else is known of it."""
        standing = cls.at_the_start(epoch, batch_size, readers)
        batches = -(-samples // batch_size)
        standing.counts = [len(range(reader, batches, readers)) for reader in range(readers)]
        standing.samples, standing.last = samples, (batches - 1) % readers if batches else -1
        return standing

    def note(self, reader: int, samples: int, state: Any = None) -> None:
        """A reader gave a batch."""
        self.counts[reader] += 1
        self.ended[reader] = samples < self.batch_size
        self.samples += samples
        self.last = reader
        self.states[reader] = state

    @property
    def plain_states(self) -> list[Any]:
        """The states as the data sets gave them."""
        return [decode_state(state) if isinstance(state, DataState) else state for state in self.states]

    def document(self) -> dict[str, Any]:
        """Everything by its name."""
        return {**asdict(self, recurse=False), "states": self.plain_states}


@frozen
class ReadStart:
    """Where an iteration begins.

    standing: where it stands then. loads: whether the states are to be loaded. anew: whether the pass that the states
    are from is over, so that the data begin again.
    """

    standing: ReadPosition
    loads: bool = False
    anew: bool = False


@define
class ReadCursor:
    """Where a loader stands, and where the next iteration is to begin.

    readers: workers, or 1. keeps_readers: whether those of one epoch read the next. begins_anywhere: whether the number
    of samples says where to begin, whoever read them.
    """

    batch_size: int
    readers: int
    keeps_readers: bool
    begins_anywhere: bool
    now: ReadPosition | None = field(default=None, init=False)
    saved: ReadPosition | None = field(default=None, init=False)

    def begin(self, epoch: int, position: int) -> ReadStart:
        """Where to begin in `epoch`, by what was saved and else by the `position`; the loader stands there from now on.

        At position 0 of an epoch of which samples were read, the epoch is begun again.
        """
        saved, self.saved = self.saved, None
        beginning = self._from(saved, epoch, position)
        self.now = beginning.standing
        return beginning

    def _from(self, saved: ReadPosition | None, epoch: int, position: int) -> ReadStart:
        same_readers = saved is not None and len(saved.counts) == self.readers
        if saved is not None and saved.epoch == epoch and (position or not saved.samples):
            if same_readers and (self.readers == 1 or saved.batch_size == self.batch_size):
                return ReadStart(evolve(saved, batch_size=self.batch_size), loads=True)
            if not self.begins_anywhere:
                self._warn_of_other_readers(saved)
            position = saved.samples
        standing = ReadPosition.after(epoch, position, self.batch_size, self.readers)
        if saved is not None and saved.epoch < epoch and self.keeps_readers and same_readers:
            return ReadStart(evolve(standing, states=list(saved.states)), loads=True, anew=True)
        return ReadStart(standing)

    def _warn_of_other_readers(self, saved: ReadPosition) -> None:
        warnings.warn(
            f"The run was saved with its data read by {len(saved.counts)}, in batches of {saved.batch_size}, and goes "
            f"on with {self.readers}, in batches of {self.batch_size}: data that can only be read from the start come "
            "in another order then. Choose the same dataloader_num_workers and batch size to go on exactly.",
            stacklevel=2,
        )
