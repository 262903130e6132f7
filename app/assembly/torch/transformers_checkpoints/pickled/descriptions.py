"""What a pickled file of tensors may name, and the descriptions that stand for it. Nothing that it names is called.

Tensors are described by their place in the file, and not read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

MOST_DIGITS_BYTES = 128
"""Bytes of an integer."""

STORAGES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "ComplexFloatStorage": "complex64", "UntypedStorage": "uint8",
}  # fmt: skip

SIZES = {
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8),
    **dict.fromkeys(("float32", "int32", "uint32"), 4),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("int8", "uint8", "bool"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"), 1),
}
"""The bytes of an element of each torch type that is read."""

NUMPY_TYPES = {kind + size for kind, sizes in {"u": "1248", "i": "1248", "f": "248"}.items() for size in sizes} | {"b1"}


class RefusedPickleError(Exception):
    """A file that is damaged, or holds something other than data. The message is a clause about it."""


def refuse(reason: str) -> NoReturn:
    """Raise RefusedPickleError."""
    raise RefusedPickleError(reason)


@dataclass(frozen=True)
class Name:
    """A global that a pickle names."""

    module: str
    name: str


@dataclass(eq=False)
class Described:
    """An object in place of one that a file describes. kind: "tensor", "array", "type", "dtype" or "bytes"."""

    kind: str
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StoredBytes:
    """The bytes of a storage: its first byte in the file, its size in bytes, and the type of its elements."""

    start: int
    size: int
    dtype: str


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> Described:
    dtype = storage.dtype if isinstance(storage, StoredBytes) else refuse("a tensor has no storage")
    return _view(storage, dtype, offset, shape, strides, rest[2] if len(rest) > 2 else None)


def _tensor_of_type(storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> Described:
    if not isinstance(storage, StoredBytes) or len(rest) < 3 or not isinstance(rest[2], Described):
        refuse("a tensor has no storage or no type")
    return _view(storage, rest[2].values.get("name"), offset, shape, strides, rest[3] if len(rest) > 3 else None)


def _view(storage: StoredBytes, dtype: Any, offset: Any, shape: Any, strides: Any, metadata: Any) -> Described:
    """Return the description of a tensor, which must lie in its storage, with no more elements than that has."""
    if dtype not in SIZES:
        refuse(f"a tensor of type {dtype!r} is not read")
    if not isinstance(shape, tuple) or not isinstance(strides, tuple) or len(shape) != len(strides) or len(shape) > 64:
        refuse("the shape or the strides of a tensor are invalid")
    if not all(type(number) is int and 0 <= number < 2**63 for number in (offset, *shape, *strides)):
        refuse(f"a tensor has the shape {shape}, the strides {strides} and the offset {offset!r}"[:200])
    if metadata:
        refuse("a tensor is a conjugated or negated view; save a copy of it")
    elements, count = storage.size // SIZES[dtype], math.prod(shape)
    last = offset + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
    if count and (last >= elements or count > elements):
        refuse(f"a tensor of shape {list(shape)} does not lie in its storage of {elements} elements"[:200])
    values = {"start": storage.start, "size": storage.size, "dtype": dtype, "offset": offset}
    return Described("tensor", {**values, "shape": list(shape), "strides": list(strides)})


def _parameter(data: Any, *_: Any) -> Any:
    return data if isinstance(data, Described) and data.kind == "tensor" else refuse("a parameter is not a tensor")


def _dictionary(items: Any = (), *_: Any) -> dict[Any, Any]:
    if isinstance(items, dict):
        return dict(items)
    pairs = list(items) if isinstance(items, list | tuple) else refuse("a dictionary is made of something else")
    if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        refuse("a dictionary is made of something other than pairs")
    made: dict[Any, Any] = {}
    for key, value in pairs:
        put(made, key, value)
    return made


def _size(shape: Any = ()) -> tuple[Any, ...]:
    return tuple(shape) if isinstance(shape, list | tuple) else refuse("a torch.Size is made of something else")


def _numpy_type(code: Any, *_: Any) -> Described:
    if code not in NUMPY_TYPES:
        refuse(f"an array of numpy's type {str(code)[:40]!r} is not read")
    return Described("type", {"code": code, "order": "<"})


def _array(*_: Any) -> Described:
    return Described("array")


def _array_of_bytes(data: Any, kind: Any, shape: Any, order: Any) -> Described:
    made = Described("array")
    build(made, (1, shape, kind, order == "F", data))
    return made


def _scalar(kind: Any, data: Any) -> Any:
    made = Described("array")
    build(made, (1, (), kind, False, data))
    made.kind = "scalar"
    return made


def _latin1(text: Any, encoding: Any = "latin1") -> bytes:
    if encoding != "latin1" or not isinstance(text, str):
        refuse(f"text is encoded as {str(encoding)[:40]!r}")
    try:
        return text.encode("latin1")
    except UnicodeEncodeError:
        refuse("bytes are text that is not latin1")


def _bytes(*given: Any) -> bytes:
    if not given:
        return b""
    if len(given) == 2:
        return _latin1(*given)
    return bytes(given[0]) if isinstance(given[0], bytes) else refuse("bytes are made of something else")


CALLED: dict[tuple[str, str], Callable[..., Any]] = {
    ("collections", "OrderedDict"): _dictionary,
    ("collections", "Counter"): _dictionary,
    ("torch._utils", "_rebuild_tensor"): _tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _tensor_of_type,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _parameter,
    ("torch", "Size"): _size,
    ("numpy", "dtype"): _numpy_type,
    ("_codecs", "encode"): _latin1,
    ("builtins", "bytes"): _bytes,
    ("__builtin__", "bytes"): _bytes,
    ("builtins", "bytearray"): _bytes,
    ("__builtin__", "bytearray"): _bytes,
}
"""What a file may call, and what is called here instead."""

for _core in ("core", "_core"):
    CALLED[f"numpy.{_core}.multiarray", "_reconstruct"] = _array
    CALLED[f"numpy.{_core}.multiarray", "scalar"] = _scalar
    CALLED[f"numpy.{_core}.numeric", "_frombuffer"] = _array_of_bytes

NAMED = {("numpy", "ndarray"), ("torch.storage", "UntypedStorage"), ("torch.storage", "TypedStorage")}
"""What a file may name without calling it."""


def known_name(module: Any, name: Any) -> Any:
    """Return what stands for a global. Raises RefusedPickleError for any other."""
    key = (module, name)
    if module == "torch" and name in SIZES:
        return Described("dtype", {"name": name})
    if key in CALLED or key in NAMED or (module in ("torch", "torch.storage") and name in STORAGES):
        return Name(module, name)
    refuse(f"it names {str(module)[:60]}.{str(name)[:60]}, and only tensors, numbers, strings and containers are read")


def build(made: Any, state: Any) -> None:
    """Set the state of an object, as the opcode BUILD does."""
    if isinstance(made, dict):
        return  # attributes of a state dict, such as the versions of its modules
    if isinstance(made, Described) and made.kind == "type":
        order = state[1] if isinstance(state, tuple) and len(state) > 1 else "<"
        made.values["order"] = order if order in ("<", ">", "|", "=") else refuse("an array has an unknown byte order")
        return
    if not isinstance(made, Described) or made.kind != "array" or not isinstance(state, tuple) or len(state) != 5:
        refuse("an object has a state that is not read")
    _, shape, kind, by_columns, data = state
    if not isinstance(kind, Described) or kind.kind != "type" or not isinstance(data, bytes):
        refuse("an array holds something other than numbers")
    if not isinstance(shape, tuple) or not all(type(length) is int and length >= 0 for length in shape):
        refuse("an array has an invalid shape")
    if len(shape) > 64 or math.prod(shape) * int(kind.values["code"][1:]) != len(data):
        refuse(f"an array of shape {list(shape)[:64]} has {len(data)} bytes"[:200])
    made.values = {**kind.values, "shape": list(shape), "by_columns": bool(by_columns), "data": data}


MOST_UNUSUAL = 100
"""Entries of a dictionary that has tuples or large numbers as keys."""


def put(target: dict[Any, Any], key: Any, value: Any) -> None:
    """Set an item. Raises RefusedPickleError for a key that is not a plain value.

    Files can hold many tuples, or many large numbers, with equal hashes, each of which is compared with all the others.
    """
    if not isinstance(key, str | int | float | bool | tuple | None):
        refuse("a dictionary has a key that is not a number, a string or a tuple of these")
    if isinstance(key, tuple) and not all(isinstance(each, str | int | float | bool | None) for each in key):
        refuse("a dictionary has a key that is not a number, a string or a tuple of these")
    if len(target) >= MOST_UNUSUAL and (isinstance(key, tuple) or (isinstance(key, int) and key.bit_length() > 64)):
        refuse(
            f"a dictionary of more than {MOST_UNUSUAL} entries has a tuple or a number of more than 64 bits as a key"
        )
    target[key] = value
