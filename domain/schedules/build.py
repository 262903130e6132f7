"""From a schedule's name and options to the schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from types import MappingProxyType
from typing import Any, TypeVar

from hexloop.domain.errors import ConfigurationError
from hexloop.domain.schedules.adaptive import Adaptive, Greedy, ReduceLROnPlateau
from hexloop.domain.schedules.checks import remedy_of_unknown
from hexloop.domain.schedules.cosine import Cosine, CosineWarmupWithMinLr, CosineWithMinLr, CosineWithRestarts
from hexloop.domain.schedules.shapes import (
    Constant,
    ConstantWithWarmup,
    InverseSqrt,
    Linear,
    Polynomial,
    WarmupStableDecay,
)

Schedule = TypeVar("Schedule")

Shape = Callable[[int], float]
"""The factor by which every base rate is multiplied at an optimizer step; 0 is the first update's."""

SHAPES: Mapping[str, Callable[..., Shape]] = MappingProxyType(
    {
        "linear": Linear,
        "cosine": Cosine,
        "cosine_with_restarts": CosineWithRestarts,
        "polynomial": Polynomial,
        "constant": Constant,
        "constant_with_warmup": ConstantWithWarmup,
        "inverse_sqrt": InverseSqrt,
        "cosine_with_min_lr": CosineWithMinLr,
        "cosine_warmup_with_min_lr": CosineWarmupWithMinLr,
        "warmup_stable_decay": WarmupStableDecay,
    }
)
"""The schedules that are a function of the step, by the reference library's names."""

ADAPTIVE: Mapping[str, Callable[..., Adaptive[Any]]] = MappingProxyType(
    {"reduce_lr_on_plateau": ReduceLROnPlateau, "greedy": Greedy}
)
"""The schedules that follow a metric, by the reference library's names."""


def build_shape(
    name: str, *, base_rate: float, warmup_steps: float, total_steps: float | None, options: Mapping[str, Any]
) -> Shape:
    """The schedule called `name`, one of `SHAPES`, as a function of the step.

    base_rate: the optimizer's default rate, in which rates among the options (lr_end, min_lr) are measured.
    warmup_steps: the run's; "constant" has no warm-up. total_steps: the run's, None if not known.
    options: by the names of the schedule's own attributes (the reference library's lr_scheduler_kwargs).

    Raises ConfigurationError with every problem: an unknown name or option, one that is missing or impossible, a
    schedule that needs the run's length where it is not known.
    """
    if name in ADAPTIVE:
        raise ConfigurationError(
            [f"You chose {name!r} as a function of the step, but it follows a metric; build it with build_adaptive."]
        )
    run = {"base_rate": base_rate, "num_warmup_steps": warmup_steps, "num_training_steps": total_steps}
    return _build(name, SHAPES, run, options)


def build_adaptive(name: str, options: Mapping[str, Any]) -> Adaptive[Any]:
    """The schedule called `name`, one of `ADAPTIVE`.

    Raises ConfigurationError with every problem: an unknown name or option, or an option's impossible value.
    """
    if name in SHAPES:
        raise ConfigurationError(
            [f"You chose {name!r} to follow a metric, but it is a function of the step; build it with build_shape."]
        )
    return _build(name, ADAPTIVE, {}, options)


def _build(
    name: str, table: Mapping[str, Callable[..., Schedule]], run: Mapping[str, Any], options: Mapping[str, Any]
) -> Schedule:
    if name not in table:
        known = remedy_of_unknown(name, [*SHAPES, *ADAPTIVE])
        raise ConfigurationError([f"You chose the schedule {name!r}, but there is none of that name; {known}."])
    parameters = signature(table[name]).parameters
    own = [parameter for parameter in parameters if parameter not in run]
    problems = [_not_an_option(name, option, own, run) for option in options if option not in own]
    values = {key: value for key, value in {**options, **run}.items() if key in parameters}
    needed = [key for key, parameter in parameters.items() if parameter.default is Parameter.empty]
    missing = [key for key in needed if values.get(key) is None]
    problems += [_missing(name, key, run) for key in missing]
    try:
        # A zero stands in for what is missing, so that the other values are checked as well.
        schedule = table[name](**(values | dict.fromkeys(missing, 0)))
    except ConfigurationError as error:
        raise ConfigurationError([*problems, *error.problems]) from None
    if problems:
        raise ConfigurationError(problems)
    return schedule


def _not_an_option(name: str, option: str, own: list[str], run: Mapping[str, Any]) -> str:
    chosen = f"You chose the option {option!r} of the schedule {name!r}, but "
    if option in run:
        return f"{chosen}that is the run's to say; leave it out of lr_scheduler_kwargs."
    if not own:
        return f"{chosen}it has no options; leave it out of lr_scheduler_kwargs."
    return f"{chosen}it has none of that name; {remedy_of_unknown(option, own)}."


def _missing(name: str, key: str, run: Mapping[str, Any]) -> str:
    if key in run:
        return f"You chose the schedule {name!r}, but it goes by the run's length, which is not known; set max_steps."
    return f"You chose the schedule {name!r}, but it needs {key!r}; set it in lr_scheduler_kwargs."
