"""Contract of the Collectives port, run on one process and on simulated worlds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hexloop.adapters.collectives import SingleProcessCollectives
from hexloop.adapters.collectives.simulated import Delay, SimulatedWorld
from hexloop.app.testing.contracts.processes import CollectivesContract
from hexloop.ports.collectives import Collectives

Result = TypeVar("Result")


class TestSingleProcess(CollectivesContract):
    def run(self, function: Callable[[Collectives], Result]) -> list[Result]:
        return [function(SingleProcessCollectives())]


class TestSimulatedWorldOfOne(CollectivesContract):
    def run(self, function: Callable[[Collectives], Result]) -> list[Result]:
        return SimulatedWorld(1).run(function)


class TestSimulatedWorldOfFour(CollectivesContract):
    world_size = 4

    def run(self, function: Callable[[Collectives], Result]) -> list[Result]:
        return SimulatedWorld(4).run(function)


class TestSimulatedWorldWithStragglers(CollectivesContract):
    world_size = 3

    def run(self, function: Callable[[Collectives], Result]) -> list[Result]:
        delays = [Delay(rank, operation, 10.0 * rank) for rank in (1, 2) for operation in (1, 3)]
        return SimulatedWorld(3, delays).run(function)
