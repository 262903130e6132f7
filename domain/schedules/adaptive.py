"""Schedules that follow a measured metric, and what they share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from hexloop.domain.errors import ConfigurationError

State = TypeVar("State")

Bound = float | tuple[float, ...]
"""One rate for all parameter groups, or one for each."""


class Adaptive(Protocol[State]):
    """A pure function (state, metric, rates) -> (state, rates), called once for each evaluation.

    It takes and returns the rate of each parameter group and not one factor: a group is held at a bound of its own
    while others move on, changes too small are left out group by group, and a rate that somebody else has set is the
    one that is scaled. What it keeps is a frozen attrs value of numbers and tuples, so that it goes through JSON. A
    metric that is not finite may leave NaN or an infinity in it, as it does in the reference library.
    """

    def start(self, rates: Sequence[float]) -> State:
        """The state before the first metric, for an optimizer whose groups have these rates.

        Raises ConfigurationError where an option is a list and the groups are of another number.
        """

    def __call__(self, state: State, metric: float, rates: Sequence[float]) -> tuple[State, tuple[float, ...]]:
        """Take in one metric: the state and the rates of the groups from here on."""


def improves(metric: float, best: float | None, mode: str, threshold: float, threshold_mode: str) -> bool:
    """Whether `metric` is better than `best` (None before the first) by more than the threshold; NaN never is.

    In mode "min": metric < best * (1 - threshold) if threshold_mode is "rel", metric < best - threshold if "abs";
    in mode "max" likewise with > and +. Before the first metric best is the worst there is, an infinity.
    Source: torch 2.13, `ReduceLROnPlateau`; transformers 5.23, `GreedyLR`.
    """
    if mode == "min":
        best = math.inf if best is None else best
        return metric < (best * (1.0 - threshold) if threshold_mode == "rel" else best - threshold)
    best = -math.inf if best is None else best
    return metric > (best * (1.0 + threshold) if threshold_mode == "rel" else best + threshold)


def as_bound(bound: Bound | list[float]) -> Bound:
    """A bound in the form that a frozen value keeps."""
    return tuple(bound) if isinstance(bound, list) else bound


def match_groups(groups: int, **bounds: Bound) -> list[tuple[float, ...]]:
    """Each bound as one rate for each of `groups` parameter groups.

    Raises ConfigurationError for every list of another length.
    """
    problems = [
        f"You chose {name}={list(bound)!r}, but the optimizer's parameter groups are {groups} in number; "
        "give one number for all of them, or one for each."
        for name, bound in bounds.items()
        if isinstance(bound, tuple) and len(bound) != groups
    ]
    if problems:
        raise ConfigurationError(problems)
    return [tuple(map(float, bound if isinstance(bound, tuple) else [bound] * groups)) for bound in bounds.values()]


def lowered(rates: Iterable[float], factor: float, floors: Iterable[float], eps: float) -> tuple[float, ...]:
    """Each rate times `factor`, but not below its floor; a rate that would fall by `eps` or less stays as it is."""
    falls = ((rate, max(rate * factor, floor)) for rate, floor in zip(rates, floors, strict=True))
    return tuple(new if rate - new > eps else rate for rate, new in falls)
