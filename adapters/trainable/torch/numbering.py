"""Conversion between torch optimizers' state dicts, which number the parameters, and hexloop's, which name them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from hexloop.adapters.trainable.torch.optimizers import decayed_names
from hexloop.adapters.trainable.torch.serialization import TENSOR, StateDecoder, StateEncoder, tensor_part
from hexloop.domain.json_documents import json_part, json_value
from hexloop.ports.state import Part

NUMBERED = "numbered"
"""The key of a document that numbers the parameters."""

OF_PARAMETERS_SHAPE = frozenset({"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "sum", "square_avg"})
"""The state that has its parameter's shape in all of torch's optimizers with this name."""


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

    As in torch, groups of the same sizes correspond one by one. Two saved groups with equal options are those that
    transformers makes with and without weight decay; they correspond to one group here.
    Raises ValueError if the groups do not correspond.
    """
    saved = [list(group["params"]) for group in document["groups"]]
    if [len(group) for group in saved] == [len(group) for group in present]:
        names = [name for group in present for name in group]
        groups = [{**group, "params": list(own)} for group, own in zip(document["groups"], present, strict=True)]
    else:
        names, groups = _merged(document["groups"], present, model)
    order = [number for group in saved for number in group]
    name_of = {str(number): name for number, name in zip(order, names, strict=True)}
    return {"groups": groups, "state": {name_of[number]: values for number, values in document["state"].items()}}


def _merged(
    groups: Sequence[Mapping[str, Any]], present: Sequence[Sequence[str]], model: nn.Module
) -> tuple[list[str], list[dict[str, Any]]]:
    sizes = [len(group["params"]) for group in groups]
    decayed = frozenset(decayed_names(model))
    options = [{key: value for key, value in group.items() if key != "params"} for group in groups]
    one, *others = present
    names = [name for name in one if name in decayed] + [name for name in one if name not in decayed]
    expected = [sum(name in decayed for name in one), sum(name not in decayed for name in one)]
    if others or sizes != expected or options[0] != options[1]:
        raise ValueError(
            f"The saved optimizer has groups of {sizes} parameters, and this one has groups of "
            f"{[len(group) for group in present]}; resume with the same model, optimizer and weight decay."
        )
    return names, [{**options[0], "params": list(one)}]


def check_shapes(state: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], found: Mapping[str, Part]) -> None:
    """Raise ValueError if a moment does not have the shape of its parameter, by name."""
    for name, values in state.items():
        for key, value in values.items() if isinstance(values, dict) else ():
            if key in OF_PARAMETERS_SHAPE and isinstance(value, dict) and TENSOR in value:
                part = found.get(value[TENSOR])
                if part is not None and part.shape != shapes[name]:
                    raise ValueError(
                        f"The saved optimizer's {key} of {name} has shape {part.shape}, and the parameter has shape "
                        f"{shapes[name]}: the parameters are in a different order; resume with the same model."
                    )


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
