"""The state that data keep of themselves, in JSON and tensors."""

from __future__ import annotations

import base64
import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from attrs import frozen
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


def capture(owner: object, state: Any) -> DataState:
    """A copy of the `state` that `owner` gave. Raises DataError where it holds what a checkpoint cannot."""
    tensors: dict[str, Tensor] = {}
    return DataState(_encode(state, (), tensors, type(owner).__name__), tensors)


def contents(state: DataState) -> Any:
    """What was captured, in tensors and arrays of its own."""
    return _decode(state.document, state.tensors)


def parts_of(name: str, state: DataState) -> Iterator[Part]:
    """The state as parts: the document under `name`, each tensor under its own."""
    yield json_part(name, state.document)
    for each, tensor in state.tensors.items():
        yield Part(each, NAMES[tensor.dtype], tuple(tensor.shape), 0, tensor.numel(), partial(_bytes_of, tensor))


def state_from(name: str, parts: Iterable[Part]) -> DataState | None:
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


def tensor_of(data: Tensor, at: int, dtype: str, shape: Sequence[int]) -> tuple[Tensor, int]:
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
