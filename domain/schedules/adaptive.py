"""Schedules that follow a metric: reduce on plateau, and greedy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Annotated, Protocol, TypeVar

from attrs import evolve, field, frozen

from hexloop.domain.errors import ConfigurationError
from hexloop.domain.ranges import Count, Rate
from hexloop.domain.schedules import checks

BELOW_1 = checks.number("non-negative number below 1", lambda factor: 0 <= factor < 1)
POSITIVE_BELOW_1 = checks.number("positive number below 1", lambda factor: 0 < factor < 1)
POSITIVE_OR_INFINITE = checks.number("positive number", lambda rate: 0 < rate <= math.inf)

State = TypeVar("State")

Bound = float | tuple[float, ...]
"""One rate for all parameter groups, or one for each."""


class Adaptive(Protocol[State]):
    """A pure function (state, metric, rates) -> (state, rates), called once for each evaluation.

    It takes and returns the rate of each parameter group, not a factor: each group has its own bounds, changes that are
    too small are skipped for each group, and a rate that other code has set is scaled from there. The state is a frozen
    attrs value of numbers and tuples, so that it can be stored as JSON. As in transformers, a metric that is not finite
    may leave NaN or infinity in it.
    """

    def start(self, rates: Sequence[float]) -> State:
        """Return the state before the first metric, for an optimizer whose groups have these rates.

        Raises ConfigurationError if an option is a list of another length than `rates`.
        """

    def __call__(self, state: State, metric: float, rates: Sequence[float]) -> tuple[State, tuple[float, ...]]:
        """Process one metric and return the new state and the new rate of each group."""


def improves(metric: float, best: float | None, mode: str, threshold: float, threshold_mode: str) -> bool:
    """Return whether `metric` is better than `best` (None before the first) by more than the threshold; NaN never is.

    In mode "min": metric < best * (1 - threshold) if threshold_mode is "rel", metric < best - threshold if "abs".
    In mode "max": the same with > and +. Before the first metric, best is infinity (minus infinity in mode "max").
    Source: torch 2.13, `ReduceLROnPlateau`; transformers 5.23, `GreedyLR`.
    """
    if mode == "min":
        best = math.inf if best is None else best
        return metric < (best * (1.0 - threshold) if threshold_mode == "rel" else best - threshold)
    best = -math.inf if best is None else best
    return metric > (best * (1.0 + threshold) if threshold_mode == "rel" else best + threshold)


def as_bound(bound: Bound | list[float]) -> Bound:
    """Return a bound in immutable form."""
    return tuple(bound) if isinstance(bound, list) else bound


def match_groups(groups: int, **bounds: Bound) -> list[tuple[float, ...]]:
    """Return each bound as a tuple with one rate for each of `groups` parameter groups.

    Raises ConfigurationError if a bound has another length.
    """
    problems = [
        f"{name}={list(bound)!r} has {len(bound)} values, but the optimizer has {groups} parameter groups. "
        "Pass one number for all groups, or one for each."
        for name, bound in bounds.items()
        if isinstance(bound, tuple) and len(bound) != groups
    ]
    if problems:
        raise ConfigurationError(problems)
    return [tuple(map(float, bound if isinstance(bound, tuple) else [bound] * groups)) for bound in bounds.values()]


def lowered(rates: Iterable[float], factor: float, floors: Iterable[float], eps: float) -> tuple[float, ...]:
    """Return each rate times `factor`, but at least its floor; a rate that would change by `eps` or less is kept."""
    falls = ((rate, max(rate * factor, floor)) for rate, floor in zip(rates, floors, strict=True))
    return tuple(new if rate - new > eps else rate for rate, new in falls)


@frozen
class PlateauState:
    """The state of `ReduceLROnPlateau` between two evaluations.

    best: the best metric so far, None before the first. num_bad_epochs: evaluations without an improvement since.
    cooldown_counter: how many more evaluations do not count as bad.
    """

    best: float | None = None
    num_bad_epochs: Count = 0
    cooldown_counter: Count = 0


@frozen
class ReduceLROnPlateau(checks.Options):
    """After more than `patience` evaluations in a row without an improvement: rate = max(rate * factor, min_lr),
    in each parameter group where that reduces it by more than `eps`. The next `cooldown` evaluations do not count as
    bad.

    `improves` defines an improvement (mode, threshold, threshold_mode). min_lr is one number, or a list with one for
    each group. An "epoch" in a name is an evaluation, as in the source.

    Source: torch 2.13, `torch.optim.lr_scheduler.ReduceLROnPlateau`, with its names and defaults. Raises
    ConfigurationError for invalid options, for example a factor below 0 or of at least 1.
    """

    mode: Annotated[str, checks.one_of("min", "max")] = "min"
    factor: Annotated[float, BELOW_1] = 0.1
    patience: Annotated[int, checks.COUNT] = 10
    threshold: Annotated[float, checks.FINITE] = 1e-4
    threshold_mode: Annotated[str, checks.one_of("rel", "abs")] = "rel"
    cooldown: Annotated[int, checks.COUNT] = 0
    min_lr: Annotated[Bound, checks.one_or_each(checks.NOT_NEGATIVE)] = field(default=0.0, converter=as_bound)
    eps: Annotated[float, checks.NOT_NEGATIVE] = 1e-8

    def start(self, rates: Sequence[float]) -> PlateauState:
        """Return the state before the first metric.

        Raises ConfigurationError if min_lr is a list of another length than `rates`.
        """
        match_groups(len(rates), min_lr=self.min_lr)
        return PlateauState()

    def __call__(
        self, state: PlateauState, metric: float, rates: Sequence[float]
    ) -> tuple[PlateauState, tuple[float, ...]]:
        """Process one metric and return the new state and the new rate of each group."""
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
    """The state of `Greedy` between two evaluations.

    initial_rates: the rates of the groups at the start, which a reset restores.
    best: the best metric since the start or the last reset, None before the first.
    num_good_epochs, num_bad_epochs: evaluations in a row with, and without, an improvement.
    cooldown_counter, warmup_counter: how many more evaluations are ignored.
    reset_counter: how many more reductions with every group at its minimum lead to a reset.
    window, window_sum: the metrics that are averaged, oldest first, and their running sum; empty without `smooth`.
    """

    initial_rates: tuple[Rate, ...]
    reset_counter: Count
    best: float | None = None
    num_good_epochs: Count = 0
    num_bad_epochs: Count = 0
    cooldown_counter: Count = 0
    warmup_counter: Count = 0
    window: tuple[float, ...] = ()
    window_sum: float = 0.0


@frozen
class Greedy(checks.Options):
    """After more than `patience` improvements in a row: rate = min(rate / factor, max_lr). After more than `patience`
    evaluations in a row without one: rate = max(rate * factor, min_lr). A group whose rate would change by `eps` or
    less, or in the other direction, keeps it.

    After an increase, `warmup` evaluations are ignored, after a reduction `cooldown` of them. When a reduction leaves
    every group at or below its min_lr for the `reset_start`-th time since the last increase, the schedule is reset to
    the initial rates. With `smooth`, the metric is replaced by the mean of the last `window_size` metrics; NaN or
    infinity stays in the running sum, and so in the mean, until a reset. `improves` defines an improvement (mode,
    threshold, threshold_mode). min_lr and max_lr are one number, or a list with one for each group. An "epoch" in a
    name is an evaluation, as in the source. `verbose` is accepted for compatibility with transformers and has no
    effect: a changed rate shows in the logs.

    Source: transformers 5.23, `get_greedy_schedule`, with its names and defaults; the algorithm is arXiv:2512.14527.
    Note the default min_lr of 1e-3: rates below it are never reduced. Raises ConfigurationError for invalid options.
    """

    mode: Annotated[str, checks.one_of("min", "max")] = "min"
    factor: Annotated[float, POSITIVE_BELOW_1] = 0.95
    patience: Annotated[int, checks.COUNT] = 10
    threshold: Annotated[float, checks.FINITE] = 1e-6
    threshold_mode: Annotated[str, checks.one_of("rel", "abs")] = "abs"
    cooldown: Annotated[int, checks.COUNT] = 0
    warmup: Annotated[int, checks.COUNT] = 0
    min_lr: Annotated[Bound, checks.one_or_each(checks.NOT_NEGATIVE)] = field(default=1e-3, converter=as_bound)
    max_lr: Annotated[Bound, checks.one_or_each(POSITIVE_OR_INFINITE)] = field(default=1.0, converter=as_bound)
    eps: Annotated[float, checks.NOT_NEGATIVE] = 1e-8
    verbose: Annotated[bool, checks.FLAG] = False
    smooth: Annotated[bool, checks.FLAG] = False
    window_size: Annotated[int, checks.POSITIVE_COUNT] = 50
    reset_start: Annotated[int, checks.COUNT] = 500

    def start(self, rates: Sequence[float]) -> GreedyState:
        """Return the state before the first metric. A reset restores these rates.

        Raises ConfigurationError if a bound is a list of another length than `rates`, or if the min_lr of a group is
        above its max_lr.
        """
        floors, ceilings = match_groups(len(rates), min_lr=self.min_lr, max_lr=self.max_lr)
        if any(floor > ceiling for floor, ceiling in zip(floors, ceilings, strict=True)):
            raise ConfigurationError(
                f"min_lr={self.min_lr!r} is above max_lr={self.max_lr!r} in at least one parameter group. "
                "Set min_lr to at most max_lr in every group."
            )
        return GreedyState(tuple(rates), self.reset_start)

    def __call__(
        self, state: GreedyState, metric: float, rates: Sequence[float]
    ) -> tuple[GreedyState, tuple[float, ...]]:
        """Process one metric and return the new state and the new rate of each group."""
        rates = tuple(rates)
        state, metric = self._smoothed(state, float(metric))
        if state.cooldown_counter > 0 or state.warmup_counter > 0:
            return _ignored(state), rates
        if improves(metric, state.best, self.mode, self.threshold, self.threshold_mode):
            state = evolve(state, best=metric, num_good_epochs=state.num_good_epochs + 1, num_bad_epochs=0)
        else:
            state = evolve(state, num_good_epochs=0, num_bad_epochs=state.num_bad_epochs + 1)
        if state.num_good_epochs > self.patience:
            return self._increased(state, rates)
        if state.num_bad_epochs > self.patience:
            return self._reduced(state, rates)
        return state, rates

    def _smoothed(self, state: GreedyState, metric: float) -> tuple[GreedyState, float]:
        """Return the state with `metric` in its window, and the smoothed metric."""
        if not self.smooth:
            return state, metric
        window, total = (*state.window, metric), state.window_sum + metric
        if len(window) > self.window_size:
            window, total = window[1:], total - window[0]
        return evolve(state, window=window, window_sum=total), total / len(window)

    def _increased(self, state: GreedyState, rates: tuple[float, ...]) -> tuple[GreedyState, tuple[float, ...]]:
        [ceilings] = match_groups(len(rates), max_lr=self.max_lr)
        rises = ((rate, min(rate / self.factor, ceiling)) for rate, ceiling in zip(rates, ceilings, strict=True))
        raised = tuple(new if new - rate > self.eps else rate for rate, new in rises)
        return evolve(state, num_good_epochs=0, warmup_counter=self.warmup, reset_counter=self.reset_start), raised

    def _reduced(self, state: GreedyState, rates: tuple[float, ...]) -> tuple[GreedyState, tuple[float, ...]]:
        [floors] = match_groups(len(rates), min_lr=self.min_lr)
        fallen = lowered(rates, self.factor, floors, self.eps)
        state = evolve(state, num_bad_epochs=0, cooldown_counter=self.cooldown)
        if any(rate > floor for rate, floor in zip(fallen, floors, strict=True)):
            return state, fallen
        if state.reset_counter > 1:
            return evolve(state, reset_counter=state.reset_counter - 1), fallen
        reset = GreedyState(state.initial_rates, self.reset_start, cooldown_counter=self.cooldown)
        return reset, state.initial_rates


def _ignored(state: GreedyState) -> GreedyState:
    """Return the state after an evaluation that is ignored. The cooldown is counted down before the warmup."""
    uncounted = evolve(state, num_good_epochs=0, num_bad_epochs=0)
    if state.cooldown_counter > 0:
        return evolve(uncounted, cooldown_counter=state.cooldown_counter - 1)
    return evolve(uncounted, warmup_counter=state.warmup_counter - 1)
