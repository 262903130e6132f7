"""What sets the learning rates."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from hexloop.app.contracts.parts import contents, kept
from hexloop.ports.scheduler import Scheduler

METRICS: tuple[Mapping[str, float], ...] = tuple({"eval_loss": loss} for loss in (3.0, 2.0, 2.0, 2.0, 2.5, 1.0, 1.0))
"""What a scheduler that follows a metric sees."""


class SchedulerContract:
    """The suite of the Scheduler port. A scheduler that follows a metric follows "eval_loss"."""

    def make(self) -> Scheduler:
        """A new adapter under test, the same each time, over parameter groups of its own."""
        raise NotImplementedError

    def rates_in_force(self, scheduler: Scheduler) -> tuple[float, ...]:
        """The rates with which the optimizer that `scheduler` drives would now take a step."""
        raise NotImplementedError

    @pytest.fixture
    def scheduler(self) -> Scheduler:
        """The adapter under test, started."""
        scheduler = self.make()
        scheduler.start(0)
        return scheduler

    def test_rates_are_in_force(self, scheduler: Scheduler) -> None:
        """From the start, and after each update and evaluation, the rates that it tells are those of the optimizer."""
        for updates, metrics in enumerate(METRICS, 1):
            assert scheduler.rates() == self.rates_in_force(scheduler)
            assert all(math.isfinite(rate) and rate >= 0 for rate in scheduler.rates())
            scheduler.advance(updates)
            assert scheduler.rates() == self.rates_in_force(scheduler)
            scheduler.observe(metrics)
        assert scheduler.rates() == self.rates_in_force(scheduler)

    def test_there_is_a_rate_for_each_group(self, scheduler: Scheduler) -> None:
        """It tells one rate or more, and always as many."""
        first = scheduler.rates()
        scheduler.advance(1)

        assert len(scheduler.rates()) == len(first) >= 1

    @pytest.mark.parametrize("done", range(len(METRICS)))
    def test_it_can_be_rebuilt_at_every_boundary(self, scheduler: Scheduler, done: int) -> None:
        """One that loads the export and starts at the same update has the same rates from there on."""
        for updates, metrics in enumerate(METRICS[:done], 1):
            scheduler.advance(updates)
            scheduler.observe(metrics)

        other = self.make()
        other.load(kept(scheduler.export()))
        other.start(done)

        assert contents(other.export()) == contents(scheduler.export())
        for updates, metrics in enumerate(METRICS[done:], done + 1):
            assert other.rates() == scheduler.rates() == self.rates_in_force(other)
            for each in (scheduler, other):
                each.advance(updates)
                each.observe(metrics)
        assert other.rates() == scheduler.rates() == self.rates_in_force(other)
