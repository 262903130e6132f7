"""Adapters for a run's environment that each violate their contract in one way; `broken` names the failing test."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

import pytest

from hexloop.adapters.background import InlineTask
from hexloop.adapters.trainable.least_squares import Row
from hexloop.ports.batches import Evaluator
from hexloop.ports.collectives import Collectives, Json
from hexloop.ports.device import Device, DeviceUse
from hexloop.ports.logger import Fact, Journal, Logger, Media, Record
from hexloop.ports.process import Interrupts, Machine
from hexloop.ports.state import Part
from hexloop.testing import (
    BackgroundContract,
    ClockContract,
    CollectivesContract,
    DeviceContract,
    EvaluatorContract,
    InlineBackground,
    InterruptsContract,
    JournalContract,
    LeastSquaresEvaluator,
    LinearModel,
    LoggerContract,
    MachineContract,
    ManualClock,
    ManualInterrupts,
    MemoryJournal,
    NoLogger,
    RecordingLogger,
    SimulatedDevice,
    SimulatedMachine,
    SimulatedOutOfMemoryError,
    SimulatedWorld,
    SingleProcessCollectives,
)
from tests.contracts.least_squares import ROWS

Result = TypeVar("Result")
Batch = Sequence[Row]


class ErrorsLost(InlineBackground):
    def submit(self, act: Callable[[], None], name: str, low_priority: bool = True) -> InlineTask:
        """Submit the task without its errors."""

        def without_errors() -> None:
            with suppress(BaseException):
                act()

        return super().submit(without_errors, name, low_priority)


class TestErrorsLost(BackgroundContract):
    broken = "test_an_error_is_raised_by_wait"

    @pytest.fixture
    def background(self) -> ErrorsLost:
        return ErrorsLost()


class NeverAsleep(ManualClock):
    def sleep(self, seconds: float) -> None:
        self.advance(seconds / 2)


class TestNeverAsleep(ClockContract):
    broken = "test_sleep_lasts"

    @pytest.fixture
    def clock(self) -> ManualClock:
        return NeverAsleep()


class NeverSilent(ManualInterrupts):
    def stop(self) -> None:
        """Keep listening."""


class TestNeverSilent(InterruptsContract):
    broken = "test_a_stopped_listener_gets_no_requests"

    @pytest.fixture
    def interrupts(self) -> Interrupts:
        return NeverSilent()

    @pytest.fixture
    def provoke(self, interrupts: Interrupts) -> Callable[[], None]:
        assert isinstance(interrupts, NeverSilent)
        return interrupts.interrupt


class KeptUntilClosed(MemoryJournal):
    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[dict[str, Fact]] = []

    def note(self, kind: str, **facts: Fact) -> None:
        self.waiting.append({"kind": kind, **facts})

    def close(self) -> None:
        self.notes += self.waiting
        self.waiting.clear()


class TestKeptUntilClosed(JournalContract):
    broken = "test_an_entry_is_written_at_once"

    @pytest.fixture
    def journal(self) -> Journal:
        return KeptUntilClosed()

    def noted(self, journal: Journal) -> list[dict[str, Fact]]:
        assert isinstance(journal, KeptUntilClosed)
        return list(journal.notes)


class TakingNoImages(RecordingLogger):
    def write_media(self, media: Media) -> None:
        if media.kind == "image":
            raise ValueError


class TestTakingNoImages(LoggerContract):
    broken = "test_media_of_the_kinds_that_it_takes_can_be_written"

    @pytest.fixture
    def logger(self) -> Logger:
        return TakingNoImages(media={"text", "image"})


class MadeUpMetrics(SimulatedMachine):
    def measure(self) -> Mapping[str, float]:
        return {"made_up": 1.0}


class TestMadeUpMetrics(MachineContract):
    broken = "test_known_metrics_are_measured"

    @pytest.fixture
    def machine(self) -> Machine:
        return MadeUpMetrics()


class Overheated(SimulatedDevice):
    def use(self) -> DeviceUse:
        return DeviceUse(use=101.0)


class FailingOnNan(NoLogger):
    def write(self, record: Record) -> None:
        if any(isinstance(value, float) and math.isnan(value) for value in record.values.values()):
            raise ValueError


class TestFailingOnNan(LoggerContract):
    broken = "test_every_type_of_value_can_be_written"

    @pytest.fixture
    def logger(self) -> Logger:
        return FailingOnNan()


class SeedingHalf(SimulatedDevice):
    def seed(self, seed: int) -> None:
        state = random.getstate()
        super().seed(seed)
        random.setstate(state)


class LosingGaussians(SimulatedDevice):
    def load(self, parts: Iterable[Part]) -> None:
        super().load(parts)
        version, numbers, _ = random.getstate()
        random.setstate((version, numbers, None))


class BlamingMemory(SimulatedDevice):
    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, RuntimeError)


class DeviceTest(DeviceContract):
    kind: type[SimulatedDevice]

    @pytest.fixture
    def device(self) -> Device:
        return self.kind()

    def draw(self, device: Device) -> float:
        assert isinstance(device, SimulatedDevice)
        return device.draw()

    def out_of_memory(self, device: Device) -> BaseException:
        return SimulatedOutOfMemoryError()


class TestSeedingHalf(DeviceTest):
    broken = "test_a_seed_seeds_every_generator"
    kind = SeedingHalf


class TestLosingGaussians(DeviceTest):
    broken = "test_generators_can_be_restored_at_any_time"
    kind = LosingGaussians


class TestOverheated(DeviceTest):
    broken = "test_its_use_is_within_its_bounds"
    kind = Overheated


class TestBlamingMemory(DeviceTest):
    broken = "test_it_recognizes_its_own_error"
    kind = BlamingMemory


class KeepingErrors(LeastSquaresEvaluator):
    def begin(self) -> None:
        kept = self._errors
        super().begin()
        self._errors = kept


class StuckInEvaluation(LeastSquaresEvaluator):
    def end(self) -> None:
        """Leave the model as it is."""


class EvaluatorTest(EvaluatorContract[Batch]):
    kind: type[LeastSquaresEvaluator]

    @pytest.fixture
    def evaluator(self) -> Evaluator[Batch]:
        self.model = LinearModel()
        return self.kind(self.model, ROWS, batch_size=4)

    def in_training(self, evaluator: Evaluator[Batch]) -> bool:
        return self.model.training


class TestKeepingErrors(EvaluatorTest):
    broken = "test_an_interrupted_evaluation_leaves_no_trace"
    kind = KeepingErrors


class TestStuckInEvaluation(EvaluatorTest):
    broken = "test_training_mode_is_restored_at_the_end"
    kind = StuckInEvaluation


class ReturningOwnValues(SingleProcessCollectives):
    """Returns only its own values."""

    def __init__(self, rank: Collectives) -> None:
        self._rank = rank

    @property
    def rank(self) -> int:  # type: ignore[override]
        return self._rank.rank

    @property
    def world_size(self) -> int:  # type: ignore[override]
        return self._rank.world_size

    def gather(self, value: Json) -> list[Json]:
        return [value] * self.world_size


class OwnValuesTest(CollectivesContract):
    world_size = 3

    def run(self, function: Callable[[Collectives], Result]) -> list[Result]:
        return SimulatedWorld(3).run(lambda rank: function(ReturningOwnValues(rank)))


class TestReturningOwnReductions(OwnValuesTest):
    broken = "test_reductions_are_element_wise"


class TestReturningOwnGathers(OwnValuesTest):
    broken = "test_gather_returns_all_values_on_every_rank"


class TestReturningOwnBroadcasts(OwnValuesTest):
    broken = "test_broadcast_returns_one_value_on_every_rank"


class TestSkippingBarriers(OwnValuesTest):
    broken = "test_a_barrier_waits_for_all_ranks"
