"""Adapters of the Scheduler port; here the one for constant learning rates."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hexloop.domain.schedules.scheduler import ScheduledRates


class ConstantRates(ScheduledRates):
    """Implements the Scheduler port with the same rates at every update, one per parameter group."""

    def __init__(self, set_rates: Callable[[Sequence[float]], None], rates: tuple[float, ...]) -> None:
        super().__init__(lambda _: 1.0, rates, set_rates)
