"""What the options of a schedule may be, and the refusal that names every one that is not so."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import Any

from attrs import frozen

from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import did_you_mean


@frozen
class Kind:
    """A kind of value: `wanted` ends the sentence "x has to be ...", `accepts` tells whether a value is of it."""

    wanted: str
    accepts: Callable[[Any], bool]


def number(wanted: str, accepts: Callable[[Any], bool]) -> Kind:
    """A real number, no bool, of which `accepts` holds; a comparison there leaves NaN out."""
    return Kind(f"a {wanted}", lambda value: isinstance(value, Real) and not isinstance(value, bool) and accepts(value))


FINITE = number("finite number", math.isfinite)
NOT_NEGATIVE = number("number from 0 up", lambda value: 0 <= value < math.inf)
POSITIVE = number("number above 0", lambda value: 0 < value < math.inf)
SHARE = number("number from 0 to 1", lambda value: 0 <= value <= 1)
STEPS = NOT_NEGATIVE
"""A stage's length in optimizer steps, which need not be whole: a tenth of a run often is not."""
COUNT = number("whole number from 0 up", lambda value: value >= 0 and value % 1 == 0)
POSITIVE_COUNT = number("whole number from 1 up", lambda value: value >= 1 and value % 1 == 0)
FLAG = Kind("True or False", lambda value: isinstance(value, bool))


def one_of(*choices: str) -> Kind:
    """One of a few words."""
    return Kind("one of " + ", ".join(map(repr, choices)), lambda value: value in choices)


def or_none(kind: Kind) -> Kind:
    """A value of `kind`, or None."""
    return Kind(f"{kind.wanted}, or None", lambda value: value is None or kind.accepts(value))


def one_or_each(kind: Kind) -> Kind:
    """A value of `kind` for all parameter groups, or a tuple with one for each."""
    return Kind(
        f"{kind.wanted}, or a list of such, one for each parameter group",
        lambda value: all(map(kind.accepts, value)) if isinstance(value, tuple) else kind.accepts(value),
    )


def check(schedule: object, *conflicts: str | None, **kinds: Kind) -> None:
    """Raise ConfigurationError for each attribute of `schedule` that is not of its kind, and for each conflict."""
    problems = [
        f"You chose {name}={value!r}, but {name} has to be {kind.wanted}; set it so."
        for name, kind in kinds.items()
        if not kind.accepts(value := getattr(schedule, name))
    ]
    problems += filter(None, conflicts)
    if problems:
        raise ConfigurationError(problems)


def remedy_of_unknown(name: str, known: list[str]) -> str:
    """Return how to fix an unknown name: the closest known one, if any is close, and the list of all."""
    suggestion = did_you_mean(name, known, "", spell=repr)
    return f"{suggestion} There is {', '.join(known)}" if suggestion else f"choose among {', '.join(known)}"
