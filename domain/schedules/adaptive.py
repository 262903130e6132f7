"""Schedules that follow a measured metric, and what they share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from attrs import evolve, field, frozen

from hexloop.domain.errors import ConfigurationError
from hexloop.domain.schedules.checks import (
    COUNT,
    FINITE,
    FLAG,
    NOT_NEGATIVE,
    POSITIVE_COUNT,
    check,
    number,
    one_of,
    one_or_each,
)

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


@frozen
class PlateauState:
    """What `ReduceLROnPlateau` keeps between two evaluations.

    best: the best metric so far, None before the first. num_bad_epochs: evaluations without an improvement since.
    cooldown_counter: evaluations that are still not to be counted as bad.
    """

    best: float | None = None
    num_bad_epochs: int = 0
    cooldown_counter: int = 0


@frozen
class ReduceLROnPlateau:
    """After more than `patience` evaluations in a row without an improvement: rate = max(rate * factor, min_lr),
    in each parameter group where that lowers it by more than `eps`; then `cooldown` evaluations count as not bad.

    What an improvement is (mode, threshold, threshold_mode) is said in `improves`. min_lr is one number, or a list of
    one for each group. An "epoch" in a name is an evaluation, as in the source.

    Source: torch 2.13, `torch.optim.lr_scheduler.ReduceLROnPlateau`, with its names and defaults. Raises
    ConfigurationError for options that it could not work with, factor below 0 or from 1 up among them.
    """

    mode: str = "min"
    factor: float = 0.1
    patience: int = 10
    threshold: float = 1e-4
    threshold_mode: str = "rel"
    cooldown: int = 0
    min_lr: Bound = field(default=0.0, converter=as_bound)
    eps: float = 1e-8

    def __attrs_post_init__(self) -> None:
        check(
            self,
            mode=one_of("min", "max"),
            factor=number("number from 0 up and below 1", lambda factor: 0 <= factor < 1),
            patience=COUNT,
            threshold=FINITE,
            threshold_mode=one_of("rel", "abs"),
            cooldown=COUNT,
            min_lr=one_or_each(NOT_NEGATIVE),
            eps=NOT_NEGATIVE,
        )

    def start(self, rates: Sequence[float]) -> PlateauState:
        """The state before the first metric.

        Raises ConfigurationError where min_lr is a list and the groups are of another number.
        """
        match_groups(len(rates), min_lr=self.min_lr)
        return PlateauState()

    def __call__(
        self, state: PlateauState, metric: float, rates: Sequence[float]
    ) -> tuple[PlateauState, tuple[float, ...]]:
        """Take in one metric: the state and the rates of the groups from here on."""
        metric = float(metric)
        better = improves(metric, state.best, self.mode, self.threshold, self.threshold_mode)
        best = metric if better else state.best
        bad = 0 if better or state.cooldown_counter > 0 else state.num_bad_epochs + 1
        if bad <= self.patience:
            return PlateauState(best, bad, max(0, state.cooldown_counter - 1)), tuple(rates)
        [floors] = match_groups(len(rates), min_lr=self.min_lr)
        return PlateauState(best, 0, self.cooldown), lowered(rates, self.factor, floors, self.eps)


@frozen
class GreedyState:
    """What `Greedy` keeps between two evaluations.

    initial_rates: the groups' rates at the start, to which a reset goes back.
    best: the best metric since the start or the last reset, None before the first.
    num_good_epochs, num_bad_epochs: evaluations in a row with, and without, an improvement.
    cooldown_counter, warmup_counter: evaluations that are still to be passed over.
    reset_counter: lowerings with every group at its floor that are still to come before a reset.
    window, window_sum: the metrics that are averaged, oldest first, and their running sum; empty without `smooth`.
    """

    initial_rates: tuple[float, ...]
    reset_counter: int
    best: float | None = None
    num_good_epochs: int = 0
    num_bad_epochs: int = 0
    cooldown_counter: int = 0
    warmup_counter: int = 0
    window: tuple[float, ...] = ()
    window_sum: float = 0.0


@frozen
class Greedy:
    """After more than `patience` improvements in a row: rate = min(rate / factor, max_lr); after more than `patience`
    evaluations in a row without one: rate = max(rate * factor, min_lr); in each parameter group where that moves it,
    that way, by more than `eps`.

    A raise is followed by `warmup` evaluations that are passed over, a lowering by `cooldown` of them. When a lowering
    leaves every group at or below its min_lr for the `reset_start`-th time since the last raise, all starts afresh from
    the initial rates. With `smooth`, the metric is replaced by the mean of the last `window_size`; a NaN or an infinity
    stays in the running sum, and so in that mean, until a reset. What an improvement is (mode, threshold,
    threshold_mode) is said in `improves`. min_lr and max_lr are one number, or a list of one for each group. An "epoch"
    in a name is an evaluation, as in the source. `verbose` is taken for the sake of arguments written for the
    reference library: nothing is printed here, and a changed rate shows in the logs.

    Source: transformers 5.23, `get_greedy_schedule`, with its names and defaults; the algorithm is arXiv:2512.14527.
    Mind the default min_lr of 1e-3: rates below it are never lowered. Raises ConfigurationError for options that it
    could not work with.
    """

    mode: str = "min"
    factor: float = 0.95
    patience: int = 10
    threshold: float = 1e-6
    threshold_mode: str = "abs"
    cooldown: int = 0
    warmup: int = 0
    min_lr: Bound = field(default=1e-3, converter=as_bound)
    max_lr: Bound = field(default=1.0, converter=as_bound)
    eps: float = 1e-8
    verbose: bool = False
    smooth: bool = False
    window_size: int = 50
    reset_start: int = 500

    def __attrs_post_init__(self) -> None:
        check(
            self,
            mode=one_of("min", "max"),
            factor=number("number above 0 and below 1", lambda factor: 0 < factor < 1),
            patience=COUNT,
            threshold=FINITE,
            threshold_mode=one_of("rel", "abs"),
            cooldown=COUNT,
            warmup=COUNT,
            min_lr=one_or_each(NOT_NEGATIVE),
            max_lr=one_or_each(number("number above 0", lambda rate: 0 < rate <= math.inf)),
            eps=NOT_NEGATIVE,
            verbose=FLAG,
            smooth=FLAG,
            window_size=POSITIVE_COUNT,
            reset_start=COUNT,
        )

    def start(self, rates: Sequence[float]) -> GreedyState:
        """The state before the first metric; a reset goes back to these rates.

        Raises ConfigurationError where a bound is a list and the groups are of another number, or where a group's
        min_lr is above its max_lr.
        """
        floors, ceilings = match_groups(len(rates), min_lr=self.min_lr, max_lr=self.max_lr)
        if any(floor > ceiling for floor, ceiling in zip(floors, ceilings, strict=True)):
            raise ConfigurationError(
                [
                    f"You chose min_lr={self.min_lr!r} and max_lr={self.max_lr!r}, but a rate cannot be above the one "
                    "and below the other; set min_lr no higher than max_lr in every group."
                ]
            )
        return GreedyState(tuple(rates), self.reset_start)

    def __call__(
        self, state: GreedyState, metric: float, rates: Sequence[float]
    ) -> tuple[GreedyState, tuple[float, ...]]:
        """Take in one metric: the state and the rates of the groups from here on."""
        rates = tuple(rates)
        state, metric = self._smoothed(state, float(metric))
        if state.cooldown_counter > 0 or state.warmup_counter > 0:
            return _passed_over(state), rates
        if improves(metric, state.best, self.mode, self.threshold, self.threshold_mode):
            state = evolve(state, best=metric, num_good_epochs=state.num_good_epochs + 1, num_bad_epochs=0)
        else:
            state = evolve(state, num_good_epochs=0, num_bad_epochs=state.num_bad_epochs + 1)
        if state.num_good_epochs > self.patience:
            return self._raise(state, rates)
        if state.num_bad_epochs > self.patience:
            return self._lower(state, rates)
        return state, rates

    def _smoothed(self, state: GreedyState, metric: float) -> tuple[GreedyState, float]:
        """The state with `metric` in its window, and the metric to go by."""
        if not self.smooth:
            return state, metric
        window, total = (*state.window, metric), state.window_sum + metric
        if len(window) > self.window_size:
            window, total = window[1:], total - window[0]
        return evolve(state, window=window, window_sum=total), total / len(window)

    def _raise(self, state: GreedyState, rates: tuple[float, ...]) -> tuple[GreedyState, tuple[float, ...]]:
        [ceilings] = match_groups(len(rates), max_lr=self.max_lr)
        rises = ((rate, min(rate / self.factor, ceiling)) for rate, ceiling in zip(rates, ceilings, strict=True))
        raised = tuple(new if new - rate > self.eps else rate for rate, new in rises)
        return evolve(state, num_good_epochs=0, warmup_counter=self.warmup, reset_counter=self.reset_start), raised

    def _lower(self, state: GreedyState, rates: tuple[float, ...]) -> tuple[GreedyState, tuple[float, ...]]:
        [floors] = match_groups(len(rates), min_lr=self.min_lr)
        fallen = lowered(rates, self.factor, floors, self.eps)
        state = evolve(state, num_bad_epochs=0, cooldown_counter=self.cooldown)
        if any(rate > floor for rate, floor in zip(fallen, floors, strict=True)):
            return state, fallen
        if state.reset_counter > 1:
            return evolve(state, reset_counter=state.reset_counter - 1), fallen
        afresh = GreedyState(state.initial_rates, self.reset_start, cooldown_counter=self.cooldown)
        return afresh, state.initial_rates


def _passed_over(state: GreedyState) -> GreedyState:
    """The state after an evaluation that is not counted; the cooldown runs out before the warm-up begins to."""
    uncounted = evolve(state, num_good_epochs=0, num_bad_epochs=0)
    if state.cooldown_counter > 0:
        return evolve(uncounted, cooldown_counter=state.cooldown_counter - 1)
    return evolve(uncounted, warmup_counter=state.warmup_counter - 1)
