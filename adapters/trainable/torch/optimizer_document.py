"""The JSON document of a saved optimizer: its schema, and the ranges of counters among its moments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import Factory, field, frozen
from torch import Tensor
from torch.optim import Optimizer

from hexloop.adapters.trainable.torch.moments import CHECKED, SCALARS
from hexloop.adapters.trainable.torch.parameter_groups import NUMBERED, is_from
from hexloop.adapters.trainable.torch.serialization import TENSOR
from hexloop.domain.ranges import MOST, Count, Positive, Updates
from hexloop.domain.schemas import KEY, Open, structured
from hexloop.domain.wording import listed

OPTIONS = "param_groups"
"""The name of the document."""

STEP = "step"


@frozen
class NamedGroup(Open):
    """A parameter group: the names of its parameters, and any options."""

    params: list[str]


@frozen
class NumberedGroup(Open):
    """A parameter group of a state dict of torch, which numbers the parameters."""

    params: list[Count]


@frozen
class TensorName(Open):
    """A tensor, by its name among the parts."""

    name: str = field(metadata={KEY: TENSOR})


@frozen
class LossScale:
    """The state of DeepSpeed's loss scaler, under the names of its attributes; a static one has only a scale."""

    cur_scale: Positive | None = None
    cur_iter: Count | None = None
    last_overflow_iter: Updates | None = None
    cur_hysteresis: Count | None = None


@frozen
class OptimizerDocument:
    """The groups with their options, and all state that is not a tensor, which names the tensors.

    state: of each parameter, by name. state_keys: the values of each group that changed since the run started; absent
    in older checkpoints. further: what a state dict contains besides. outside: parameters that are not the model's.
    attributes: those of the optimizer that have changed.
    masters: full-precision weights. loss_scale: of DeepSpeed. numbered: parameters have numbers instead of names.
    """

    groups: list[NamedGroup]
    state: dict[str, dict[str, Any]]
    state_keys: list[list[str]] | None = None
    further: dict[str, dict[str, Any]] = Factory(dict)
    outside: dict[str, TensorName] = Factory(dict)
    attributes: dict[str, dict[str, Any]] = Factory(dict)
    masters: dict[str, TensorName] = Factory(dict)
    loss_scale: LossScale | None = None


@frozen
class NumberedDocument:
    """The same of a state dict of torch."""

    numbered: bool
    groups: list[NumberedGroup]
    state: dict[str, dict[str, Any]]


def checked_document(document: Any) -> dict[str, Any]:
    """Return the document of a saved optimizer. Raises ValueError, with every problem, if it is not one."""
    is_numbered = isinstance(document, dict) and document.get(NUMBERED)
    structured(document, NumberedDocument if is_numbered else OptimizerDocument, OPTIONS)
    checked: dict[str, Any] = document
    return checked


def refuse_invalid_counters(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Raise ValueError, with every problem, for counters of torch's optimizers that no training leads to.

    state: the values of each parameter, by name.
    """
    if not is_from(CHECKED, optimizer):
        return
    problems = [
        problem
        for name, values in state.items()
        for key, value in (values.items() if isinstance(values, dict) else ())
        if key in SCALARS and (problem := _counter_problem(f"{name}.{key}", key, value))
    ]
    if problems:
        raise ValueError(f"The saved optimizer is invalid: {listed(problems)}.")


def _counter_problem(path: str, key: str, value: Any) -> str | None:
    if not isinstance(value, Tensor) or value.numel() != 1 or value.is_complex():
        return None
    number = float(value)
    if key == STEP and not (0 <= number <= MOST and number % 1 == 0):
        return f"{path}: {number:g} is not a whole number from 0 to {MOST}"
    return None if abs(number) < float("inf") else f"{path}: {number:g} is not a finite number"
