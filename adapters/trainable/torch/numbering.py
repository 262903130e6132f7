"""State dicts of torch optimizers, which know parameters by their number alone, and the names that hexloop knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from hexloop.adapters.trainable.torch.optimizers import decayed_names
from hexloop.adapters.trainable.torch.serialization import TENSOR, StateDecoder, StateEncoder, tensor_part
from hexloop.domain.json_documents import json_part, json_value
from hexloop.ports.state import Part

NUMBERED = "numbered"
"""The entry that says that a document knows parameters by number."""

OF_PARAMETERS_SHAPE = frozenset({"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "sum", "square_avg"})
"""State that has its parameter's shape in every torch optimizer that keeps it under this name."""


def numbered_parts(state_dict: Mapping[str, Any]) -> Iterator[Part]:
    """The parts that `OptimizerState` loads, of an optimizer's state dict without the names of its parameters.

    Raises CheckpointError where it holds what cannot be kept.
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
    """A numbered document with the names of the optimizer's parameters, `present` by group, in place of numbers.

    Groups of the same sizes correspond one by one, as torch has it. Where there is one group here and there were two
    alike, those were the reference library's, with and without weight decay, which came to the same.
    Raises ValueError where neither is so, or where a moment is not of its parameter's shape.
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
    """Raise ValueError where a moment of a parameter, by name, is not of the parameter's shape."""
    for name, values in state.items():
        for key, value in values.items() if isinstance(values, dict) else ():
            if key in OF_PARAMETERS_SHAPE and isinstance(value, dict) and TENSOR in value:
                part = found.get(value[TENSOR])
                if part is not None and part.shape != shapes[name]:
                    raise ValueError(
                        f"The saved optimizer's {key} of {name} is of shape {part.shape}, and the parameter of shape "
                        f"{shapes[name]}: the parameters came in another order; resume with the model that it was "
                        "saved with."
                    )


def state_dict_of(parts: Mapping[str, Part], groups: Sequence[Sequence[str]] | None = None) -> dict[str, Any]:
    """A torch optimizer's state dict of what `OptimizerState` exported, its parameters numbered in order.

    groups: the names of the parameters by group, where they are to be grouped otherwise than in the one saved group.
    Raises ValueError where it holds objects, or what a state dict of torch's own has no place for.
    """
    document, restoring = json_value(parts["param_groups"]), StateDecoder(parts, holds=False)
    saved = document["groups"]
    if document.get("further"):
        raise ValueError("the optimizer keeps more than the state of parameters")
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
