"""Tolerances for comparing two runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from attrs import frozen
from torch import Tensor

from tests.end_to_end.parity.models import UNDETERMINED
from tests.end_to_end.parity.runs import Outcome

TIMES = ("_runtime", "_per_second")
"""Suffixes of values that depend on the clock."""

OPERATIONS = "total_flos"
"""If a model does not know its operation count, hexloop measures it, and transformers reports 0."""


@frozen
class Tolerance:
    """Accepted relative differences.

    logged: of each logged number. model: of all weights, as the norm of the difference over their norm. tensor: of each
    tensor's weights likewise, None if tensors are not compared by themselves. gradient: of each tensor's gradient at
    the first update likewise.
    """

    logged: float = 1e-6
    model: float = 1e-5
    tensor: float | None = None
    gradient: float | None = 1e-6


ADAM = Tolerance()
SGD = Tolerance(tensor=1e-5)
BF16 = Tolerance(logged=1e-3, model=1e-2, gradient=None)

GRADIENT_FLOOR = 1e-7
"""Differences below this fraction of the whole gradient's norm are rounding."""


def assert_same_run(one: Outcome, other: Outcome, tolerance: Tolerance, min_steps: int = 60) -> None:
    """Compare every logged loss, rate and gradient norm, the final weights, and the first update's gradients."""
    steps = one.output.global_step
    assert steps == other.output.global_step >= min_steps
    losses = one.series("loss")
    third = max(1, len(losses) // 3)
    assert sum(losses[-third:]) < sum(losses[:third]), "the model learned nothing, so nothing was compared"
    assert_same_log(one.log, other.log, tolerance.logged)
    assert_close(one.output.training_loss, other.output.training_loss, tolerance.logged, "training_loss")
    assert_same_weights(one.weights, other.weights, tolerance)
    if tolerance.gradient is not None:
        assert_same_gradients(one.gradients, other.gradients, tolerance.gradient)


def assert_same_log(
    one: list[dict[str, float]], other: list[dict[str, float]], tolerance: float, exact: tuple[str, ...] = ("step",)
) -> None:
    """Compare names, order of entries, and numbers, without times."""
    assert [sorted(entry) for entry in one] == [sorted(entry) for entry in other]
    for left, right in zip(one, other, strict=True):
        for name in (each for each in left if not each.endswith(TIMES)):
            if name == OPERATIONS and right[name] == 0:
                assert left[name] >= 0
                continue
            assert_close(left[name], right[name], 0.0 if name in exact else tolerance, f"{name} at {left['step']}")


def assert_close(one: float, other: float, tolerance: float, what: str) -> None:
    assert math.isclose(one, other, rel_tol=tolerance), f"{what}: {one!r} and {other!r} differ by over {tolerance}"


def assert_same_weights(one: Mapping[str, Tensor], other: Mapping[str, Tensor], tolerance: Tolerance) -> None:
    pairs = {name: (left, right) for name, left, right in _pairs(one, other)}
    difference = _norm(*(left - right for left, right in pairs.values())) / _norm(*(each for each, _ in pairs.values()))
    assert difference <= tolerance.model, f"the weights differ by {difference:.2g} of their norm"
    if tolerance.tensor is not None:
        for name, (left, right) in pairs.items():
            assert _norm(left - right) <= tolerance.tensor * _norm(right), f"{name} differs"


def assert_same_gradients(one: Mapping[str, Tensor], other: Mapping[str, Tensor], tolerance: float) -> None:
    assert one, "no update was seen"
    whole = _norm(*other.values())
    for name, left, right in _pairs(one, other):
        allowed = max(tolerance * _norm(right), GRADIENT_FLOOR * whole)
        assert _norm(left - right) <= allowed, f"{name}: {_norm(left - right):.2g} of {_norm(right):.2g}"


def _pairs(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Return both sides' tensors by name, in double precision, without those that do not affect the loss."""
    assert one.keys() == other.keys()
    for name in one:
        left, right = one[name].double().clone(), other[name].double().clone()
        if name in UNDETERMINED:
            left[UNDETERMINED[name]] = right[UNDETERMINED[name]] = 0.0
        yield name, left, right


def _norm(*tensors: Tensor) -> float:
    return math.sqrt(sum(float(torch.sum(tensor.double() ** 2)) for tensor in tensors))
