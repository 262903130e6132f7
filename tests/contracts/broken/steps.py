"""Adapters of a training step that each violate their contract in one way; `broken` names the test that detects it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch.optim import Optimizer as TorchOptimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from hexloop.adapters.scheduler.torch.run_schedules import MetricScheduler
from hexloop.adapters.trainable.least_squares import Row, Scalar
from hexloop.domain.evaluation import BestMetric
from hexloop.domain.json_documents import only_value
from hexloop.domain.loop import StandardLearner
from hexloop.ports.learner import Optimizer
from hexloop.ports.state import Part
from hexloop.testing import (
    LeastSquares,
    PlainPrecision,
    SimulatedScaling,
    SingleProcess,
)
from tests.contracts.least_squares import small_trainable
from tests.contracts.test_learner import OnLeastSquares as LearnerTest
from tests.contracts.test_precision import OnLeastSquares as PrecisionTest
from tests.contracts.test_torch import OfTorchSchedulers
from tests.contracts.test_trainable import OfOneFeature as TrainableTest

Batch = Sequence[Row]


class MeanOfMeans(LeastSquares):
    def count_items(self, window: Sequence[Batch]) -> int:
        return len(window)

    def loss(self, batch: Batch, window_items: Any) -> Scalar:
        return super().loss(batch, len(batch) * window_items)


class NeverClipping(LeastSquares):
    def clip(self, max_norm: float) -> float:
        return super().clip(0.0)


class NeverCleared(LeastSquares):
    def clear_gradients(self) -> None:
        """Keep the gradients."""


class ReturningTheClippedNorm(LeastSquares):
    def clip(self, max_norm: float) -> float:
        super().clip(max_norm)
        return super().clip(0.0)


def made(kind: type[LeastSquares], learning_rate: float = 0.05) -> LeastSquares:
    """Return the small problem's model as another class."""
    plain = small_trainable(learning_rate)
    return kind(plain.model, plain.optimizer)


class TestMeanOfMeans(TrainableTest):
    broken = "test_a_window_can_be_split_anywhere"

    def make(self) -> LeastSquares:
        return made(MeanOfMeans)


class TestNeverClipping(TrainableTest):
    broken = "test_clipping_scales_down_to_the_norm"

    def make(self) -> LeastSquares:
        return made(NeverClipping)


class TestNeverCleared(TrainableTest):
    broken = "test_gradients_accumulate_until_they_are_cleared"

    def make(self) -> LeastSquares:
        return made(NeverCleared)


class TestLearningMeanOfMeans(LearnerTest):
    broken = "test_a_window_can_be_split_anywhere"

    def make(self) -> StandardLearner[Batch, Scalar]:
        return StandardLearner(made(MeanOfMeans), PlainPrecision(), SingleProcess())


class TestReturningTheClippedNorm(LearnerTest):
    broken = "test_the_norm_is_measured_before_clipping"

    def make(self) -> StandardLearner[Batch, Scalar]:
        return StandardLearner(made(ReturningTheClippedNorm), PlainPrecision(), SingleProcess())


class TestLearningWithoutClearing(LearnerTest):
    broken = "test_gradients_are_cleared_after_a_step"

    def make_frozen(self) -> StandardLearner[Batch, Scalar]:
        return StandardLearner(made(NeverCleared, learning_rate=0.0), PlainPrecision(), SingleProcess())


class NeverUnscaling(SimulatedScaling):
    def unscale(self, optimizer: Optimizer) -> None:
        """Leave the gradients scaled."""


class NeverStepping(PlainPrecision):
    def step(self, optimizer: Optimizer) -> bool:
        return False


class LosingTheScale(SimulatedScaling):
    def load(self, parts: Iterable[Part]) -> None:
        only_value(parts, "scaler")


class TestNeverUnscaling(PrecisionTest):
    broken = "test_gradients_are_unchanged"

    def make(self) -> SimulatedScaling:
        return NeverUnscaling()


class TestNeverStepping(PrecisionTest):
    broken = "test_a_finite_step_is_taken"

    def make(self) -> PlainPrecision:
        return NeverStepping()


class TestLosingTheScale(PrecisionTest):
    broken = "test_it_can_be_restored_at_every_boundary"

    def make(self) -> SimulatedScaling:
        return LosingTheScale(growth_interval=2)


class ObservingWithoutSettingRates(MetricScheduler):
    def observe(self, metrics: Mapping[str, float]) -> None:
        groups = self.scheduler.optimizer.param_groups
        before = [group["lr"] for group in groups]
        super().observe(metrics)
        for group, rate in zip(groups, before, strict=True):
            group["lr"] = rate

    def rates(self) -> tuple[float, ...]:
        return tuple(self.scheduler.get_last_lr())


class ForgettingMetrics(MetricScheduler):
    def load(self, parts: Iterable[Part]) -> None:
        list(parts)


class SchedulerTest(OfTorchSchedulers):
    kind: type[MetricScheduler]

    def scheduler_for(self, optimizer: TorchOptimizer) -> ReduceLROnPlateau:
        return ReduceLROnPlateau(optimizer, patience=0)

    def adapter_for(self, scheduler: Any, optimizer: TorchOptimizer) -> MetricScheduler:
        return self.kind(scheduler, BestMetric("loss"))


class TestObservingWithoutSettingRates(SchedulerTest):
    broken = "test_returned_rates_are_used"
    kind = ObservingWithoutSettingRates


class TestForgettingMetrics(SchedulerTest):
    broken = "test_it_can_be_restored_at_every_boundary"
    kind = ForgettingMetrics
