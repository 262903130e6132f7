"""Checks of saved moments against the parameters that they belong to, before any is loaded.

Fused kernels do not check them: they write beyond one that is smaller than its parameter, or of a smaller type.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from attrs import frozen
from torch.optim import LBFGS, Optimizer

from hexloop.adapters.trainable.torch.serialization import DTYPES, TENSOR
from hexloop.ports.state import Part

SCALARS = frozenset({"step", "eta", "mu", "mu_product"})
"""Moments that are a single number."""

OF_PARAMETER = frozenset(
    {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "sum", "square_avg", "grad_avg"}
    | {"acc_delta", "ax", "prev", "step_size", "variance"}
)
"""Moments that have their parameter's shape."""

FACTORS = {"row_var": -1, "col_var": -2}
"""Moments that have their parameter's shape except for one dimension, which is 1."""

STATES = frozenset({"state1", "state2"})
"""Moments of bitsandbytes, of any type; one of its optimizers keeps two of them in one tensor."""

CHECKED = ("torch.optim", "deepspeed", "apex", "bitsandbytes")
"""The packages whose optimizers keep moments of these names, and have kernels that do not check them."""


@frozen
class Expected:
    """A parameter: its whole shape, the types that its moments may have (any if empty), and whether it is fused."""

    shape: tuple[int, ...]
    dtypes: Collection[torch.dtype] = ()
    fused: bool = False


def refuse_unfit_moments(
    optimizer: Optimizer, state: Mapping[str, Any], found: Mapping[str, Part], parameters: Mapping[str, Expected]
) -> None:
    """Raise ValueError, naming it, for a saved moment that does not fit its parameter.

    state: by the parameter's name, what is saved of it, with tensors by name in `found`.
    """
    if not _is_checked(optimizer):
        return
    for name, values in state.items():
        for key, value in values.items() if isinstance(values, dict) else ():
            if key in SCALARS | OF_PARAMETER | STATES or key in FACTORS:
                _refuse_unfit(f"{name}.{key}", key, value, found, parameters[name])


def _is_checked(optimizer: Optimizer) -> bool:
    kinds: Iterable[type[Any]] = type(optimizer).__mro__
    own = (kind for kind in kinds if issubclass(kind, Optimizer) and kind is not Optimizer)
    return not isinstance(optimizer, LBFGS) and any(kind.__module__.startswith(CHECKED) for kind in own)


def _refuse_unfit(label: str, key: str, value: Any, found: Mapping[str, Part], parameter: Expected) -> None:
    if not (isinstance(value, dict) and TENSOR in value):
        if value is None or (key in SCALARS and isinstance(value, int | float)):
            return
        raise ValueError(f"The saved {label} is {value!r}, which is not a tensor.")
    part = found.get(value[TENSOR])
    if part is None:
        raise ValueError(f"The saved optimizer lacks the tensor {value[TENSOR]!r}.")
    if part.shape not in _shapes(key, parameter.shape):
        raise ValueError(f"The saved {label} has shape {part.shape}, and its parameter {parameter.shape}.")
    if key in STATES:
        return
    allowed = _dtypes(key, parameter)
    if part.dtype not in allowed:
        raise ValueError(f"The saved {label} is of type {part.dtype}, and should be one of {', '.join(allowed)}.")


def _shapes(key: str, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    if key in SCALARS:
        return ((),)
    if key in FACTORS:
        factor = list(shape)
        if len(shape) >= 2:
            factor[FACTORS[key]] = 1
        return (tuple(factor),)
    return (shape, (2, *shape)) if key in STATES else (shape,)


def _dtypes(key: str, parameter: Expected) -> list[str]:
    """The safetensors names of the types that a moment may have."""
    if parameter.fused:
        return [DTYPES[torch.float32]] if key in SCALARS else [DTYPES[dtype] for dtype in parameter.dtypes]
    return [name for dtype, name in DTYPES.items() if dtype.is_floating_point or dtype.is_complex]
