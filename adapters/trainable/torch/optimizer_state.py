"""The moments and options of a torch optimizer, under the names of the model's parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hexloop.adapters.trainable.torch.group_values import STATE_KEYS, GroupValues, plain_values
from hexloop.adapters.trainable.torch.layouts import (
    WHOLE,
    TorchLayout,
    WholeLayout,
    assigned_parts,
    entries_of,
    merge_uneven_state,
    shape_of,
)
from hexloop.adapters.trainable.torch.moment_checks import Expected, refuse_unfit_moments
from hexloop.adapters.trainable.torch.numbering import NUMBERED, by_name, refuse_other_shapes
from hexloop.adapters.trainable.torch.serialization import (
    StateDecoder,
    StateEncoder,
    UncastTensor,
    package_classes,
    read_slice,
    tensor_names,
    tensor_part,
)
from hexloop.domain.errors import CheckpointError
from hexloop.domain.json_documents import json_part, json_value
from hexloop.ports.parallelism import Spread
from hexloop.ports.state import JSON, Part

OPTIONS = "param_groups"
FURTHER = "further"
"""The entry of what a state dict has besides groups and the state of parameters."""


class OptimizerState:
    """Exportable adapter for any torch optimizer, whatever its state dict holds.

    Options and state may be tensors, numbers, strings, tuples, lists, dictionaries, torch types, and objects of the
    optimizer's own package with such attributes. They are restored bit-identically: torch decides on which device a
    loaded tensor is, but one whose dtype is not that of its parameter keeps its own, which torch would cast (8-bit
    states, float32 moments of bfloat16 weights). Construct it before the first step; see `GroupValues`.

    layout: how the tensors are distributed. If they are sharded, each is exported whole by one rank, and as an empty
    part by the others.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, layout: TorchLayout = WHOLE) -> None:
        self._model = model
        self._optimizer = optimizer
        self._layout = layout
        self._names = {id(parameter): name for name, parameter in layout.parameters(model).items()}
        self._groups = GroupValues(optimizer)

    def export(self) -> Iterator[Part]:
        """Yield each tensor as "<parameter>.<moment>", and everything else as one JSON document."""
        whole = isinstance(self._layout, WholeLayout)
        names = self._names if whole else {}
        flattening = StateEncoder(type(self._optimizer).__qualname__, package_classes(self._optimizer), names)
        kept = self._optimizer.state_dict()
        groups = self._groups.export(flattening, kept["param_groups"])
        named = dict(enumerate(self._named_parameters()))
        document: dict[str, Any] = {
            "groups": [{**group, "params": names} for group, names in zip(groups, self._present_names(), strict=True)],
            STATE_KEYS: self._groups.state_keys(),
            "state": {
                name: flattening.flatten(kept["state"][number], name, parameter)
                for number, (name, parameter) in named.items()
                if number in kept["state"]
            },
        }
        further = {key: value for key, value in kept.items() if key not in ("state", "param_groups")}
        unnumbered = {key: value for key, value in kept["state"].items() if key not in named}
        if further or unnumbered:
            values = {"top": further, "state": unnumbered}
            document[FURTHER] = {key: flattening.flatten(value, FURTHER) for key, value in values.items()}
        if whole:
            yield from (tensor_part(name, tensor) for name, tensor in flattening.tensors.items())
        else:
            entries = entries_of(flattening.tensors, flattening.parameters, self._layout)
            if self._layout.uneven:
                document["state"], entries = merge_uneven_state(
                    document["state"], entries, dict(named.values()), self._layout
                )
            yield from assigned_parts(entries, self._layout)
        yield json_part(OPTIONS, document)

    def load(self, parts: Iterable[Part]) -> None:
        """Load exported moments, learning rates and state; the options stay this optimizer's own.

        Raises ValueError, changing nothing, if they belong to other parameters or are invalid.
        """
        found = {part.name: part for part in parts}
        if OPTIONS not in found or found[OPTIONS].dtype != JSON:
            raise ValueError(f"The saved optimizer lacks its document {OPTIONS!r}.")
        document = json_value(found[OPTIONS])
        if unknown := found.keys() - {OPTIONS, *tensor_names(document)}:
            raise ValueError(f"The saved optimizer has tensors that it does not mention: {', '.join(sorted(unknown))}.")
        try:
            if document.get(NUMBERED):
                document = by_name(document, self._present_names(), self._model)
                refuse_other_shapes(document["state"], self._shapes(), found)
            self._refuse_other_groups(document["groups"])
            refuse_unfit_moments(self._optimizer, document["state"], found, self._expected())
            classes, spread = package_classes(self._optimizer), self._spread(document["state"], found)
            keys = self._layout.parameters(self._model)
            self._take(document, StateDecoder(found, classes, spread=spread, keys=keys))
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"The saved optimizer is malformed: {error!r}.") from error

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        parameters = self._layout.parameters(self._model)
        return {name: shape_of(parameter, parameter, self._layout) for name, parameter in parameters.items()}

    def _expected(self) -> dict[str, Expected]:
        return {
            self._name(each): Expected(shape_of(each, each, self._layout), [each.dtype], bool(group.get("fused")))
            for group in self._optimizer.param_groups
            for each in group["params"]
        }

    def _spread(self, state: Mapping[str, Any], found: Mapping[str, Part]) -> dict[str, Callable[[Part], Tensor]]:
        """Return, for each tensor that is sharded like its parameter, what reads this rank's elements of it."""
        readers: dict[str, Callable[[Part], Tensor]] = {}
        for name, parameter in self._named_parameters():
            spread = self._layout.spread(parameter, parameter)
            for tensor in tensor_names(state.get(name)) if spread is not None else ():
                if tensor in found and spread is not None and found[tensor].shape == spread.shape:
                    readers[tensor] = partial(_own, self._layout, parameter, spread)
        return readers

    def _take(self, document: Mapping[str, Any], restoring: StateDecoder) -> None:
        named = list(self._named_parameters())
        numbers = {name: number for number, (name, _) in enumerate(named)}
        merged = self._groups.merged(self._groups.taken(document, restoring))
        groups = [
            {**plain_values(values), "params": [numbers[name] for name in group["params"]]}
            for values, group in zip(merged, document["groups"], strict=True)
        ]
        state: dict[Any, Any] = {
            numbers[name]: restoring.restore(values, named[numbers[name]][1].device)
            for name, values in document["state"].items()
        }
        further = {key: restoring.restore(value) for key, value in document.get(FURTHER, {}).items()}
        unnumbered = further.get("state", {})
        self._optimizer.load_state_dict(
            {**further.get("top", {}), "state": {**state, **unnumbered}, "param_groups": groups}
        )
        self._groups.put(merged)
        for number, (_, parameter) in enumerate(named):
            if number in state and parameter in self._optimizer.state:
                loaded = self._optimizer.state[parameter]
                self._optimizer.state[parameter] = _exact(state[number], loaded, parameter, restoring.own_type)

    def _refuse_other_groups(self, groups: list[dict[str, Any]]) -> None:
        saved, present = [group["params"] for group in groups], self._present_names()
        if saved != present:
            raise ValueError(
                f"The saved optimizer has the parameter groups {saved}, and this one has {present}; "
                "resume with the model and the weight decay that it was saved with."
            )

    def _present_names(self) -> list[list[str]]:
        return [[self._name(parameter) for parameter in group["params"]] for group in self._optimizer.param_groups]

    def _named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                yield self._name(parameter), parameter

    def _name(self, parameter: Tensor) -> str:
        if id(parameter) not in self._names:
            raise CheckpointError(
                f"The optimizer has a tensor of shape {tuple(parameter.shape)} that is not a parameter of the model, "
                "so no checkpoint would hold it; register it as a parameter of the model."
            )
        return self._names[id(parameter)]


def _own(layout: TorchLayout, parameter: Tensor, spread: Spread, part: Part) -> Tensor:
    """Return this rank's elements of a moment."""
    return layout.like(parameter, read_slice(part, *spread.own))


def _exact(saved: Any, loaded: Any, parameter: Tensor, own_type: set[int]) -> Any:
    """Return the state that the optimizer loaded, its tensors with the dtype and the strides of `saved`."""
    if isinstance(loaded, UncastTensor):
        saved = loaded = loaded.tensor.to(parameter.device)
    if isinstance(saved, Tensor) and isinstance(loaded, Tensor) and saved.shape == loaded.shape:
        if loaded.dtype != saved.dtype and id(saved) in own_type:
            loaded = saved.to(loaded.device)
        if loaded.shape == parameter.shape and loaded.stride() != parameter.stride():
            loaded = torch.empty_like(parameter, dtype=loaded.dtype, requires_grad=False).copy_(loaded)
        return loaded
    if isinstance(saved, dict) and isinstance(loaded, dict):
        return {
            key: _exact(saved[key], value, parameter, own_type) if key in saved else value
            for key, value in loaded.items()
        }
    if isinstance(saved, list | tuple) and type(loaded) is type(saved) and len(saved) == len(loaded):
        pairs = zip(saved, loaded, strict=True)
        return type(saved)(_exact(one, other, parameter, own_type) for one, other in pairs)
    return loaded
