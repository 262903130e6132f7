"""The state of the data in a checkpoint: the read position, and the state_dict of datasets as JSON and tensors."""

from __future__ import annotations

import base64
import json
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
from hexloop.domain.ranges import BatchSize, Count, Updates
from hexloop.domain.schemas import structured
from hexloop.domain.wording import listed
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
NO_BYTES = torch.empty(0, dtype=torch.uint8)


@frozen
class DataState:
    """A copy of the result of a `state_dict()`: a JSON document that refers to its tensors by name.

    null, booleans, finite numbers, texts and lists are stored as they are; any other value as an object with one key,
    the kind of the value.
    """

    document: str
    tensors: Mapping[str, Tensor]


def is_stateful(data: Any) -> bool:
    """Return whether `data` resumes exactly from its state; shuffled `datasets` streams, with a buffer, do not.

    A loader that accelerate prepared always has the methods, but a state only if the loader in it has one.
    """
    if hasattr(data, "base_dataloader"):
        return is_stateful(data.base_dataloader)
    has_state = callable(getattr(data, "state_dict", None)) and callable(getattr(data, "load_state_dict", None))
    return has_state and not _has_shuffle_buffer(data)


def encode_state(owner: object, state: Any, mappings: tuple[type, ...] = ()) -> DataState:
    """Return a copy of the `state` of `owner`. Raises DataError if it contains a value that cannot be stored.

    mappings: further types, besides dictionaries, that are stored as dictionaries.
    """
    tensors: dict[str, Tensor] = {}
    return DataState(json.dumps(_encode(owner, mappings, tensors, state)), tensors)


def _encode(owner: object, mappings: tuple[type, ...], tensors: dict[str, Tensor], value: Any, *path: str) -> Any:
    """Return a value in a form for JSON, and add its tensors to `tensors`."""
    encode = partial(_encode, owner, mappings, tensors)
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if type(value) is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if type(value) in (dict, OrderedDict) or isinstance(value, mappings):
        return {"dict": [[encode(key, *path, "key"), encode(each, *path, str(key))] for key, each in value.items()]}
    if type(value) in (list, tuple):
        items = [encode(each, *path, str(number)) for number, each in enumerate(value)]
        return items if type(value) is list else {"tuple": items}
    kind, tensor = _as_tensor(value)
    if tensor is None:
        raise DataError(
            f"The state_dict of {type(owner).__name__} contains a {type(value).__name__} at "
            f"{'.'.join(path) or 'its top level'}, but checkpoints contain no pickled objects; let state_dict "
            "return numbers, texts, bytes, lists, tuples, dictionaries, arrays and tensors (for a random "
            "generator, its state)."
        )
    name = "/".join([str(len(tensors)), *path])
    tensors[name] = tensor
    return {kind: name}


def decode_state(state: DataState) -> Any:
    """Return the state that was encoded, with new tensors and arrays."""
    return json.loads(state.document, object_hook=partial(_decode, state.tensors))


def state_parts(name: str, state: DataState) -> Iterator[Part]:
    """Return the state as parts: the document under `name`, each tensor under its own name."""
    data = state.document.encode()
    yield Part(name, JSON, (len(data),), 0, len(data), lambda: memoryview(data))
    for each, tensor in state.tensors.items():
        yield Part(each, NAMES[tensor.dtype], tuple(tensor.shape), 0, tensor.numel(), partial(_bytes_of, tensor))


def state_from_parts(name: str, parts: Iterable[Part]) -> DataState | None:
    """Return the state from its parts; None if there are none. Raises ValueError if a part is missing or unknown."""
    found = {part.name: part for part in parts}
    if not found:
        return None
    document = found.pop(name, None)
    if document is None or document.dtype != JSON:
        raise ValueError(f"The state of the data has no document {name!r}, only {sorted(found)}.")
    text = bytes(document.read()).decode()
    expected = _tensor_names(text)
    if expected != found.keys():
        raise ValueError(f"The state of the data should have the tensors {sorted(expected)}, but has {sorted(found)}.")
    return DataState(text, {each: _tensor(part) for each, part in found.items()})


def tensor_from_bytes(data: Tensor, at: int, dtype: str, shape: Sequence[int]) -> tuple[Tensor, int]:
    """Return a copy of the tensor whose bytes start at `at` in the byte vector `data`, and the end of its bytes."""
    kind = DTYPES[dtype]
    end = at + math.prod(shape) * kind.itemsize
    return data[at:end].clone().view(kind).reshape(tuple(shape)), end


def _bytes_of(tensor: Tensor) -> memoryview:
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy() if tensor.numel() else b"")  # type: ignore[arg-type]


def _tensor(part: Part) -> Tensor:
    if part.dtype not in DTYPES or part.length != math.prod(part.shape):
        raise ValueError(
            f"The tensor {part.name!r} in the state of the data ({part.dtype}, shape {part.shape}) is incomplete."
        )
    data = torch.frombuffer(bytearray(part.read()), dtype=torch.uint8) if part.length else NO_BYTES
    return tensor_from_bytes(data, 0, part.dtype, part.shape)[0]


def _as_tensor(value: Any) -> tuple[str, Tensor | None]:
    """Return the kind of `value` and a copy as a tensor; None if it is not a tensor or a numpy array or number."""
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


def _decode(tensors: Mapping[str, Tensor], document: dict[str, Any]) -> Any:
    """Return the value of an object in a document. Those inside it are decoded already."""
    ((kind, held),) = document.items()
    match kind:
        case "float":
            return float(held)
        case "bytes":
            return base64.b64decode(held)
        case "dict":
            return dict(held)
        case "tuple":
            return tuple(held)
        case "tensor":
            return tensors[held].clone()
        case "array":
            return tensors[held].numpy().copy()
        case "number":
            return tensors[held].numpy()[()]
    raise ValueError(f"The state of the data contains a {kind!r}, which this version of hexloop does not know.")


def _tensor_names(document: str) -> set[str]:
    """Return the names of the tensors that a document refers to."""
    names: set[str] = set()

    def note(held: dict[str, Any]) -> None:
        names.update(name for kind, name in held.items() if kind in ("tensor", "array", "number"))

    json.loads(document, object_hook=note)
    return names


def _has_shuffle_buffer(data: Any) -> bool:
    waiting = [getattr(data, "_ex_iterable", None)]
    while waiting:
        source = waiting.pop()
        if type(source).__name__ == "BufferShuffledExamplesIterable":
            return True
        waiting += [] if source is None else [getattr(source, "ex_iterable", None)]
        waiting += getattr(source, "ex_iterables", None) or []
    return False


# How far an epoch was read

Progress = Callable[[int, int], None]
"""Called with the number of rows skipped so far and the number to skip; for the last time when the two are equal."""


def no_progress(passed: int, total: int) -> None:
    """No-op."""


@define
class ReadPosition:
    """How far a loader has read an epoch, in as much detail as it needs to resume.

    epoch: the pass over the data. samples: samples read in it. batch_size: samples in a whole batch.
    A reader is a worker, or this process if there are no workers. counts: the batches that each reader returned.
    last: the reader that returned the last batch, or -1. ended: whether each reader reached the end of its rows before
    its last batch was full. states: the dataset's state in each reader after its last batch; None if it has none.
    streams: the states of the random streams at the start of the epoch, if this process reads a dataset without state.
    documents: the documents among the samples, if these are packed rows, of which one may have none that is counted.

    The names of the fields are those of the document in a checkpoint.
    """

    epoch: Count
    batch_size: BatchSize
    counts: list[Count]
    ended: list[bool]
    states: list[Any]
    samples: Count = 0
    last: Updates = -1
    streams: Any = None
    documents: Count | None = None

    @classmethod
    def saved(cls, document: Any, path: str) -> Self:
        """Return the position in a checkpoint's document.

        Raises ValueError, with every problem, for a position that no reading leads to.
        """
        position = structured(document, cls, path)
        readers, problems = len(position.counts), list[str]()
        if not readers == len(position.ended) == len(position.states) or readers == 0:
            problems.append(
                f"{path}.counts, ended and states: they have {readers}, {len(position.ended)} and "
                f"{len(position.states)} entries, and should have one for each reader"
            )
        if position.last >= readers:
            problems.append(f"{path}.last: {position.last} is not the number of one of {readers} readers")
        for reader, state in enumerate(position.states):
            if not isinstance(state, dict | None):
                problems.append(f"{path}.states[{reader}]: {str(state)[:80]} is neither a dictionary nor None")
        if problems:
            raise ValueError(listed(problems))
        return position

    @classmethod
    def after(cls, epoch: int, samples: int, batch_size: int, readers: int) -> Self:
        """Return the position after some samples, if nothing else is known."""
        batches = -(-samples // batch_size)
        counts = [len(range(reader, batches, readers)) for reader in range(readers)]
        last = (batches - 1) % readers if batches else -1
        return cls(epoch, batch_size, counts, [False] * readers, [None] * readers, samples, last)

    def note(self, reader: int, samples: int, state: Any = None, documents: int | None = None) -> None:
        """Count a batch that a reader returned."""
        if documents is not None:
            self.documents = (self.documents or 0) + documents
        self.counts[reader] += 1
        self.ended[reader] = samples < self.batch_size
        self.samples += samples
        self.last = reader
        self.states[reader] = state

    @property
    def has_counted(self) -> bool:
        """Whether the position in samples, as a run counts them, is not 0."""
        return bool(self.samples if self.documents is None else self.documents)

    @property
    def plain_states(self) -> list[Any]:
        """The states as the datasets returned them."""
        return [decode_state(state) if isinstance(state, DataState) else state for state in self.states]

    def document(self) -> dict[str, Any]:
        """Return all fields by name."""
        document = {**asdict(self, recurse=False), "states": self.plain_states}
        if self.documents is None:
            del document["documents"]
        return document


@define
class ReadCursor:
    """The position of a loader, and where its next iteration starts.

    readers: the number of workers, or 1. keeps_readers: whether the same readers read the next epoch. seekable: whether
    the number of samples is enough to resume, whichever readers read them.
    """

    batch_size: int
    readers: int
    keeps_readers: bool
    seekable: bool
    current: ReadPosition | None = field(default=None, init=False)
    saved: ReadPosition | None = field(default=None, init=False)

    def start(self, epoch: int, position: int) -> tuple[ReadPosition, bool]:
        """Move to where to start in `epoch`, according to the saved position or else to `position`; return it.

        At position 0 of an epoch that has been partly read, the epoch starts over. Also returns whether the states of
        the readers, if there are any, are from the end of the previous pass, so that the data start over.
        """
        saved, self.saved = self.saved, None
        same_readers = saved is not None and len(saved.counts) == self.readers
        if saved is not None and saved.epoch == epoch and (position or not saved.has_counted):
            if same_readers and (self.readers == 1 or saved.batch_size == self.batch_size):
                self.current = evolve(saved, batch_size=self.batch_size)
                return self.current, False
            if not self.seekable:
                self._warn_of_other_readers(saved)
            position = saved.samples
        self.current = ReadPosition.after(epoch, position, self.batch_size, self.readers)
        new_pass = saved is not None and saved.epoch < epoch and self.keeps_readers and same_readers
        if saved is not None and new_pass:
            self.current.states = list(saved.states)
        return self.current, new_pass

    def _warn_of_other_readers(self, saved: ReadPosition) -> None:
        warnings.warn(
            f"The checkpoint was saved with {len(saved.counts)} readers of the data and batches of {saved.batch_size}, "
            f"and the run resumes with {self.readers} readers and batches of {self.batch_size}: data that can only be "
            "read from the start now come in a different order. Use the same dataloader_num_workers and batch size to "
            "resume exactly.",
            stacklevel=2,
        )
