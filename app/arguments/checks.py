"""Checks of one value. Each returns nothing when the value is good, and raises `RefusalError` when it is not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from hexloop.domain.wording import RefusalError, did_you_mean, enumeration

Check: TypeAlias = Callable[[Any], None]


def at_least(lowest: int) -> Check:
    """A number that is `lowest` or more."""

    def check(value: float) -> None:
        if value < lowest:
            raise RefusalError(f"the least it can be is {lowest}", f"give {lowest} or more")

    return check


def above_zero(value: float) -> None:
    """A number greater than 0."""
    if value <= 0:
        raise RefusalError("it must be greater than 0", "give a positive number")


def below_one(value: float) -> None:
    """A number in [0, 1)."""
    if not 0 <= value < 1:
        raise RefusalError("it lies in the range from 0 up to, but without, 1", "give a number in that range")


def unset_or_positive(value: int) -> None:
    """-1, which stands for "not set", or a count of 1 or more."""
    if value != -1 and value < 1:
        raise RefusalError("that leaves no step to train", "give 1 or more, or -1 to let num_train_epochs decide")


def steps_or_ratio(value: float) -> None:
    """A whole number of steps, or a share of the run in [0, 1)."""
    if value < 0:
        raise RefusalError("steps cannot be negative", "give a whole number of steps, or a ratio of the run below 1")
    if value > 1 and value != int(value):
        raise RefusalError(
            "from 1 on it counts steps, which come whole", "give a whole number of steps, or a ratio of the run below 1"
        )


def seed(value: int) -> None:
    """What every generator of random numbers takes: an unsigned integer of 32 bits."""
    if not 0 <= value < 2**32:
        raise RefusalError("the generators take seeds from 0 to 4294967295", "give a seed in that range")


def one_of(*options: str) -> Check:
    """One of a few words."""

    def check(value: str) -> None:
        if value not in options:
            raise unknown_choice(value, options)

    return check


def each_one_of(*options: str) -> Check:
    """A list of words, each one of a few."""

    def check(values: Iterable[str]) -> None:
        for value in values:
            if value not in options:
                raise unknown_choice(value, options)

    return check


def finite(value: object) -> None:
    """No number in it, at any depth of a mapping, is NaN or infinite."""
    if isinstance(value, Mapping):
        for inner in value.values():
            finite(inner)
    elif isinstance(value, float) and not math.isfinite(value):
        raise RefusalError("it must be finite", "give a finite number")


def assignments(value: str) -> None:
    """A comma-separated list of `name=value`, as `optim_args` takes it."""
    for part in filter(None, value.replace(" ", "").split(",")):
        if part.count("=") != 1:
            raise RefusalError(f"{part!r} is not of the form name=value", "write it as 'name=value, other=value'")


def unknown_choice(value: object, options: Iterable[str]) -> RefusalError:
    """The refusal of a word that is none of `options`: names the nearest, or all when they are few."""
    known = list(options)
    listed = enumeration(map(repr, known), "or") if len(known) <= 12 else f"one of {', '.join(known)}"
    return RefusalError("there is no such choice", did_you_mean(str(value), known, f"choose {listed}", spell=repr))
