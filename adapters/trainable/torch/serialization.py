"""Tensors as parts, and parts as tensors."""

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
"""The safetensors name of each type."""

TYPES = {name: dtype for dtype, name in DTYPES.items()}


def tensor_part(name: str, tensor: Tensor) -> Part:
    """The whole tensor as one part; its bytes are copied to the host when they are read.

    Raises CheckpointError for a tensor that is no plain array of numbers, or of a type that safetensors lacks.
    """
    if tensor.dtype not in DTYPES or tensor.layout != torch.strided or tensor.is_meta:
        raise CheckpointError(
            f"{name} is a tensor of {tensor.dtype}, {tensor.layout}, on {tensor.device}, and safetensors has no place "
            "for that; keep a plain tensor of another type there."
        )

    def read() -> memoryview:
        flat = tensor.detach().resolve_conj().resolve_neg().contiguous().cpu().reshape(-1)
        return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")

    return Part(name, DTYPES[tensor.dtype], tuple(tensor.shape), 0, tensor.numel(), read, tensor)


def read_tensor(part: Part) -> Tensor:
    """A new tensor of the part's type and shape that shares no memory with the part.

    Raises ValueError, naming the part, where its bytes are not as many as its shape takes, before it takes memory.
    """
    return _tensor(part, part.read, prod(part.shape)).view(part.shape)


def read_slice(part: Part, begin: int, length: int) -> Tensor:
    """The elements of a whole tensor's part from `begin` on, as a new flat tensor. Raises ValueError as `tensor_of`."""
    return _tensor(part, lambda: part.run(begin, length), length)


def _tensor(part: Part, read: Callable[[], memoryview], count: int) -> Tensor:
    if part.dtype not in TYPES:
        raise ValueError(f"{part.name} is of the type {part.dtype}, which this torch does not have.")
    dtype, data = TYPES[part.dtype], read()
    if len(data) != count * dtype.itemsize:
        raise ValueError(f"{part.name} has {len(data)} bytes, and its shape {part.shape} takes another number of them.")
    tensor = torch.empty(count, dtype=dtype)
    if count:
        tensor.view(torch.uint8).numpy()[:] = data
    return tensor


TENSOR, TUPLE, PAIRS, DTYPE, OBJECT = "__tensor__", "__tuple__", "__pairs__", "__dtype__", "__object__"
"""How JSON marks a tensor that is a part of its own, a tuple, a dictionary whose keys are no texts, a torch type, and
an object of a class that the optimizer's modules know."""

OWN_TYPE = "own_type"
"""Beside TENSOR: the tensor is of another type than the parameter that it belongs to, and stays so."""

ON_DEVICE = "on_device"
"""Beside TENSOR: the tensor is not in host memory, though it belongs to no parameter."""

PARAMETER = "__parameter__"
"""How JSON marks a parameter, by its name, that is a key of a dictionary."""

_MARKS = frozenset({TENSOR, TUPLE, PAIRS, DTYPE, OBJECT, PARAMETER})

Classes = Mapping[str, type[Any]]


def package_classes(owner: object) -> Classes:
    """The classes of which an object may be rebuilt, by name: plain ones of `owner`'s own package, as its modules name.

    What a checkpoint says is looked up here and nowhere else, so that no name in a file imports or calls anything.
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
    """Turns values into JSON; their tensors gather in `tensors` under dotted names, each once however often it is met.

    owner: whose values they are, for messages. classes: those of which objects may be kept. names: those of the
    parameters, by id, that may be keys of dictionaries.
    parameters: afterwards, for the tensors of a parameter's state, that parameter.
    """

    owner: str
    classes: Classes = field(factory=dict)
    names: Mapping[int, str] = field(factory=dict)
    tensors: dict[str, Tensor] = field(factory=dict, init=False)
    parameters: dict[str, Tensor] = field(factory=dict, init=False)
    _names: dict[int, str] = field(factory=dict, init=False)

    def flatten(self, value: Any, name: str, parameter: Tensor | None = None) -> Any:
        """`value`, called `name`, as JSON. Raises CheckpointError, saying where, for what cannot be kept."""
        if isinstance(value, Tensor):
            return self._tensor(value, name, parameter)
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, Integral):
            return int(value)
        if isinstance(value, Real):
            return float(value)
        if isinstance(value, torch.dtype):
            return {DTYPE: str(value).removeprefix("torch.")}
        if isinstance(value, dict):
            return self._dictionary(value, name, parameter)
        if isinstance(value, list | tuple):
            items = [self.flatten(inner, f"{name}.{index}", parameter) for index, inner in enumerate(value)]
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

    def _dictionary(self, value: dict[Any, Any], name: str, parameter: Tensor | None) -> dict[str, Any]:
        if all(isinstance(key, str) for key in value) and not _MARKS & value.keys():
            return {key: self.flatten(inner, f"{name}.{key}", parameter) for key, inner in value.items()}
        return {
            PAIRS: [
                [self._key(key, name), self.flatten(inner, f"{name}.{self.names.get(id(key), key)}", parameter)]
                for key, inner in value.items()
            ]
        }

    def _key(self, key: Any, name: str) -> Any:
        if not isinstance(key, Tensor):
            return self.flatten(key, name)
        if id(key) not in self.names:
            raise CheckpointError(
                f"{self.owner} keeps something in {name} for a tensor of shape {tuple(key.shape)}, which is not a "
                "parameter of the model as it was passed in, so that a checkpoint cannot say which one it is; use an "
                "optimizer that keeps it in `state`, or train in one process or with DDP."
            )
        return {PARAMETER: self.names[id(key)]}

    def _object(self, value: Any, name: str) -> dict[str, Any]:
        kind = type(value)
        if self.classes.get(_full_name(kind)) is not kind or not _is_plain(kind):
            raise CheckpointError(
                f"You chose {self.owner}, whose {name} is a {_full_name(kind)}, which a checkpoint cannot hold, as "
                "nothing is ever pickled; keep numbers, texts, tensors, lists and dictionaries there, or objects with "
                "such attributes, of a class that the optimizer's own module defines or imports from its package."
            )
        kept = value.state_dict() if _speaks_for_itself(kind) else vars(value)
        return {OBJECT: _full_name(kind), "state": self.flatten(dict(kept), name)}


@frozen(eq=False)
class UncastTensor:
    """A tensor that torch is not to see, as it would cast it to the type of its parameter."""

    tensor: Tensor


@define
class StateDecoder:
    """Turns what `Flattening` made back into values. Every tensor is new; one that was met twice is one tensor again.

    found: the parts, by name. holds: a tensor that is to keep its type comes as `Held`.
    spread: what reads a tensor, by its name, of which this process holds but a part. keys: parameters by name.
    own_type: afterwards, the ids of the counters that are to keep theirs.
    """

    found: Mapping[str, Part]
    classes: Classes = field(factory=dict)
    holds: bool = True
    spread: Mapping[str, Callable[[Part], Tensor]] = field(factory=dict)
    keys: Mapping[str, Tensor] = field(factory=dict)
    own_type: set[int] = field(factory=set, init=False)
    _tensors: dict[str, Tensor] = field(factory=dict, init=False)

    def restore(self, value: Any, device: torch.device | None = None) -> Any:
        """The value. Tensors within objects are put on `device`: torch, which places the others, does not see them.

        Raises ValueError where a tensor, a type or a class is not there.
        """
        if isinstance(value, list):
            return [self.restore(inner, device) for inner in value]
        if not isinstance(value, dict):
            return value
        if TENSOR in value:
            return self._tensor(value[TENSOR], value.get(OWN_TYPE, False), device if value.get(ON_DEVICE) else None)
        if PARAMETER in value:
            return self.keys[value[PARAMETER]]
        if TUPLE in value:
            return tuple(self.restore(inner, device) for inner in value[TUPLE])
        if PAIRS in value:
            return {self.restore(key): self.restore(inner, device) for key, inner in value[PAIRS]}
        if DTYPE in value:
            return _torch_type(value[DTYPE])
        if OBJECT in value:
            return self._object(value[OBJECT], value["state"], device)
        return {key: self.restore(inner, device) for key, inner in value.items()}

    def _tensor(self, name: str, own_type: bool, device: torch.device | None) -> Tensor | UncastTensor:
        if name not in self.found:
            raise ValueError(f"The saved optimizer lacks the tensor {name!r}.")
        if name not in self._tensors:
            self._tensors[name] = _moved(self.spread.get(name, read_tensor)(self.found[name]), device)
        tensor = self._tensors[name]
        if own_type and self.holds and (tensor.dim() > 0 or tensor.is_complex()):
            return UncastTensor(tensor)
        if own_type:  # a counter, which optimizers look at as they load
            self.own_type.add(id(tensor))
        return tensor

    def _object(self, name: str, state: Any, device: torch.device | None) -> Any:
        kind = self.classes.get(name)
        if kind is None or not _is_plain(kind):
            raise ValueError(f"The saved optimizer holds a {name}, which this optimizer's module does not know.")
        kept = _moved(self.restore(state, device), device)
        if _speaks_for_itself(kind):
            made = kind()
            made.load_state_dict(kept)
            return made
        made = object.__new__(kind)
        vars(made).update(kept)
        return made


def _moved(value: Any, device: torch.device | None) -> Any:
    """`value` with its tensors on `device`."""
    if isinstance(value, Tensor):
        return value if device is None else value.to(device)
    if isinstance(value, dict):
        return {key: _moved(inner, device) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_moved(inner, device) for inner in value)
    return value


def tensor_names(value: Any) -> Iterator[str]:
    """The names of the tensors that what `Flattening` made mentions."""
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
    """Whether an object of the class is what its attributes, or its state dict, say."""
    return _speaks_for_itself(kind) or (
        kind.__dictoffset__ != 0 and not any("__new__" in vars(each) for each in kind.__mro__[:-1])
    )


def _speaks_for_itself(kind: type[Any]) -> bool:
    """Whether the class has a state dict, and can be made without arguments."""
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
        raise ValueError(f"The saved optimizer names the type {name!r}, which this torch does not have.")
    return found
