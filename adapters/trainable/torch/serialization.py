"""Tensors and nested values as named parts of an export, and back."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from math import prod
from numbers import Integral, Real
from typing import Any

import torch
from attrs import define, field, frozen
from torch import Tensor

from hexloop.domain.errors import CheckpointError
from hexloop.domain.json_documents import keyed
from hexloop.ports.mesh import Spread
from hexloop.ports.state import Part

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float8_e8m0fnu: "F8_E8M0",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The safetensors name of each torch type."""

TYPES = {name: dtype for dtype, name in DTYPES.items()}


def tensor_part(name: str, tensor: Tensor) -> Part:
    """Return the whole tensor as one part. Its bytes are copied to the host when they are read.

    Raises CheckpointError for a tensor that is not a dense array, or of a type that safetensors does not have.
    """
    if tensor.dtype not in DTYPES or tensor.layout != torch.strided or tensor.is_meta:
        raise CheckpointError(
            f"{name} is a tensor of {tensor.dtype}, {tensor.layout}, on {tensor.device}, which safetensors does not "
            "support; use a dense tensor of another type."
        )

    def read() -> memoryview:
        flat = tensor.detach().resolve_conj().resolve_neg().contiguous().cpu().reshape(-1)
        return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")

    return Part(name, DTYPES[tensor.dtype], tuple(tensor.shape), 0, tensor.numel(), read, tensor)


def read_tensor(part: Part) -> Tensor:
    """Return a new tensor with the part's type, shape and values.

    Raises ValueError, before it allocates memory, if the part's bytes do not have the size of its shape.
    """
    return _tensor(part, part.read, prod(part.shape)).view(part.shape)


def read_slice(part: Part, begin: int, length: int) -> Tensor:
    """Return some elements of a whole tensor's part as a new flat tensor. Raises ValueError like `read_tensor`."""
    return _tensor(part, lambda: part.run(begin, length), length)


def read_box(part: Part, spread: Spread) -> Tensor:
    """Return this rank's box of a whole tensor's part as a new tensor. Raises ValueError like `read_tensor`."""
    box = spread.own
    runs = [read_slice(part, *run) for run in box.runs(spread.divided)]
    found = runs[0] if len(runs) == 1 else torch.cat(runs) if runs else read_slice(part, 0, 0)
    return found.view(box.lengths)


def _tensor(part: Part, read: Callable[[], memoryview], count: int) -> Tensor:
    if part.dtype not in TYPES:
        raise ValueError(f"{part.name} has the type {part.dtype}, which this version of torch does not have.")
    dtype, data = TYPES[part.dtype], read()
    if len(data) != count * dtype.itemsize:
        raise ValueError(f"{part.name} has {len(data)} bytes, which does not fit its shape {part.shape}.")
    if part.fresh and count:
        return torch.frombuffer(data, dtype=dtype)  # without a copy
    tensor = torch.empty(count, dtype=dtype)
    if count:
        tensor.view(torch.uint8).numpy()[:] = data
    return tensor


TENSOR, TUPLE, PAIRS, DTYPE, OBJECT = "__tensor__", "__tuple__", "__pairs__", "__dtype__", "__object__"
"""The keys that mark, in JSON, the name of a tensor, a tuple, a dictionary with keys other than texts, a torch type,
and an object of a class from the optimizer's package."""

OWN_TYPE = "own_type"
"""Next to TENSOR: the tensor has another type than the parameter that it belongs to, and keeps it."""

ON_DEVICE = "on_device"
"""Next to TENSOR: the tensor is not in host memory, although it belongs to no parameter."""

PARAMETER = "__parameter__"
"""The key that marks, in JSON, the name of a parameter that is a key of a dictionary."""

WRAPPER = "__wrapper__"
"""The key that marks, in JSON, the class of a tensor that consists of others, such as quantized state."""

_MARKS = frozenset({TENSOR, TUPLE, PAIRS, DTYPE, OBJECT, PARAMETER, WRAPPER})
_TEXT = frozenset({str})

Classes = Mapping[str, type[Any]]


def package_classes(owner: object) -> Classes:
    """Return the classes, by name, of which objects may be restored: those in the modules of `owner`'s own package.

    The names in a checkpoint are looked up only here, so no name in a file can import or call anything.
    """
    found: dict[str, type[Any]] = {}
    for kind in type(owner).__mro__:
        module, package = sys.modules.get(kind.__module__), kind.__module__.partition(".")[0]
        if module is None or package in ("builtins", "torch"):
            continue
        for candidate in vars(module).values():
            if isinstance(candidate, type) and candidate.__module__.partition(".")[0] == package:
                found[_full_name(candidate)] = candidate
    return found


@define
class StateEncoder:
    """Converts values to JSON. Their tensors are collected in `tensors` under dotted names, each tensor once.

    owner: the name of the values' owner, for messages. classes: the classes whose objects may be stored. names: the
    names of the parameters, by id, that may be keys of dictionaries.
    parameters: after encoding, the parameter of each tensor that is state of a parameter.
    """

    owner: str
    classes: Classes = field(factory=dict)
    names: Mapping[int, str] = field(factory=dict)
    tensors: dict[str, Tensor] = field(factory=dict, init=False)
    parameters: dict[str, Tensor] = field(factory=dict, init=False)
    _names: dict[int, str] = field(factory=dict, init=False)

    def encode(self, value: Any, name: str, parameter: Tensor | None = None) -> Any:
        """Return `value`, called `name`, as JSON. Raises CheckpointError for a value that cannot be stored."""
        if isinstance(value, Tensor):
            if is_wrapper(value):
                return self._wrapper(value, name)
            return self._tensor(value, name, parameter)
        if isinstance(value, dict):
            return self._dictionary(value, name, parameter)
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, Integral):
            return int(value)
        if isinstance(value, Real):
            return float(value)
        if isinstance(value, torch.dtype):
            return {DTYPE: str(value).removeprefix("torch.")}
        if isinstance(value, list | tuple):
            items = [self.encode(inner, f"{name}.{index}", parameter) for index, inner in enumerate(value)]
            return {TUPLE: items} if isinstance(value, tuple) else items
        return self._object(value, name)

    def _tensor(self, tensor: Tensor, name: str, parameter: Tensor | None) -> dict[str, Any]:
        known = self._names.get(id(tensor))
        if known is None:
            known, number = name, 1
            while known in self.tensors:
                known, number = f"{name}#{number}", number + 1
            self._names[id(tensor)] = known
            self.tensors[known] = tensor
            if parameter is not None:
                self.parameters[known] = parameter
        if parameter is None:
            return {TENSOR: known} if tensor.device.type == "cpu" else {TENSOR: known, ON_DEVICE: True}
        return {TENSOR: known} if tensor.dtype == parameter.dtype else {TENSOR: known, OWN_TYPE: True}

    def _wrapper(self, tensor: Any, name: str) -> dict[str, Any]:
        kind = type(tensor)
        if self.classes.get(_full_name(kind)) is not kind:
            raise CheckpointError(
                f"{self.owner} cannot be saved: its {name} is a {_full_name(kind)}, a tensor class that the optimizer "
                "neither defines nor imports from its own package; use an optimizer with plain tensors."
            )
        attributes, context = tensor.__tensor_flatten__()
        tensors = {each: self._tensor(getattr(tensor, each), f"{name}.{each}", None) for each in attributes}
        return {WRAPPER: _full_name(kind), "tensors": tensors, "context": self.encode(context, name)}

    def _dictionary(self, value: dict[Any, Any], name: str, parameter: Tensor | None) -> dict[str, Any]:
        if _TEXT.issuperset(map(type, value)) and _MARKS.isdisjoint(value):
            return {key: self.encode(inner, f"{name}.{key}", parameter) for key, inner in value.items()}
        return {
            PAIRS: [
                [self._key(key, name), self.encode(inner, f"{name}.{self.names.get(id(key), key)}", parameter)]
                for key, inner in value.items()
            ]
        }

    def _key(self, key: Any, name: str) -> Any:
        if not isinstance(key, Tensor):
            return self.encode(key, name)
        if id(key) not in self.names:
            raise CheckpointError(
                f"{self.owner} has a dictionary in {name} with a tensor of shape {tuple(key.shape)} as a key, which is "
                "not a parameter of the model as it was passed, so a checkpoint cannot identify it; use an optimizer "
                "that keeps it in `state`, or train in one process or with DDP."
            )
        return {PARAMETER: self.names[id(key)]}

    def _object(self, value: Any, name: str) -> dict[str, Any]:
        kind, kept = type(value), kept_of(value, self.classes)
        if kept is None:
            raise CheckpointError(
                f"{self.owner} cannot be saved: its {name} is a {_full_name(kind)}, and checkpoints contain no pickled "
                "objects. Supported are numbers, texts, tensors, lists and dictionaries, and objects with such "
                "attributes of a class that the optimizer's module defines or imports from its own package."
            )
        return {OBJECT: _full_name(kind), "state": self.encode(dict(kept), name)}


def kept_of(value: Any, classes: Classes) -> Mapping[str, Any] | None:
    """Return what determines an object: its state dict or attributes; None if it is not one of these classes."""
    kind = type(value)
    if classes.get(_full_name(kind)) is not kind or not _is_plain(kind):
        return None
    kept: Mapping[str, Any] = value.state_dict() if _has_state_dict(kind) else vars(value)
    return kept


@frozen(eq=False)
class UncastTensor:
    """Hides a tensor from torch, which would cast it to the type of its parameter."""

    tensor: Tensor

    def to(self, device: torch.device) -> UncastTensor:
        """Return the tensor on another device, as optimizers that load their state by themselves ask."""
        return UncastTensor(self.tensor.to(device))


@define
class StateDecoder:
    """Restores values that `StateEncoder` encoded. Every tensor is new; a tensor that occurred twice is restored once.

    found: the parts, by name. hides: return a tensor that keeps its own type as an UncastTensor.
    spread: how to read a tensor, by name, of which this rank has only a part. keys: the parameters by name.
    own_type: after decoding, the ids of the counters that keep their own type.
    """

    found: Mapping[str, Part]
    classes: Classes = field(factory=dict)
    hides: bool = True
    spread: Mapping[str, Callable[[Part], Tensor]] = field(factory=dict)
    keys: Mapping[str, Tensor] = field(factory=dict)
    own_type: set[int] = field(factory=set, init=False)
    _tensors: dict[str, Tensor] = field(factory=dict, init=False)

    def decode(self, value: Any, device: torch.device | None = None) -> Any:
        """Return the value. Tensors in objects are moved to `device`: torch moves the others, but not these.

        Raises ValueError if a tensor, a type or a class does not exist.
        """
        if isinstance(value, list):
            return [self.decode(inner, device) for inner in value]
        if not isinstance(value, dict):
            return value
        if TENSOR in value:
            return self._tensor(value[TENSOR], value.get(OWN_TYPE, False), device if value.get(ON_DEVICE) else None)
        if WRAPPER in value:
            return self._wrapper(value)
        if PARAMETER in value:
            return self.keys[value[PARAMETER]]
        if TUPLE in value:
            return tuple(self.decode(inner, device) for inner in value[TUPLE])
        if PAIRS in value:
            return keyed([(self.decode(key), self.decode(inner, device)) for key, inner in value[PAIRS]])
        if DTYPE in value:
            return _torch_type(value[DTYPE])
        if OBJECT in value:
            return self._object(value[OBJECT], value["state"], device)
        return {key: self.decode(inner, device) for key, inner in value.items()}

    def _tensor(self, name: str, own_type: bool, device: torch.device | None) -> Tensor | UncastTensor:
        if name not in self.found:
            raise ValueError(f"The saved optimizer has no tensor {name!r}.")
        if name not in self._tensors:
            self._tensors[name] = _moved(self.spread.get(name, read_tensor)(self.found[name]), device)
        tensor = self._tensors[name]
        if own_type and self.hides and (tensor.dim() > 0 or tensor.is_complex()):
            return UncastTensor(tensor)
        if own_type:  # a counter, which optimizers read while they load
            self.own_type.add(id(tensor))
        return tensor

    def _wrapper(self, value: Mapping[str, Any]) -> Any:
        kind: Any = self.classes.get(value[WRAPPER])
        if kind is None or not issubclass(kind, Tensor) or not hasattr(kind, "__tensor_unflatten__"):
            raise ValueError(
                f"The saved optimizer contains a {value[WRAPPER]}, which is not a tensor class of this optimizer's "
                "package."
            )
        inner = {key: self._tensor(each[TENSOR], False, None) for key, each in value["tensors"].items()}
        try:
            restored = kind.__tensor_unflatten__(inner, self.decode(value["context"]), None, None)
            if hasattr(kind, "dequantize") and restored.dequantize().shape != restored.shape:
                raise ValueError("its parts have other shapes")
        except Exception as error:  # of whatever the class checks
            raise ValueError(f"The saved optimizer contains an invalid {kind.__name__}: {error}.") from error
        return UncastTensor(restored) if self.hides else restored

    def _object(self, name: str, state: Any, device: torch.device | None) -> Any:
        kind = self.classes.get(name)
        if kind is None or not _is_plain(kind):
            raise ValueError(
                f"The saved optimizer contains a {name}, which is not a class of this optimizer's package."
            )
        kept = _moved(self.decode(state, device), device)
        if _has_state_dict(kind):
            restored = kind()
            restored.load_state_dict(kept)
            return restored
        restored = object.__new__(kind)
        vars(restored).update(kept)
        return restored


def _moved(value: Any, device: torch.device | None) -> Any:
    """Return `value` with its tensors moved to `device`."""
    if isinstance(value, Tensor):
        return value if device is None else value.to(device)
    if isinstance(value, dict):
        return {key: _moved(inner, device) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_moved(inner, device) for inner in value)
    return value


def is_wrapper(tensor: Tensor) -> bool:
    """Return whether a tensor consists of others, and is not one of torch's own, such as a DTensor."""
    kind = type(tensor)
    return hasattr(kind, "__tensor_flatten__") and not kind.__module__.startswith("torch.")


def tensor_names(value: Any) -> Iterator[str]:
    """Yield the names of the tensors in an encoded value."""
    if isinstance(value, list):
        for inner in value:
            yield from tensor_names(inner)
    elif isinstance(value, dict):
        if TENSOR in value:
            yield value[TENSOR]
        else:
            yield from tensor_names(list(value.values()))


def _full_name(kind: type[Any]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_plain(kind: type[Any]) -> bool:
    """Return whether an object of the class is determined by its attributes or its state dict."""
    return _has_state_dict(kind) or (
        kind.__dictoffset__ != 0 and not any("__new__" in vars(each) for each in kind.__mro__[:-1])
    )


def _has_state_dict(kind: type[Any]) -> bool:
    """Return whether the class has a state dict, and can be constructed without arguments."""
    if not (callable(getattr(kind, "state_dict", None)) and callable(getattr(kind, "load_state_dict", None))):
        return False
    try:
        inspect.signature(kind).bind()
    except (TypeError, ValueError):
        return False
    return True


def _torch_type(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"The saved optimizer contains the type {name!r}, which this version of torch does not have.")
    return found
