"""Lower the rates when a metric stops getting better."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import field, frozen

from hexloop.domain.schedules.adaptive import Bound, as_bound, improves, lowered, match_groups
from hexloop.domain.schedules.checks import COUNT, FINITE, NOT_NEGATIVE, check, number, one_of, one_or_each


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
