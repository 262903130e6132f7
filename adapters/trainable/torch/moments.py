"""Checks of an optimizer's saved state before any of it is loaded.

Fused kernels do not check the state, and write beyond the memory of a moment that is smaller than its parameter, or of
a smaller type; other optimizers fail in the first step, or broadcast a moment of one element.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from attrs import frozen
from torch.optim import LBFGS, Optimizer

from hexloop.adapters.trainable.torch.parameter_groups import TORCH, is_from
from hexloop.adapters.trainable.torch.serialization import DTYPES, TENSOR, WRAPPER
from hexloop.domain.schemas import shown
from hexloop.domain.wording import first_listed
from hexloop.ports.state import Part

SCALARS = frozenset({"step", "eta", "mu", "mu_product", "RMS"})
"""Moments that are a single number."""

COMMON = frozenset({"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "sum", "square_avg"})
"""The state that has its parameter's shape in all of torch's optimizers with this name."""

OF_PARAMETER = COMMON | {"exp_inf", "grad_avg", "acc_delta", "ax", "prev", "step_size", "variance", "compensation"}
"""Moments that have their parameter's shape."""

FACTORS = {"row_var": -1, "col_var": -2}
"""Moments that have their parameter's shape except for one dimension, which is 1."""

AVERAGES = {"exp_avg_sq_row": -1, "exp_avg_sq_col": -2}
"""Moments that have their parameter's shape without one dimension."""

STATES = frozenset({"state1", "state2"})
"""Moments of bitsandbytes, of any type; one of its optimizers stores two of them in one tensor."""

CHECKED = ("torch.optim", "deepspeed", "apex", "bitsandbytes", "transformers", "hexloop")
"""The packages whose optimizers have moments of these names, and do not check them."""

PROBED = (TORCH, "transformers")
"""The packages whose optimizers a step of another one shows the moments of."""


@frozen
class MomentSpec:
    """What a parameter's moments may be: its whole shape, the allowed types (any if empty), whether it is fused."""

    shape: tuple[int, ...]
    dtypes: Collection[torch.dtype] = ()
    fused: bool = False


def check_order(state: Mapping[str, Any], found: Mapping[str, Part], parameters: Mapping[str, MomentSpec]) -> None:
    """Raise ValueError if a moment does not have the shape of its parameter, by name."""
    for name, values in state.items():
        for key, value in values.items() if isinstance(values, dict) else ():
            if key in COMMON and isinstance(value, dict) and TENSOR in value:
                part, shape = found.get(value[TENSOR]), parameters[name].shape
                if part is not None and part.shape != shape:
                    raise ValueError(
                        f"The saved optimizer's {key} of {name} has shape {part.shape}, and the parameter has shape "
                        f"{shape}: the parameters are in a different order; resume with the same model."
                    )


def check_moments(
    optimizer: Optimizer, state: Mapping[str, Any], found: Mapping[str, Part], parameters: Mapping[str, MomentSpec]
) -> None:
    """Raise ValueError, with the first problems, for saved moments that do not fit their parameters.

    state: the saved state of each parameter, by name; its tensors are in `found`.
    """
    if isinstance(optimizer, LBFGS):
        return
    if problems := first_listed(_problems(optimizer, state, found, parameters)):
        raise ValueError(f"The saved optimizer does not fit: {problems}.")


def _problems(
    optimizer: Optimizer, state: Mapping[str, Any], found: Mapping[str, Part], parameters: Mapping[str, MomentSpec]
) -> Iterator[str]:
    expected = _MomentNames(optimizer)
    check = _moment_problem if is_from(CHECKED, optimizer) else _foreign_moment_problem
    for name, values in state.items():
        if name not in parameters:
            yield f"it has state of {shown(name)}, which is not one of its parameters"
            continue
        if not isinstance(values, dict):
            yield f"the state of {name} is {shown(values)}, not a dictionary"
            continue
        spec = parameters[name]
        missing, unknown = expected.differences(values, len(spec.shape))
        yield from (f"{name} has no {key}" for key in missing)
        yield from (f"{name} has {key!s:.80}, which {type(optimizer).__name__} does not have" for key in unknown)
        for key, value in values.items():
            if problem := check(key, value, found, spec):
                yield f"{name}.{key!s:.80} {problem}"


class _MomentNames:
    """The names of the moments of an optimizer of torch, found by a step of another one with the same options."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._by_dimensions: dict[int, frozenset[str] | None] = {}

    def differences(self, saved: Mapping[str, Any], dimensions: int) -> tuple[list[str], list[str]]:
        """Return the names that the state of a parameter lacks, and those that it should not have."""
        if dimensions not in self._by_dimensions:
            self._by_dimensions[dimensions] = self._names(dimensions)
        expected = self._by_dimensions[dimensions]
        if expected is None or not saved:
            return [], []
        optional = {key for key in expected | saved.keys() if saved.get(key) is None}
        return sorted(expected - saved.keys()), sorted(saved.keys() - expected - optional)

    def _names(self, dimensions: int) -> frozenset[str] | None:
        """Return the names, or None if they are unknown: for an optimizer that is not torch's, or of mixed groups."""
        if not type(self._optimizer).__module__.startswith(PROBED):
            return None
        of_groups = {self._names_in(group, dimensions) for group in self._optimizer.param_groups if group["params"]}
        return of_groups.pop() if len(of_groups) == 1 else None

    def _names_in(self, group: Mapping[str, Any], dimensions: int) -> frozenset[str] | None:
        kind: Any = type(self._optimizer)
        parameter = torch.nn.Parameter(torch.zeros([1] * dimensions))
        parameter.grad = torch.zeros_like(parameter)
        options = {key: value for key, value in group.items() if key in self._optimizer.defaults}
        try:
            given = {"lr": 1e-3} if kind.__module__.startswith(TORCH) else self._optimizer.defaults
            probe = kind([{**options, **_SIMPLEST, "params": [parameter]}], **given)
            probe.step()
        except (RuntimeError, ValueError, TypeError):  # it needs sparse gradients, for example
            return None
        return frozenset(probe.state[parameter])


_SIMPLEST = {"foreach": False, "fused": False, "capturable": False, "differentiable": False, "lr": 1e-3}


def _moment_problem(key: str, value: Any, found: Mapping[str, Part], parameter: MomentSpec) -> str | None:
    """Return what is wrong with a moment of an optimizer whose moments have known shapes."""
    if not (key in SCALARS | OF_PARAMETER | STATES or key in FACTORS or key in AVERAGES):
        return None
    if isinstance(value, dict) and WRAPPER in value:  # its class checks it as it is restored
        return None
    if not (isinstance(value, dict) and TENSOR in value):
        is_count = type(value) in (int, float) and key in SCALARS and 0 <= value < 2**53
        return None if value is None or is_count else f"is {shown(value)}, which is not a tensor"
    part = found.get(value[TENSOR])
    if part is None:
        return f"has no tensor {shown(value[TENSOR])}"
    if part.shape not in _shapes(key, parameter.shape):
        return f"has shape {list(part.shape)}, and its parameter {list(parameter.shape)}"
    allowed = _dtypes(key, parameter)
    if key not in STATES and part.dtype not in allowed:
        return f"has type {part.dtype}, but should have one of {', '.join(allowed)}"
    return None


def _foreign_moment_problem(key: str, value: Any, found: Mapping[str, Part], parameter: MomentSpec) -> str | None:
    """Return what is wrong with a moment of any other optimizer, which may be projected to fewer dimensions."""
    if key not in COMMON or not (isinstance(value, dict) and TENSOR in value):
        return None
    part = found.get(value[TENSOR])
    if part is None or part.shape == parameter.shape or _is_projected(part.shape, parameter.shape):
        return None
    return f"has shape {list(part.shape)}, and its parameter {list(parameter.shape)}"


def _is_projected(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Return whether a matrix has the rows or the columns of another one, as the moments of GaLore and APOLLO have."""
    return len(shape) == len(whole) == 2 and 0 not in shape and (shape[0] == whole[0] or shape[1] == whole[1])


def _shapes(key: str, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    if key in SCALARS:
        return ((),)
    if key in FACTORS:
        factor = list(shape)
        if len(shape) >= 2:
            factor[FACTORS[key]] = 1
        return (tuple(factor),)
    if key in AVERAGES and len(shape) >= 2:
        return (tuple(length for number, length in enumerate(shape, -len(shape)) if number != AVERAGES[key]),)
    return (shape, (2, *shape)) if key in STATES else (shape,)


def _dtypes(key: str, parameter: MomentSpec) -> list[str]:
    """Return the safetensors names of the types that a moment may have."""
    if parameter.fused:
        return [DTYPES[torch.float32]] if key in SCALARS else [DTYPES[dtype] for dtype in parameter.dtypes]
    return [name for dtype, name in DTYPES.items() if dtype.is_floating_point or dtype.is_complex]
