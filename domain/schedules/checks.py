"""Schedules from their options, whose kinds are in their annotations. An error lists every wrong option."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from numbers import Real
from typing import Annotated, Any, TypeVar, get_origin, get_type_hints

from attrs import frozen

from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import did_you_mean

Schedule = TypeVar("Schedule")


@frozen
class OptionKind:
    """A kind of value. `wanted` completes the sentence "x must be ..."; `accepts` returns whether a value is valid."""

    wanted: str
    accepts: Callable[[Any], bool]


def number(wanted: str, accepts: Callable[[Any], bool]) -> OptionKind:
    """Return the kind of real numbers, not bool, that `accepts` accepts. A comparison in `accepts` excludes NaN."""
    return OptionKind(
        f"a {wanted}", lambda value: isinstance(value, Real) and not isinstance(value, bool) and accepts(value)
    )


FINITE = number("finite number", math.isfinite)
NOT_NEGATIVE = number("non-negative number", lambda value: 0 <= value < math.inf)
POSITIVE = number("positive number", lambda value: 0 < value < math.inf)
SHARE = number("number from 0 to 1", lambda value: 0 <= value <= 1)
COUNT = number("non-negative whole number", lambda value: value >= 0 and value % 1 == 0)
POSITIVE_COUNT = number("positive whole number", lambda value: value >= 1 and value % 1 == 0)
FLAG = OptionKind("True or False", lambda value: isinstance(value, bool))

Steps = Annotated[float, NOT_NEGATIVE]
"""The length of a stage in optimizer steps. It may be fractional, as a tenth of a run often is."""


def one_of(*choices: str) -> OptionKind:
    """Return the kind that accepts one of the `choices`."""
    return OptionKind("one of " + ", ".join(map(repr, choices)), lambda value: value in choices)


def or_none(kind: OptionKind) -> OptionKind:
    """Return the kind that accepts a value of `kind`, or None."""
    return OptionKind(f"{kind.wanted}, or None", lambda value: value is None or kind.accepts(value))


def one_or_each(kind: OptionKind) -> OptionKind:
    """Return the kind that accepts one value of `kind` for all parameter groups, or a tuple with one for each."""
    return OptionKind(
        f"{kind.wanted}, or a list with one for each parameter group",
        lambda value: all(map(kind.accepts, value)) if isinstance(value, tuple) else kind.accepts(value),
    )


@frozen
class Options:
    """Base of the schedules. Raises ConfigurationError for options that are not of the kinds in their annotations."""

    def __attrs_post_init__(self) -> None:
        check(self)


def check(schedule: Options, *conflicts: str | None, **further: OptionKind) -> None:
    """Raise ConfigurationError if an option of `schedule` is not of its kind, or for a conflict, listing all.

    further: kinds that depend on other options.
    """
    hints = get_type_hints(type(schedule), include_extras=True)
    kinds = {name: hint.__metadata__[0] for name, hint in hints.items() if get_origin(hint) is Annotated} | further
    problems = [
        f"{name}={value!r} is invalid: {name} must be {kind.wanted}."
        for name, kind in kinds.items()
        if not kind.accepts(value := getattr(schedule, name))
    ]
    problems += filter(None, conflicts)
    if problems:
        raise ConfigurationError(problems)


def remedy_of_unknown(name: str, known: list[str]) -> str:
    """Return how to fix an unknown name: the closest known one, if any is close, and the list of all."""
    suggestion = did_you_mean(name, known, "", spell=repr)
    return f"{suggestion} Available: {', '.join(known)}" if suggestion else f"choose one of {', '.join(known)}"


def build(
    name: str,
    table: Mapping[str, Callable[..., Schedule]],
    names: list[str],
    run: Mapping[str, Any],
    options: Mapping[str, Any],
) -> Schedule:
    """Return the schedule `name` of a table, with the values of the run and the options that it takes.

    names: those of every table, for the message. Raises ConfigurationError with every problem.
    """
    if name not in table:
        known = remedy_of_unknown(name, names)
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
