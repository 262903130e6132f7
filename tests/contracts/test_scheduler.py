"""Contract of the Scheduler port, run on the schedulers that need no framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from hexloop.adapters.scheduler import ConstantRates, ScheduledRates
from hexloop.app.testing.contracts.learning import SchedulerContract
from hexloop.domain.schedules import Linear
from hexloop.ports.learner import Scheduler

BASE_RATES = (0.1, 0.02)


class Groups:
    """The parameter groups of an optimizer."""

    def __init__(self) -> None:
        self.rates: tuple[float, ...] = ()

    def set_rates(self, rates: Sequence[float]) -> None:
        self.rates = tuple(rates)


class OfGroups(SchedulerContract):
    """A scheduler returned by `make_for`, on groups that expose their learning rates."""

    groups: ClassVar[dict[int, Groups]] = {}

    def make(self) -> Scheduler:
        groups = Groups()
        scheduler = self.make_for(groups)
        self.groups[id(scheduler)] = groups
        return scheduler

    def make_for(self, groups: Groups) -> Scheduler:
        raise NotImplementedError

    def rates_in_force(self, scheduler: Scheduler) -> tuple[float, ...]:
        return self.groups[id(scheduler)].rates


class TestConstantRates(OfGroups):
    def make_for(self, groups: Groups) -> Scheduler:
        return ConstantRates(groups.set_rates, BASE_RATES)


class TestScheduledRates(OfGroups):
    def make_for(self, groups: Groups) -> Scheduler:
        return ScheduledRates(Linear(num_warmup_steps=2, num_training_steps=6), BASE_RATES, groups.set_rates)
