"""Nested values with tensors in them, as JSON beside tensors that have names, and back."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from numbers import Integral, Real
from typing import Any

import torch
from attrs import define, field, frozen
from torch import Tensor

from hexloop.adapters.trainable.torch.tensors import tensor_of
from hexloop.domain.errors import CheckpointError
from hexloop.ports.state import Part

TENSOR, TUPLE, PAIRS, DTYPE, OBJECT = "__tensor__", "__tuple__", "__pairs__", "__dtype__", "__object__"
"""How JSON marks a tensor that is a part of its own, a tuple, a dictionary whose keys are no texts, a torch type, and
an object of a class that the optimizer's modules know."""

OWN_TYPE = "own_type"
"""Beside TENSOR: the tensor is of another type than the parameter that it belongs to, and stays so."""

_MARKS = frozenset({TENSOR, TUPLE, PAIRS, DTYPE, OBJECT})

Classes = Mapping[str, type[Any]]


def classes_near(owner: object) -> Classes:
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
class Flattening:
    """Turns values into JSON; their tensors gather in `tensors` under dotted names, each once however often it is met.

    owner: whose values they are, for messages. classes: those of which objects may be kept.
    parameters: afterwards, for the tensors of a parameter's state, that parameter.
    """

    owner: str
    classes: Classes = field(factory=dict)
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
        own = parameter is not None and tensor.dtype != parameter.dtype
        return {TENSOR: known, OWN_TYPE: True} if own else {TENSOR: known}

    def _dictionary(self, value: dict[Any, Any], name: str, parameter: Tensor | None) -> dict[str, Any]:
        if all(isinstance(key, str) for key in value) and not _MARKS & value.keys():
            return {key: self.flatten(inner, f"{name}.{key}", parameter) for key, inner in value.items()}
        return {
            PAIRS: [
                [self.flatten(key, name), self.flatten(inner, f"{name}.{key}", parameter)]
                for key, inner in value.items()
            ]
        }

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
class Held:
    """A tensor that torch is not to see, as it would cast it to the type of its parameter."""

    tensor: Tensor


@define
class Restoring:
    """Turns what `Flattening` made back into values. Every tensor is new; one that was met twice is one tensor again.

    found: the parts, by name. holds: a tensor that is to keep its type comes as `Held`.
    spread: what reads a tensor, by its name, of which this process holds but a part.
    own_type: afterwards, the ids of the counters that are to keep theirs.
    """

    found: Mapping[str, Part]
    classes: Classes = field(factory=dict)
    holds: bool = True
    spread: Mapping[str, Callable[[Part], Tensor]] = field(factory=dict)
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
            return self._tensor(value[TENSOR], value.get(OWN_TYPE, False))
        if TUPLE in value:
            return tuple(self.restore(inner, device) for inner in value[TUPLE])
        if PAIRS in value:
            return {self.restore(key): self.restore(inner, device) for key, inner in value[PAIRS]}
        if DTYPE in value:
            return _torch_type(value[DTYPE])
        if OBJECT in value:
            return self._object(value[OBJECT], value["state"], device)
        return {key: self.restore(inner, device) for key, inner in value.items()}

    def _tensor(self, name: str, own_type: bool) -> Tensor | Held:
        if name not in self.found:
            raise ValueError(f"The saved optimizer lacks the tensor {name!r}.")
        if name not in self._tensors:
            self._tensors[name] = self.spread.get(name, tensor_of)(self.found[name])
        tensor = self._tensors[name]
        if own_type and self.holds and (tensor.dim() > 0 or tensor.is_complex()):
            return Held(tensor)
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


def tensors_in(value: Any) -> Iterator[str]:
    """The names of the tensors that what `Flattening` made mentions."""
    if isinstance(value, list):
        for inner in value:
            yield from tensors_in(inner)
    elif isinstance(value, dict):
        if TENSOR in value:
            yield value[TENSOR]
        else:
            yield from tensors_in(list(value.values()))


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
