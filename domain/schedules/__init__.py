"""Learning rate schedules, by name: pure functions of the optimizer step, or of a metric and a small state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from types import MappingProxyType
from typing import Any, TypeVar

from hexloop.domain.errors import ConfigurationError
from hexloop.domain.schedules import shapes
from hexloop.domain.schedules.adaptive import Adaptive, Greedy, ReduceLROnPlateau
from hexloop.domain.schedules.checks import remedy_of_unknown

Schedule = TypeVar("Schedule")

Shape = Callable[[int], float]
"""Maps an optimizer step, from 0, to the factor that multiplies every base rate."""

SHAPES: Mapping[str, Callable[..., Shape]] = MappingProxyType(
    {
        "linear": shapes.Linear,
        "cosine": shapes.Cosine,
        "cosine_with_restarts": shapes.CosineWithRestarts,
        "polynomial": shapes.Polynomial,
        "constant": shapes.Constant,
        "constant_with_warmup": shapes.ConstantWithWarmup,
        "inverse_sqrt": shapes.InverseSqrt,
        "cosine_with_min_lr": shapes.CosineWithMinLr,
        "cosine_warmup_with_min_lr": shapes.CosineWarmupWithMinLr,
        "warmup_stable_decay": shapes.WarmupStableDecay,
    }
)
"""The schedules that are functions of the step, by their names in transformers."""

ADAPTIVE: Mapping[str, Callable[..., Adaptive[Any]]] = MappingProxyType(
    {"reduce_lr_on_plateau": ReduceLROnPlateau, "greedy": Greedy}
)
"""The schedules that follow a metric, by their names in transformers."""


def build_shape(
    name: str, *, base_rate: float, warmup_steps: float, total_steps: float | None, options: Mapping[str, Any]
) -> Shape:
    """Return the schedule `name`, one of `SHAPES`, as a function of the step.

    base_rate: the default learning rate of the optimizer, which options such as lr_end and min_lr are relative to.
    warmup_steps: of the run; "constant" ignores it. total_steps: of the run, None if unknown.
    options: the attributes of the schedule by name (lr_scheduler_kwargs in transformers).

    Raises ConfigurationError with every problem: an unknown name or option, an option that is missing or invalid, or a
    schedule that needs the unknown length of the run.
    """
    if name in ADAPTIVE:
        raise ConfigurationError(
            f"The schedule {name!r} follows a metric and is not a function of the step. Use build_adaptive."
        )
    run = {"base_rate": base_rate, "num_warmup_steps": warmup_steps, "num_training_steps": total_steps}
    return _build(name, SHAPES, run, options)


def build_adaptive(name: str, options: Mapping[str, Any]) -> Adaptive[Any]:
    """Return the schedule `name`, one of `ADAPTIVE`.

    Raises ConfigurationError with every problem: an unknown name or option, or an option with an invalid value.
    """
    if name in SHAPES:
        raise ConfigurationError(
            f"The schedule {name!r} is a function of the step and does not follow a metric. Use build_shape."
        )
    return _build(name, ADAPTIVE, {}, options)


def _build(
    name: str, table: Mapping[str, Callable[..., Schedule]], run: Mapping[str, Any], options: Mapping[str, Any]
) -> Schedule:
    if name not in table:
        known = remedy_of_unknown(name, [*SHAPES, *ADAPTIVE])
        raise ConfigurationError(f"Unknown schedule {name!r}: {known}.")
    parameters = signature(table[name]).parameters
    own = [parameter for parameter in parameters if parameter not in run]
    problems = [_not_an_option(name, option, own, run) for option in options if option not in own]
    values = {key: value for key, value in {**options, **run}.items() if key in parameters}
    needed = [key for key, parameter in parameters.items() if parameter.default is Parameter.empty]
    missing = [key for key in needed if values.get(key) is None]
    problems += [_missing(name, key, run) for key in missing]
    try:
        # 0 replaces missing values, so that the other values are checked as well.
        schedule = table[name](**(values | dict.fromkeys(missing, 0)))
    except ConfigurationError as error:
        raise ConfigurationError([*problems, *error.problems]) from None
    if problems:
        raise ConfigurationError(problems)
    return schedule


def _not_an_option(name: str, option: str, own: list[str], run: Mapping[str, Any]) -> str:
    if option in run:
        return f"The option {option!r} of the schedule {name!r} is set by the run. Remove it from lr_scheduler_kwargs."
    if not own:
        return f"The schedule {name!r} has no options. Remove {option!r} from lr_scheduler_kwargs."
    return f"The schedule {name!r} has no option {option!r}: {remedy_of_unknown(option, own)}."


def _missing(name: str, key: str, run: Mapping[str, Any]) -> str:
    if key in run:
        return f"The schedule {name!r} depends on the length of the run, which is unknown. Set max_steps."
    return f"The schedule {name!r} needs {key!r}. Set it in lr_scheduler_kwargs."
