"""The state of a torch optimizer, under the names of the model's parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hexloop.adapters.trainable.torch.layouts import (
    WHOLE,
    TorchLayout,
    assigned_parts,
    entry_of,
    merge_uneven_state,
    shape_of,
)
from hexloop.adapters.trainable.torch.moments import OF_PARAMETER, MomentSpec, check_moments, check_order
from hexloop.adapters.trainable.torch.optimizer_attributes import OwnAttributes
from hexloop.adapters.trainable.torch.optimizer_document import OPTIONS, checked_document, refuse_invalid_counters
from hexloop.adapters.trainable.torch.parameter_groups import (
    NUMBERED,
    STATE_KEYS,
    GroupValues,
    by_name,
    of_parameters,
    plain_values,
    regrouped,
)
from hexloop.adapters.trainable.torch.serialization import (
    StateDecoder,
    StateEncoder,
    UncastTensor,
    is_wrapper,
    package_classes,
    read_box,
    tensor_names,
    tensor_part,
)
from hexloop.domain.errors import CheckpointError
from hexloop.domain.json_documents import json_part, json_value
from hexloop.domain.schemas import shown
from hexloop.domain.wording import enumeration, listed
from hexloop.ports.mesh import Spread
from hexloop.ports.state import JSON, Part

FURTHER = "further"
"""The key for what a state dict contains besides groups and the state of parameters."""

ATTRIBUTES = "attributes"
"""The key for the optimizer's own attributes that have changed."""

MOST_FURTHER = 16
"""Groups that a saved optimizer may have besides two for each of this one."""

OUTSIDE = "outside"
"""The key for the values of parameters that are not the model's, and the start of their names."""


class OptimizerState:
    """Implements the Exportable port for any torch optimizer, whatever its state dict contains.

    Options and state may be tensors, numbers, texts, tuples, lists, dictionaries, torch types, and objects of the
    optimizer's own package with such attributes. They are restored bit-identically: torch chooses the device of a
    loaded tensor, but a tensor whose type differs from its parameter's (8-bit state, float32 moments of bfloat16
    weights) keeps its type, which torch would change. Construct it before the first step; see `GroupValues`.
    Parameters that are not the model's, such as those of a loss function, are saved and loaded with the state, because
    nothing else would contain their values. Their names are "outside.0", "outside.1", ... in the order of the groups.
    layout: how tensors are distributed over the ranks. One rank exports a distributed tensor as a whole, the others
    export an empty part of it.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, layout: TorchLayout = WHOLE) -> None:
        self._model = model
        self._optimizer = optimizer
        self._layout = layout
        self._names = {id(parameter): name for name, parameter in layout.parameters(model).items()}
        self._groups = GroupValues(optimizer)
        self._attributes = OwnAttributes(optimizer)

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each part of the optimizer's state that no checkpoint can contain."""
        yield from self._attributes.problems()
        if type(self._optimizer).state_dict is Optimizer.state_dict:
            return
        if missing := {"state", "param_groups"} - self._optimizer.state_dict().keys():
            kind = type(self._optimizer).__qualname__
            yield f"the state dict of {kind} has no {enumeration(sorted(missing))}; return them from its state_dict"

    def export(self) -> Iterator[Part]:
        """Export each tensor as "<parameter>.<moment>", and everything else as one JSON document."""
        whole = self._layout.whole
        names = self._names if whole else {}
        encoder = StateEncoder(type(self._optimizer).__qualname__, package_classes(self._optimizer), names)
        kept = self._optimizer.state_dict()
        groups = self._groups.export(encoder, kept["param_groups"])
        named = dict(enumerate(self._named_parameters()))
        document: dict[str, Any] = {
            "groups": [{**group, "params": names} for group, names in zip(groups, self._present_names(), strict=True)],
            STATE_KEYS: self._groups.state_keys(),
            "state": {
                name: encoder.encode(kept["state"][number], name, parameter)
                for number, (name, parameter) in named.items()
                if number in kept["state"]
            },
        }
        if outside := self._outside():
            document[OUTSIDE] = {name: encoder.encode(each.detach(), name) for name, each in outside.items()}
        further = {key: value for key, value in kept.items() if key not in ("state", "param_groups")}
        unnumbered = {key: value for key, value in kept["state"].items() if key not in named}
        if further or unnumbered:
            values = {"top": further, "state": unnumbered}
            document[FURTHER] = {key: encoder.encode(value, FURTHER) for key, value in values.items()}
        if attributes := self._attributes.export(encoder):
            document[ATTRIBUTES] = attributes
        if whole:
            yield from (tensor_part(name, tensor) for name, tensor in encoder.tensors.items())
        else:
            owners = encoder.parameters
            entries = [entry_of(name, each, owners.get(name), self._layout) for name, each in encoder.tensors.items()]
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
            raise ValueError(f"The saved optimizer has no document {OPTIONS!r}.")
        document = json_value(found[OPTIONS])
        self._refuse_more(document, "groups", len(self._optimizer.param_groups), "parameter groups")
        self._refuse_more(document, "state", sum(map(len, self._present_names())), "parameters with state")
        document = checked_document(document)
        try:
            if unknown := found.keys() - {OPTIONS, *tensor_names(document)}:
                raise ValueError(f"The saved optimizer has unknown tensors: {listed(sorted(unknown), ', ', shown)}.")
            expected = self._expected()
            if document.get(NUMBERED):
                document = by_name(document, self._present_names(), self._model)
                check_order(document["state"], found, expected)
            document = of_parameters(document, self._names.values())
            document = regrouped(document, self._present_names())
            check_groups(document["groups"], self._present_names())
            outside = self._saved_outside(document.get(OUTSIDE, {}), found)
            check_moments(self._optimizer, document["state"], found, expected)
            classes, spread = package_classes(self._optimizer), self._spread(document["state"], found)
            keys = self._layout.parameters(self._model)
            self._load_document(document, StateDecoder(found, classes, spread=spread, keys=keys))
            with torch.no_grad():
                for parameter, saved in outside:
                    parameter.copy_(saved)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"The saved optimizer is invalid: {error!r}.") from error

    @staticmethod
    def _refuse_more(document: Any, key: str, present: int, what: str) -> None:
        """Raise ValueError if a saved optimizer has far more entries than this one, before each of them is checked.

        Groups without parameters, and those that are joined in this run, are allowed; see `regrouped`.
        """
        saved = document.get(key) if isinstance(document, dict) else None
        if isinstance(saved, list | dict) and len(saved) > 2 * present + MOST_FURTHER:
            raise ValueError(
                f"The saved optimizer has {len(saved)} {what}, and this one has {present}; resume with the same model "
                "and weight decay."
            )

    def _expected(self) -> dict[str, MomentSpec]:
        fused = [bool(group.get("fused")) for group in self._optimizer.param_groups for _ in group["params"]]
        return {
            name: MomentSpec(shape_of(each, each, self._layout), [each.dtype], is_fused)
            for (name, each), is_fused in zip(self._named_parameters(), fused, strict=True)
        }

    def _spread(self, state: Mapping[str, Any], found: Mapping[str, Part]) -> dict[str, Callable[[Part], Tensor]]:
        """Return a function that reads this rank's elements for each tensor that is distributed like its parameter."""
        readers: dict[str, Callable[[Part], Tensor]] = {}
        for name, parameter in self._named_parameters():
            spread = self._layout.spread(parameter, parameter)
            for tensor in tensor_names(state.get(name)) if spread is not None else ():
                if tensor in found and spread is not None and found[tensor].shape == spread.shape:
                    readers[tensor] = partial(_own, self._layout, parameter, spread)
        return readers

    def _load_document(self, document: Mapping[str, Any], decoder: StateDecoder) -> None:
        named = self._named_parameters()
        numbers = {name: number for number, (name, _) in enumerate(named)}
        merged = self._groups.merged(self._groups.taken(document, decoder))
        groups = [
            {**plain_values(values), "params": [numbers[name] for name in group["params"]]}
            for values, group in zip(merged, document["groups"], strict=True)
        ]
        state: dict[Any, Any] = {
            numbers[name]: decoder.decode(values, named[numbers[name]][1].device)
            for name, values in document["state"].items()
        }
        refuse_invalid_counters(self._optimizer, {name: state[numbers[name]] for name in document["state"]})
        refuse_other_shapes({name: state[numbers[name]] for name in document["state"]}, dict(named))
        further = {key: decoder.decode(value) for key, value in document.get(FURTHER, {}).items()}
        unnumbered = further.get("state", {})
        attributes = self._attributes.taken(document.get(ATTRIBUTES, {}), decoder)
        self._optimizer.load_state_dict(
            {**further.get("top", {}), "state": {**state, **unnumbered}, "param_groups": groups}
        )
        self._groups.put(merged)
        for set_attribute in attributes:
            set_attribute()
        for number, (_, parameter) in enumerate(named):
            if number in state and parameter in self._optimizer.state:
                loaded = self._optimizer.state[parameter]
                self._optimizer.state[parameter] = _exact(state[number], loaded, parameter, decoder.own_type)

    def _saved_outside(self, saved: Mapping[str, Any], found: Mapping[str, Part]) -> list[tuple[Tensor, Tensor]]:
        """Return the parameters that are not the model's with their saved values, which are absent in older files."""
        decoder, pairs = StateDecoder(found), []
        for name, parameter in self._outside().items():
            if name in saved:
                value = decoder.decode(saved[name], parameter.device)
                if not isinstance(value, Tensor) or value.shape != parameter.shape:
                    raise ValueError(
                        f"The saved {name}, a parameter of the optimizer that is not the model's, is not a tensor of "
                        f"shape {tuple(parameter.shape)}; resume with the same loss function."
                    )
                pairs.append((parameter, value))
        return pairs

    def _outside(self) -> dict[str, Tensor]:
        """Return the optimizer's parameters that are not the model's, by name."""
        named = dict(self._named_parameters()) if self._layout.whole else {}
        return {name: parameter for name, parameter in named.items() if id(parameter) not in self._names}

    def _present_names(self) -> list[list[str]]:
        names = iter([name for name, _ in self._named_parameters()])
        return [[next(names) for _ in group["params"]] for group in self._optimizer.param_groups]

    def _named_parameters(self) -> list[tuple[str, Tensor]]:
        """Return the optimizer's parameters by group, each with its name."""
        named, outside = list[tuple[str, Tensor]](), count()
        for parameter in (each for group in self._optimizer.param_groups for each in group["params"]):
            name = self._names.get(id(parameter))
            if name is None and not self._layout.whole:
                raise CheckpointError(
                    f"The optimizer updates a tensor of shape {tuple(parameter.shape)} that is not a parameter of the "
                    "model, so a checkpoint of sharded state would not contain it; register it as a parameter of the "
                    "model."
                )
            named.append((f"{OUTSIDE}.{next(outside)}" if name is None else name, parameter))
        return named


def check_groups(groups: Sequence[Mapping[str, Any]], present: list[list[str]]) -> None:
    """Raise ValueError if saved groups do not have the parameters `present`, by group."""
    saved = [group["params"] for group in groups]
    if saved != present:
        raise ValueError(
            f"The saved optimizer has the parameter groups {shown(saved)}, and this one has {shown(present)}; "
            "resume with the same model and weight decay."
        )


def refuse_other_shapes(state: Mapping[str, Any], parameters: Mapping[str, Tensor]) -> None:
    """Raise ValueError for quantized moments that do not have the shape of their parameter."""
    for name, values in state.items():
        for key, value in values.items() if isinstance(values, dict) else ():
            tensor = value.tensor if isinstance(value, UncastTensor) else value
            shape = parameters[name].shape
            if isinstance(tensor, Tensor) and is_wrapper(tensor) and key in OF_PARAMETER and tensor.shape != shape:
                raise ValueError(
                    f"The saved optimizer does not fit: {name}.{key} has shape {list(tensor.shape)}, and its parameter "
                    f"{list(shape)}."
                )


def _own(layout: TorchLayout, parameter: Tensor, spread: Spread, part: Part) -> Tensor:
    """Return this rank's elements of a moment."""
    return layout.like(parameter, read_box(part, spread))


def _exact(saved: Any, loaded: Any, parameter: Tensor, own_type: set[int]) -> Any:
    """Return the state that the optimizer `loaded` from `saved`, with the saved types, and the parameter's strides."""
    if isinstance(loaded, UncastTensor):
        saved = loaded = loaded.tensor.to(parameter.device)
        if is_wrapper(loaded):
            return loaded
    if isinstance(saved, Tensor) and isinstance(loaded, Tensor) and saved.shape == loaded.shape:
        if loaded.dtype != saved.dtype and id(saved) in own_type:
            loaded = saved.to(loaded.device)
        if loaded.shape == parameter.shape and loaded.stride() != parameter.stride():
            loaded = torch.empty_like(parameter, dtype=loaded.dtype, requires_grad=False).copy_(loaded)
        return loaded
    if isinstance(saved, dict) and isinstance(loaded, dict):
        return {
            key: _exact(saved.get(key), value, parameter, own_type)  # an optimizer may move entries as it loads them
            for key, value in loaded.items()
        }
    if isinstance(saved, list | tuple) and type(loaded) is type(saved) and len(saved) == len(loaded):
        pairs = zip(saved, loaded, strict=True)
        return type(saved)(_exact(one, other, parameter, own_type) for one, other in pairs)
    return loaded
