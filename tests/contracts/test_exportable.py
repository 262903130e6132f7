"""Contract of the Exportable port, run on the adapters that need no framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hexloop.adapters.collectives.simulated import SimulatedWorld
from hexloop.adapters.losses import PlainLosses
from hexloop.adapters.precision.simulated_scaling import SimulatedScaling
from hexloop.adapters.trainable.least_squares import LeastSquares, LinearModel, MomentumOptimizer, least_squares
from hexloop.adapters.trainable.least_squares.sharded import ShardedLeastSquares, sharded_least_squares
from hexloop.app.testing.contracts.state import ExportableContract, Kept
from hexloop.ports.collectives import Collectives
from tests.contracts.least_squares import PLANE, ROWS, small_trainable

Result = TypeVar("Result")


class InSimulatedWorlds(ExportableContract[Kept]):
    """Ranks are threads."""

    def run(self, size: int, function: Callable[[Collectives], Result]) -> list[Result]:
        return SimulatedWorld(size).run(function)


class TestLeastSquares(InSimulatedWorlds[LeastSquares]):
    def make(self, collectives: Collectives) -> LeastSquares:
        return least_squares(2, learning_rate=0.05)

    def advance(self, kept: LeastSquares) -> None:
        kept.loss(PLANE, len(PLANE)).backward()
        kept.optimizer.step()
        kept.clear_gradients()
        kept.set_learning_rates([kept.optimizer.rates[0] * 0.9])


class TestShardedLeastSquares(InSimulatedWorlds[ShardedLeastSquares]):
    sizes = (1, 2, 3, 5)

    def make(self, collectives: Collectives) -> ShardedLeastSquares:
        return sharded_least_squares(collectives, 2, learning_rate=0.05)

    def advance(self, kept: ShardedLeastSquares) -> None:
        # Dyadic numbers: sums are exact in every order, so worlds of every size agree bitwise.
        kept.model.gradients[:] = [0.5 + parameter for parameter in kept.model.parameters]
        kept.optimizer.step()
        kept.set_learning_rates([kept.optimizer.rates[0] * 0.5])


class TestModelAlone(InSimulatedWorlds[LinearModel]):
    def make(self, collectives: Collectives) -> LinearModel:
        return LinearModel(3)

    def advance(self, kept: LinearModel) -> None:
        kept.parameters[:] = [parameter + 0.1 for parameter in kept.parameters]


class TestOptimizerAlone(InSimulatedWorlds[MomentumOptimizer]):
    def make(self, collectives: Collectives) -> MomentumOptimizer:
        return small_trainable().optimizer

    def advance(self, kept: MomentumOptimizer) -> None:
        kept.gradients[:] = [1.0, 2.0]
        kept.step()


class TestSimulatedScaling(InSimulatedWorlds[SimulatedScaling]):
    def make(self, collectives: Collectives) -> SimulatedScaling:
        return SimulatedScaling(overflows={3}, growth_interval=2)

    def advance(self, kept: SimulatedScaling) -> None:
        trainable = small_trainable()
        kept.scale(trainable.loss(ROWS, len(ROWS))).backward()
        kept.unscale(trainable.optimizer)
        kept.step(trainable.optimizer)


class TestPlainLosses(InSimulatedWorlds[PlainLosses]):
    def make(self, collectives: Collectives) -> PlainLosses:
        return PlainLosses()

    def advance(self, kept: PlainLosses) -> None:
        kept.add(0.1)
