"""The parameter groups of saved optimizers: their learning rates, options and state, and the names of the parameters.

A resumed run takes the learning rates and the state from the checkpoint, and keeps its own options. State is what the
optimizer, a schedule or a callback changed since the run started, and every tensor. Functions are configuration: they
are not saved, and the resumed run has those that it was constructed with.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hexloop.adapters.trainable.torch.composite import owner_of
from hexloop.adapters.trainable.torch.decay_groups import decayed_names
from hexloop.adapters.trainable.torch.names import by_own_names, fitting_names
from hexloop.adapters.trainable.torch.serialization import (
    StateDecoder,
    StateEncoder,
    UncastTensor,
    tensor_names,
    tensor_part,
)
from hexloop.domain.json_documents import json_part, json_value
from hexloop.ports.state import Part

STATE_KEYS = "state_keys"
"""The entry of a saved optimizer that lists, for each group, the values that changed since the run started."""

SET_AT_CONSTRUCTION = frozenset({"seed"})
"""State of a parameter that an optimizer, such as APOLLO, has before its first step."""

TORCH = "torch.optim"
PARAMETERS = frozenset({"params", "param_names"})

RATES = frozenset({"lr", "initial_lr", "max_lr", "min_lr"})
"""Set by the schedule; always loaded from a checkpoint."""

IMPLEMENTATION = frozenset({"foreach", "fused", "capturable", "differentiable", "maximize"})
"""Never loaded from a checkpoint: they select the kernel, or the direction of the steps."""

CYCLED = frozenset({"momentum", "betas"})
"""The values, besides the rates, that torch's schedules change in the groups of torch's optimizers."""

SCHEDULED = RATES | CYCLED | {"weight_decay"}
"""The values that schedules change. Of torch's optimizers, all other options are those of the run."""

_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType, type, partial)
_PLAIN = (bool, int, float, complex, str, torch.dtype)


def is_from(packages: str | tuple[str, ...], optimizer: Optimizer) -> bool:
    """Return whether the optimizer is one of these packages' own, or derived from one."""
    kinds = (kind for kind in type(optimizer).__mro__ if issubclass(kind, Optimizer) and kind is not Optimizer)
    return any(kind.__module__.startswith(packages) for kind in kinds)


class GroupValues:
    """The values in an optimizer's groups. Construct it before the first step: later changes count as state."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        stepped = any(values.keys() - SET_AT_CONSTRUCTION for values in optimizer.state.values())
        self._first = [
            {
                key: deepcopy(owner_of(optimizer, number).defaults.get(key, value) if stepped else value)
                for key, value in group.items()
                if key not in PARAMETERS and _is_plain(value)
            }
            for number, group in enumerate(optimizer.param_groups)
        ]

    def export(self, encoder: StateEncoder, groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the values of `groups`, those of a state dict, as JSON; functions are left out.

        Raises CheckpointError for a value that cannot be stored.
        """
        return [
            {
                key: encoder.encode(value, f"group.{key}")
                for key, value in group.items()
                if key not in PARAMETERS and not _is_function(value)
            }
            for group in groups
        ]

    def state_keys(self) -> list[list[str]]:
        """Return the keys of the values that changed, by group."""
        return [
            sorted(
                key
                for key, value in group.items()
                if key not in PARAMETERS and not _is_function(value) and not self._is_unchanged(number, key, value)
            )
            for number, group in enumerate(self._optimizer.param_groups)
        ]

    def taken(self, document: Mapping[str, Any], decoder: StateDecoder) -> list[dict[str, Any]]:
        """Return the values to take from a saved optimizer, by group.

        Raises ValueError for a value whose type differs from the optimizer's own.
        """
        groups, listed = document["groups"], document.get(STATE_KEYS)
        if listed is not None and len(listed) != len(groups):
            raise ValueError(f"The saved optimizer lists the state of {len(listed)} groups, but has {len(groups)}.")
        taken, accepted = list[dict[str, Any]](), set[str]()
        for number, (saved, live) in enumerate(zip(groups, self._optimizer.param_groups, strict=True)):
            device = live["params"][0].device if live["params"] else None
            keys = self._keys_of_older(saved, live, number) if listed is None else listed[number]
            values = {}
            for key, value in saved.items():
                if key in PARAMETERS or key in IMPLEMENTATION or key not in RATES.union(keys):
                    continue
                restored = decoder.decode(value, device)
                restored = restored.tensor if isinstance(restored, UncastTensor) else restored
                values[key] = self._checked(key, live, restored, number)
            self._refuse_invalid(number, {**live, **values}, accepted)
            taken.append(values)
        return taken

    def _checked(self, key: str, live: Mapping[str, Any], restored: Any, number: int) -> Any:
        """Return a saved value to replace the optimizer's own. Raises ValueError if it is of another kind."""
        own = live.get(key)
        of_torch = is_from(TORCH, owner_of(self._optimizer, number))
        if key not in live or not (key in RATES or of_torch or (own is not None and restored is not None)):
            return restored
        value = _like(own, restored, key)
        if of_torch and _is_plain(own) and key not in SCHEDULED and repr(value) != repr(own):
            raise ValueError(
                f"The saved optimizer has {key}={value!r} in group {number}, and this run {key}={own!r}: options are "
                f"those of the run. Start it with {key}={value!r} to continue with that value."
            )
        return value

    def _refuse_invalid(self, number: int, values: Mapping[str, Any], accepted: set[str]) -> None:
        """Raise ValueError if the optimizer's class would not accept these values.

        accepted: the values that it has accepted, as text; most groups have the same.
        """
        kind = type(owner_of(self._optimizer, number))
        if not kind.__module__.startswith(TORCH):
            return
        given = {key: values[key] for key in SCHEDULED & values.keys() if not isinstance(values[key], Tensor)}
        if (text := f"{kind.__name__}: {given}") in accepted:
            return
        try:
            kind([torch.zeros(1, 1)], **{key: value for key, value in given.items() if key in _keywords(kind)})
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"The saved optimizer has values in group {number} that {kind.__name__} refuses: {error}."
            ) from error
        accepted.add(text)

    def merged(self, taken: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return each group's values, without the parameters, updated with those that were taken."""
        return [
            {**{key: value for key, value in group.items() if key not in PARAMETERS}, **values}
            for group, values in zip(self._optimizer.param_groups, taken, strict=True)
        ]

    def put(self, merged: Sequence[Mapping[str, Any]]) -> None:
        """Update the optimizer's groups."""
        for group, values in zip(self._optimizer.param_groups, merged, strict=True):
            group.update(values)

    def _is_unchanged(self, number: int, key: str, value: Any) -> bool:
        first = self._first[number] if number < len(self._first) else {}
        return key in first and _is_plain(value) and repr(first[key]) == repr(value)  # also of the same types, or nan

    def _keys_of_older(self, saved: Mapping[str, Any], live: Mapping[str, Any], number: int) -> Iterator[str]:
        """Yield the keys that are state in a checkpoint that does not list them."""
        for key, value in saved.items():
            if (
                key not in live
                or not _is_plain(live[key])
                or any(tensor_names(value))
                or key in CYCLED
                or not is_from(TORCH, owner_of(self._optimizer, number))
            ):
                yield key


def _keywords(kind: type[Optimizer]) -> Collection[str]:
    return inspect.signature(kind).parameters.keys()


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a group that `load_state_dict` can copy: plain values and tensors."""
    return {key: value for key, value in values.items() if isinstance(value, Tensor) or _is_plain(value)}


def _is_function(value: Any) -> bool:
    """Return whether a value is a function or class, or a collection of these only."""
    if isinstance(value, list | tuple):
        return bool(value) and all(map(_is_function, value))
    if isinstance(value, dict):
        return bool(value) and all(map(_is_function, value.values()))
    return isinstance(value, _FUNCTIONS)


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple | set):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value.keys())) and all(map(_is_plain, value.values()))
    return value is None or isinstance(value, _PLAIN)


def _like(own: Any, saved: Any, key: str) -> Any:
    """Return a saved value to replace the optimizer's own. Raises ValueError if its type or shape differs."""
    if isinstance(own, Tensor):
        if not isinstance(saved, Tensor):
            saved = torch.tensor(_number(saved, key), dtype=own.dtype)
        if saved.shape != own.shape or saved.dtype != own.dtype:
            raise ValueError(
                f"The saved optimizer has {key} of shape {tuple(saved.shape)} and {saved.dtype} in a group, and this "
                f"one of shape {tuple(own.shape)} and {own.dtype}."
            )
        return saved.to(own.device)
    if isinstance(own, bool):
        if not isinstance(saved, bool):
            raise ValueError(f"The saved optimizer has {key}={saved!r} in a group, which is not True or False.")
    elif isinstance(own, int | float) and not isinstance(saved, Tensor):
        _number(saved, key)
    elif isinstance(own, tuple):
        if not isinstance(saved, list | tuple) or len(own) != len(saved):
            raise ValueError(f"The saved optimizer has {key}={saved!r} in a group, which should have {len(own)} items.")
        return tuple(_like(before, after, key) for before, after in zip(own, saved, strict=True))
    elif key in RATES and isinstance(saved, Tensor):
        return saved.item()
    return saved


def _number(saved: Any, key: str) -> int | float:
    if isinstance(saved, bool) or not isinstance(saved, int | float):
        raise ValueError(f"The saved optimizer has {key}={saved!r} in a group, which is not a number.")
    return saved


# Conversion between torch optimizers' state dicts, which number the parameters, and hexloop's, which name them

NUMBERED = "numbered"
"""The key of a document that numbers the parameters."""


def numbered_parts(state_dict: Mapping[str, Any]) -> Iterator[Part]:
    """Return the parts that `OptimizerState` loads, from a state dict without the names of the parameters.

    Raises CheckpointError if it contains a value that cannot be stored.
    """
    encoder = StateEncoder("an optimizer")
    document = {
        NUMBERED: True,
        "groups": [
            {**encoder.encode(dict(group), "group"), "params": list(group["params"])}
            for group in state_dict["param_groups"]
        ],
        "state": {str(number): encoder.encode(dict(v), str(number)) for number, v in state_dict["state"].items()},
    }
    for name, tensor in encoder.tensors.items():
        yield tensor_part(name, tensor)
    yield json_part("param_groups", document)


def by_name(document: Mapping[str, Any], present: Sequence[Sequence[str]], model: nn.Module) -> dict[str, Any]:
    """Return a numbered document with the names of the optimizer's parameters (`present`, by group) instead of numbers.

    As in torch, groups of the same sizes correspond one by one, those without parameters aside. Two saved groups for
    one of this optimizer are those that transformers makes with and without weight decay.
    Raises ValueError if the groups do not correspond.
    """
    saved, sizes = document["groups"], [len(names) for names in present if names]
    if _sizes(saved) == sizes:
        names = [name for group in present for name in group]
    else:
        names = _in_transformers_order(saved, sizes, present, model)
    numbers = [number for group in saved for number in group["params"]]
    name_of = {str(number): name for number, name in zip(numbers, names, strict=True)}
    groups = [{**group, "params": [name_of[str(number)] for number in group["params"]]} for group in saved]
    state = {name_of[number]: values for number, values in document["state"].items()}
    return regrouped({"groups": groups, "state": state}, present)


def of_parameters(document: Mapping[str, Any], own: Collection[str]) -> dict[str, Any]:
    """Return a saved document with the names `own` where it has those of a wrapped model; see `fitting_names`.

    The tensors keep their names, by which the document refers to the parts.
    """
    own = frozenset(own)
    names = fitting_names({name for group in document["groups"] for name in group["params"]}, own)
    if all(name == fitting for name, fitting in names.items()):
        return dict(document)
    groups = [{**group, "params": [names[name] for name in group["params"]]} for group in document["groups"]]
    return {
        **document,
        "groups": groups,
        **{
            key: {names.get(name, name): value for name, value in document[key].items()}
            for key in ("state", "masters")
            if key in document
        },
    }


def _in_transformers_order(
    saved: Sequence[Mapping[str, Any]], sizes: list[int], present: Sequence[Sequence[str]], model: nn.Module
) -> list[str]:
    decayed = frozenset(by_own_names(model, dict.fromkeys(decayed_names(model))))
    one, *others = [names for names in present if names] or [[]]
    names = [name for name in one if name in decayed] + [name for name in one if name not in decayed]
    expected = [sum(name in decayed for name in one), sum(name not in decayed for name in one)]
    if others or [len(group["params"]) for group in saved] != expected:
        raise ValueError(
            f"The saved optimizer has groups of {_sizes(saved)} parameters, and this one has groups of "
            f"{sizes}; resume with the same model, optimizer and weight decay."
        )
    return names


def _sizes(groups: Sequence[Mapping[str, Any]]) -> list[int]:
    return [len(group["params"]) for group in groups if group["params"]]


def regrouped(document: Mapping[str, Any], present: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return a saved document with its parameters in the groups of this optimizer, which are `present` by name.

    A group takes the values of the saved group of its parameters, and an empty group those of the saved group of its
    number. Earlier versions made one group where nothing is decayed, and some engines remove empty groups.
    The document is returned as it is if it does not hold the same parameters; see `check_groups`.
    Raises ValueError if parameters of one group were in several with other values.
    """
    saved, listed = document["groups"], document.get(STATE_KEYS)
    where = {name: number for number, group in enumerate(saved) for name in group["params"]}
    same_number = len(saved) == len(present)
    if (same_number and _partition(group["params"] for group in saved) == _partition(present)) or not saved:
        return dict(document)
    if sorted(where) != sorted(name for group in present for name in group):
        return dict(document)
    groups, keys = [], []
    for number, group in enumerate(present):
        sources = sorted({where[name] for name in group}) or [min(number, len(saved) - 1)]
        first, *others = (_state(saved[source], None if listed is None else listed[source]) for source in sources)
        if any(each != first for each in others):
            raise ValueError(
                f"The saved optimizer has the parameters of group {number} in groups with other values; resume with "
                "the same parameter groups."
            )
        groups.append({**saved[sources[0]], "params": list(group)})
        keys.append(None if listed is None else listed[sources[0]])
    return {**document, "groups": groups, **({} if listed is None else {STATE_KEYS: keys})}


def _partition(groups: Iterable[Sequence[str]]) -> set[frozenset[str]]:
    return {frozenset(group) for group in groups if group}


def _state(group: Mapping[str, Any], listed: Sequence[str] | None) -> str:
    """Return the values of a saved group that are state, as text that compares also nan; all if they are not listed."""
    keys = group.keys() - PARAMETERS if listed is None else RATES.union(listed)
    return repr({key: group.get(key) for key in sorted(keys)})


def state_dict_of(parts: Mapping[str, Part], groups: Sequence[Sequence[str]] | None = None) -> dict[str, Any]:
    """Return the state dict of a torch optimizer from the parts that `OptimizerState` exported, with numbers in order.

    groups: the names of the parameters by group, to split the only saved group.
    Raises ValueError if the state contains objects, or more than groups and the state of parameters.
    """
    document, decoder = json_value(parts["param_groups"]), StateDecoder(parts, hides=False)
    saved = document["groups"]
    if document.get("further"):
        raise ValueError("the optimizer has more state than that of parameters")
    if groups is not None:
        (one,) = saved
        saved = [{**one, "params": list(names)} for names in groups]
    numbers: dict[str, int] = {}
    for group in saved:
        for name in group["params"]:
            numbers[name] = len(numbers)
    return {
        "state": {numbers[name]: decoder.decode(values) for name, values in document["state"].items()},
        "param_groups": [
            {**decoder.decode({k: v for k, v in group.items() if k != "params"}),
             "params": [numbers[name] for name in group["params"]]}
            for group in saved
        ],
    }  # fmt: skip
