"""Checks of the options of a schedule, whose kinds are in their annotations. An error lists every wrong option."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import Annotated, Any, get_origin, get_type_hints

from attrs import frozen

from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import did_you_mean


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
