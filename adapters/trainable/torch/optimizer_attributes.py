"""State that an optimizer keeps in attributes of its own, outside of its state dict."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import ref

import numpy as np
import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from hexloop.adapters.trainable.torch.composite import members_of
from hexloop.adapters.trainable.torch.serialization import (
    Classes,
    StateDecoder,
    StateEncoder,
    UncastTensor,
    kept_of,
    package_classes,
)
from hexloop.domain.errors import CheckpointError

OF_TORCH = frozenset({*vars(SGD([torch.zeros(1)], lr=1.0)), "step", "_opt_called", "_step_count"})
"""The attributes that torch, and its schedules, set on every optimizer."""

GENERATOR = "generator"
"""The key for the state of a torch.Generator."""

VALUE = "value"
"""The key for any other value."""

_PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, type(None))


class OwnAttributes:
    """The attributes of an optimizer that change as it steps: numbers, tensors, collections, objects of its package.

    Construct it before the first step; see `export`. Truth values are not state: they say what is set up in a process.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._first = {name: self._fingerprint(value) for name, value in self._own()}

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each attribute that holds state which no checkpoint can contain."""
        kind = type(self._optimizer)
        owner = kind.__qualname__
        for name, value in self._own():
            if isinstance(value, random.Random | np.random.Generator | np.random.RandomState):
                yield (
                    f"{owner} keeps random numbers in {name}, a {_full_name(type(value))}, whose state is in no state "
                    "dict; draw from a torch.Generator"
                )
            if isinstance(value, Optimizer) and kind.state_dict is Optimizer.state_dict:
                yield (
                    f"{owner} keeps another optimizer in {name}, a {type(value).__qualname__}, whose state is not in "
                    f"its state dict; override state_dict and load_state_dict of {owner}"
                )

    def export(self, encoder: StateEncoder) -> dict[str, Any]:
        """Return the attributes that changed since the construction, as JSON.

        Raises CheckpointError for those that `problems` yields.
        """
        if problems := list(self.problems()):
            raise CheckpointError(f"The optimizer cannot be saved: {'; '.join(problems)}.")
        found: dict[str, Any] = {}
        for name, value in self._own():
            if isinstance(value, torch.Generator):
                found[name] = {GENERATOR: encoder.encode(value.get_state(), f"attribute.{name}")}
                continue
            fingerprint = self._fingerprint(value)
            if fingerprint is not None and fingerprint != self._first.get(name):
                found[name] = {VALUE: encoder.encode(value, f"attribute.{name}")}
        return found

    def taken(self, saved: Mapping[str, Any], decoder: StateDecoder) -> list[Callable[[], None]]:
        """Return functions that set saved attributes.

        Raises ValueError for an attribute that the optimizer does not have with that type, or that is none of its own.
        """
        return [self._setter(name, value, decoder) for name, value in saved.items()]

    def _setter(self, name: str, saved: Any, decoder: StateDecoder) -> Callable[[], None]:
        optimizer = self._optimizer
        if not name.isidentifier() or name.startswith("__") or name in OF_TORCH or hasattr(type(optimizer), name):
            raise ValueError(f"The saved optimizer has an attribute {name!r:.80}, which is not state of an optimizer.")
        own = vars(optimizer).get(name)
        if GENERATOR in saved:
            state = decoder.decode(saved[GENERATOR])
            if not isinstance(own, torch.Generator) or not _is_state_of(own, state):
                raise ValueError(f"The saved optimizer's {name} is not the state of its generator.")
            return lambda: _set_generator(own, state)
        value = decoder.decode(saved[VALUE])
        value = value.tensor if isinstance(value, UncastTensor) else value
        is_known = name in vars(optimizer) and own is not None
        if is_known and not _is_like(own, value):
            raise ValueError(
                f"The saved optimizer has a {type(value).__name__} as {name}, and this one has a {type(own).__name__}."
            )
        if isinstance(own, Tensor) and isinstance(value, Tensor):
            value = value.to(own.device)
        return lambda: setattr(optimizer, name, value)

    def _own(self) -> list[tuple[str, Any]]:
        return [(name, value) for name, value in vars(self._optimizer).items() if name not in OF_TORCH]

    def _fingerprint(self, value: Any) -> Any:
        """Return what tells whether a value has changed; None if it is not state."""
        if isinstance(value, bool):
            return None
        parameters = {id(each) for group in self._optimizer.param_groups for each in group["params"]}
        try:
            return _fingerprint(value, parameters, package_classes(self._optimizer))
        except TypeError:
            return None


class MemberAttributes:
    """The attributes of an optimizer, or of all that a composite one consists of."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._members = [OwnAttributes(each) for each in members_of(optimizer)]

    def problems(self) -> Iterator[str]:
        """Yield the problems of all of them; see `OwnAttributes.problems`."""
        for member in self._members:
            yield from member.problems()

    def export(self, encoder: StateEncoder) -> dict[str, Any]:
        """Return their attributes that changed, by name; those of the optimizers after the first by number and name."""
        return {
            f"{number}.{name}" if number else name: value
            for number, member in enumerate(self._members)
            for name, value in member.export(encoder).items()
        }

    def taken(self, saved: Mapping[str, Any], decoder: StateDecoder) -> list[Callable[[], None]]:
        """Return functions that set saved attributes; see `OwnAttributes.taken`."""
        own: list[dict[str, Any]] = [{} for _ in self._members]
        for key, value in saved.items():
            number, _, name = key.rpartition(".")
            place = next((place for place in range(len(own)) if str(place or "") == number), None)
            if place is None:
                raise ValueError(f"The saved optimizer has an attribute {key!r:.80} of an optimizer that is not there.")
            own[place][name] = value
        return [
            each for member, values in zip(self._members, own, strict=True) for each in member.taken(values, decoder)
        ]


class _Same:
    """Equals only what was made of the same object, which it does not keep alive."""

    def __init__(self, value: Any) -> None:
        self._value = ref(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value() is not None and self._value() is other._value()

    __hash__ = None  # type: ignore[assignment]


def _fingerprint(value: Any, parameters: set[int], classes: Classes) -> Any:
    """Return what tells whether a value has changed. Raises TypeError if it, or a part of it, is not state."""
    if isinstance(value, Tensor):
        if id(value) in parameters:  # the weights are the model's
            raise TypeError
        return _Same(value), value._version
    if isinstance(value, dict):
        keys = [_Same(key) if isinstance(key, Tensor) else repr(key) for key in value]
        return "dict", keys, [_fingerprint(inner, parameters, classes) for inner in value.values()]
    if isinstance(value, list | tuple | set):
        return type(value).__name__, [_fingerprint(inner, parameters, classes) for inner in value]
    if isinstance(value, _PLAIN):
        return type(value).__name__, repr(value)
    if (kept := kept_of(value, classes)) is not None:
        return _Same(value), _fingerprint(kept, parameters, classes)
    raise TypeError


def _is_like(own: Any, saved: Any) -> bool:
    if isinstance(own, Tensor):
        return isinstance(saved, Tensor) and saved.shape == own.shape and saved.dtype == own.dtype
    if isinstance(own, int | float) and not isinstance(own, bool):
        return isinstance(saved, int | float) and not isinstance(saved, bool)
    return isinstance(saved, type(own)) or (isinstance(own, dict) and isinstance(saved, dict))


def _is_state_of(own: torch.Generator, state: Any) -> bool:
    """Return whether a tensor is the state of such a generator, without changing it."""
    if not isinstance(state, Tensor) or state.dtype != torch.uint8 or state.shape != own.get_state().shape:
        return False
    try:
        torch.Generator(own.device).set_state(state)
    except RuntimeError:
        return False
    return True


def _set_generator(own: torch.Generator, state: Tensor) -> None:
    own.set_state(state)


def _full_name(kind: type[Any]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
