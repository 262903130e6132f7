"""The moments and options of a torch optimizer, under the names of the model's parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from hexloop.adapters.trainable.torch.tensors import part_of, tensor_of
from hexloop.domain.parts import json_part, json_value
from hexloop.ports.state import JSON, Part

OPTIONS = "param_groups"
TENSOR, TUPLE, PAIRS = "__tensor__", "__tuple__", "__pairs__"
"""How the JSON document marks a tensor that is a part of its own, a tuple, and a dictionary whose keys are no texts."""


class OptimizerState:
    """Answers the Exportable port for any optimizer whose state holds tensors and JSON-like values, however nested."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}

    def export(self) -> Iterator[Part]:
        """Each tensor as "<parameter>.<moment>", and everything else as one JSON document."""
        tensors: dict[str, Tensor] = {}
        document = {
            "groups": [_flatten(group, "group", tensors) for group in self._named_groups()],
            "state": {
                name: _flatten(self._optimizer.state[parameter], name, tensors)
                for name, parameter in self._named_parameters()
                if parameter in self._optimizer.state
            },
        }
        for name, tensor in tensors.items():
            yield part_of(name, tensor)
        yield json_part(OPTIONS, document)

    def load(self, parts: Iterable[Part]) -> None:
        """Go on with exported moments and options. Raises ValueError where they are those of other parameters."""
        found = {part.name: part for part in parts}
        if OPTIONS not in found or found[OPTIONS].dtype != JSON:
            raise ValueError(f"The saved optimizer lacks its document {OPTIONS!r}.")
        document = json_value(found[OPTIONS])
        groups = [_restore(group, found) for group in document["groups"]]
        saved = [group["params"] for group in groups]
        present = [group["params"] for group in self._named_groups()]
        if saved != present:
            raise ValueError(
                f"The saved optimizer has the parameter groups {saved}, and this one has {present}; "
                "resume with the model and the weight decay that it was saved with."
            )
        numbers = {name: number for number, (name, _) in enumerate(self._named_parameters())}
        for group in groups:
            group["params"] = [numbers[name] for name in group["params"]]
        state = {numbers[name]: _restore(values, found) for name, values in document["state"].items()}
        if unknown := found.keys() - {OPTIONS, *_tensors_in(document)}:
            raise ValueError(f"The saved optimizer has tensors that it does not mention: {', '.join(sorted(unknown))}.")
        self._optimizer.load_state_dict({"state": state, "param_groups": groups})

    def _named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                yield self._names[id(parameter)], parameter

    def _named_groups(self) -> list[dict[str, Any]]:
        return [
            {**group, "params": [self._names[id(parameter)] for parameter in group["params"]]}
            for group in self._optimizer.param_groups
        ]


def _flatten(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """`value` as JSON, its tensors put into `tensors` under dotted names."""
    if isinstance(value, Tensor):
        tensors[name] = value
        return {TENSOR: name}
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: _flatten(inner, f"{name}.{key}", tensors) for key, inner in value.items()}
        pairs = [[key, _flatten(inner, f"{name}.{key}", tensors)] for key, inner in value.items()]
        return {PAIRS: pairs}
    if isinstance(value, tuple):
        return {TUPLE: [_flatten(inner, f"{name}.{index}", tensors) for index, inner in enumerate(value)]}
    if isinstance(value, list):
        return [_flatten(inner, f"{name}.{index}", tensors) for index, inner in enumerate(value)]
    return value


def _tensors_in(value: Any) -> Iterator[str]:
    """The names of the tensors that what `_flatten` made mentions."""
    if isinstance(value, list):
        for inner in value:
            yield from _tensors_in(inner)
    elif isinstance(value, dict):
        if TENSOR in value:
            yield value[TENSOR]
        else:
            yield from _tensors_in(list(value.values()))


def _restore(value: Any, found: dict[str, Part]) -> Any:
    """The value that `_flatten` made JSON of."""
    if isinstance(value, list):
        return [_restore(inner, found) for inner in value]
    if not isinstance(value, dict):
        return value
    if TENSOR in value:
        if value[TENSOR] not in found:
            raise ValueError(f"The saved optimizer lacks the tensor {value[TENSOR]!r}.")
        return tensor_of(found[value[TENSOR]])
    if TUPLE in value:
        return tuple(_restore(inner, found) for inner in value[TUPLE])
    if PAIRS in value:
        return {key: _restore(inner, found) for key, inner in value[PAIRS]}
    return {key: _restore(inner, found) for key, inner in value.items()}
