"""Conversion between torch optimizers' state dicts, which number the parameters, and hexloop's, which names them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from hexloop.adapters.trainable.torch.optimizers import decayed_names
from hexloop.adapters.trainable.torch.serialization import TENSOR, StateDecoder, StateEncoder, tensor_part
from hexloop.domain.json_documents import json_part, json_value
from hexloop.ports.state import Part

NUMBERED = "numbered"
"""The entry of a document whose parameters are numbered."""

OF_PARAMETERS_SHAPE = frozenset({"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "sum", "square_avg"})
"""State that has its parameter's shape in every torch optimizer that has state of this name."""


def numbered_parts(state_dict: Mapping[str, Any]) -> Iterator[Part]:
    """Yield the parts that `OptimizerState` loads from an optimizer's state dict, which has no parameter names.

    Raises CheckpointError if it holds values that a checkpoint cannot hold.
    """
    flattening = StateEncoder("an optimizer")
    document = {
        NUMBERED: True,
        "groups": [
            {**flattening.flatten(dict(group), "group"), "params": list(group["params"])}
            for group in state_dict["param_groups"]
        ],
        "state": {str(number): flattening.flatten(dict(v), str(number)) for number, v in state_dict["state"].items()},
    }
    for name, tensor in flattening.tensors.items():
        yield tensor_part(name, tensor)
    yield json_part("param_groups", document)


def by_name(document: Mapping[str, Any], present: Sequence[Sequence[str]], model: nn.Module) -> dict[str, Any]:
    """Return a numbered document with the numbers replaced by the optimizer's parameter names, `present` by group.

    Groups of the same sizes correspond one to one, as in torch. If this optimizer has one group, two saved groups with
    equal options are merged: transformers separates parameters with and without weight decay even if it is 0.
    Raises ValueError in all other cases.
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
            f"{[len(group) for group in present]}; resume with the model, the optimizer and the weight decay that it "
            "was saved with."
        )
    return names, [{**options[0], "params": list(one)}]


def refuse_other_shapes(
    state: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], found: Mapping[str, Part]
) -> None:
    """Raise ValueError for a moment whose shape is not that of its parameter; `shapes` are by parameter name."""
    for name, values in state.items():
        for key, value in values.items() if isinstance(values, dict) else ():
            if key in OF_PARAMETERS_SHAPE and isinstance(value, dict) and TENSOR in value:
                part = found.get(value[TENSOR])
                if part is not None and part.shape != shapes[name]:
                    raise ValueError(
                        f"The saved optimizer's {key} of {name} has the shape {part.shape}, and the parameter has "
                        f"{shapes[name]}: the parameters were in another order; resume with the model that it was "
                        "saved with."
                    )


def state_dict_of(parts: Mapping[str, Part], groups: Sequence[Sequence[str]] | None = None) -> dict[str, Any]:
    """Return a torch optimizer's state dict from what `OptimizerState` exported, with numbered parameters.

    groups: the parameter names by group, if the one saved group is to be split. Raises ValueError for objects, and for
    state that torch's own state dicts do not have.
    """
    document, restoring = json_value(parts["param_groups"]), StateDecoder(parts, holds=False)
    saved = document["groups"]
    if document.get("further"):
        raise ValueError("the optimizer has state other than that of parameters")
    if groups is not None:
        (one,) = saved
        saved = [{**one, "params": list(names)} for names in groups]
    numbers: dict[str, int] = {}
    for group in saved:
        for name in group["params"]:
            numbers[name] = len(numbers)
    return {
        "state": {numbers[name]: restoring.restore(values) for name, values in document["state"].items()},
        "param_groups": [
            {**restoring.restore({k: v for k, v in group.items() if k != "params"}),
             "params": [numbers[name] for name in group["params"]]}
            for group in saved
        ],
    }  # fmt: skip
