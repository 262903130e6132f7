"""Every combination of a run's parts, interrupted in every way, resumes exactly."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import pytest
import torch
from attrs import define, frozen
from torch.optim import SGD
from torch.optim.lr_scheduler import ReduceLROnPlateau

from hexloop.adapters.scheduler import ScheduledRates
from hexloop.adapters.scheduler.torch.run_schedules import GreedyLR, MetricScheduler
from hexloop.adapters.trainable.least_squares import Row
from hexloop.app.testing.recording import Cut, RecordedRun, record_run, step_is
from hexloop.app.testing.resume_exactness import first_difference
from hexloop.domain import evaluation
from hexloop.domain.checkpoints.store import CheckpointStore
from hexloop.domain.evaluation import BestMetric, patience_after
from hexloop.domain.events import AnyEvent, EpochEnded, EvaluationBegan, PredictionStepEnded
from hexloop.domain.loop import apply_requests
from hexloop.domain.order import KeyedPermutation
from hexloop.domain.run import Evaluation, Run
from hexloop.domain.schedules import ADAPTIVE, SHAPES, build_shape
from hexloop.domain.state import RunState
from hexloop.domain.triggers import Interval, Trigger, Triggers
from hexloop.ports.learner import Scheduler
from hexloop.ports.storage import Storage
from hexloop.testing import (
    InMemoryBatches,
    LeastSquaresEvaluator,
    MemoryStorage,
    SimulatedScaling,
    StatefulBatches,
    StreamedBatches,
    least_squares,
    simulated_run,
)
from tests.covering import all_pairs, covering_array, pairs_of

# A run that is stopped before its first save has no best checkpoint to end with.
pytestmark = pytest.mark.filterwarnings("ignore:The run ends with")

ROWS: list[Row] = [((x / 8,), x / 4 + 1) for x in range(-5, 6)]
"""Eleven rows: an epoch has six batches of two, the last of one row, in two windows of four, the last of two."""

STEPS = {1: 13, 4: 5}
"""Steps by accumulation: two epochs and a part of the third."""

OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "cosine_with_min_lr": {"min_lr": 0.01},
    "cosine_warmup_with_min_lr": {"min_lr": 0.01},
    "warmup_stable_decay": {"num_decay_steps": 2},
    "reduce_lr_on_plateau": {"patience": 0, "threshold": 0.3},
    "greedy": {"patience": 0},
}
LOSS = BestMetric("loss")


class NoisyRows:
    """Rows with noise from a generator whose state is part of their state."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows, self._read, self._random = rows, 0, random.Random(5)

    def __iter__(self) -> Iterator[Row]:
        while self._read < len(self._rows):
            features, target = self._rows[self._read]
            self._read += 1
            yield features, target + self._random.gauss(0, 0.1)
        self._read = 0

    def state_dict(self) -> Any:
        return [self._read, self._random.getstate()]

    def load_state_dict(self, state: Any, /) -> None:
        self._read, (version, words, gauss) = state
        self._random.setstate((version, tuple(words), gauss))


class ReadAhead(InMemoryBatches[Row]):
    """Shuffled rows, read three batches ahead, with noise that depends on the row."""

    def epoch(self, epoch: int, position: int) -> Generator[list[Row], None, None]:
        ahead = deque[list[Row]]()
        for batch in super().epoch(epoch, position):
            ahead.append([(features, target + self._noise(epoch, features)) for features, target in batch])
            if len(ahead) == 3:
                yield ahead.popleft()
        yield from ahead

    @staticmethod
    def _noise(epoch: int, features: Sequence[float]) -> float:
        return random.Random(f"{epoch} {features}").gauss(0, 0.1)


DATA: Mapping[str, Callable[[], Any]] = {
    "map": lambda: InMemoryBatches(ROWS, 2),
    "read ahead": lambda: ReadAhead(ROWS, 2, lambda epoch: KeyedPermutation(7, epoch, len(ROWS))),
    "iterable": lambda: StreamedBatches(ROWS, 2),
    "stateful": lambda: StatefulBatches(NoisyRows(ROWS), 2),
}


@frozen
class Kind:
    """The parts of a run.

    stopping: early stopping is on, and the run ends with its best weights. callback: a callback counts rows and adds
    them to each log.
    """

    data: str
    schedule: str
    accumulation: int
    scaling: bool
    stopping: bool
    callback: bool


def make(kind: Kind, storage: Storage) -> Run[Any, Any]:
    """Return a run as a new process would build it."""
    trainable, steps = least_squares(1, 0.1), STEPS[kind.accumulation]
    run: Run[Any, Any] = simulated_run(
        ROWS,
        trainable=trainable,
        batches=DATA[kind.data](),
        accumulation=kind.accumulation,
        max_steps=steps,
        scheduler=scheduler(kind.schedule, steps, trainable.set_learning_rates),
        precision=SimulatedScaling(overflows=(2, 7), growth_interval=3) if kind.scaling else None,
        storage=storage,
        state=RunState(run="mine"),
        triggers=Triggers(
            log=Trigger(Interval.STEPS, 3),
            evaluate=Trigger(Interval.STEPS, 2),
            save=Trigger(Interval.STEPS, 2) if kind.stopping else Trigger(),
        ),
    )
    run.report = lambda values: run.state.history.append(dict(values))
    run.evaluate = lambda: evaluate(run, LeastSquaresEvaluator(trainable.model, ROWS[:5], 2))
    if kind.callback:
        run.report = lambda values: run.state.history.append({**values, "rows": run.state.callbacks["rows"]})
        run.counters = [lambda batch: count(run, batch)]
    if kind.stopping:
        run.best = LOSS
        run.evaluate = lambda: with_patience(run, LeastSquaresEvaluator(trainable.model, ROWS[:5], 2))
        assert isinstance(run.checkpoints, CheckpointStore)
        run.checkpoints = Deciding(run, run.checkpoints.storage, run.checkpoints.contents, load_best_at_end=True)
    return run


class Deciding(CheckpointStore):
    """Decides again on resume whether patience has ended the run."""

    def __init__(self, run: Run[Any, Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.run = run

    def resume(self, name: str | None = None, source: Storage | None = None) -> RunState | None:
        state = super().resume(name, source)
        self.run.control.should_training_stop = state is not None and state.callbacks.get("patience", 0) >= 2
        return state


@define
class FollowedRates(MetricScheduler):
    """A schedule of torch that follows a metric and sets the rates of an optimizer without torch."""

    set_rates: Callable[[Sequence[float]], None]

    def start(self, updates: int) -> None:
        self.set_rates(self.rates())

    def observe(self, metrics: Mapping[str, float]) -> None:
        super().observe(metrics)
        self.set_rates(self.rates())


def scheduler(name: str, steps: int, set_rates: Callable[[Sequence[float]], None]) -> Scheduler:
    options = OPTIONS.get(name, {})
    if name in ADAPTIVE:
        kind: Any = ReduceLROnPlateau if name == "reduce_lr_on_plateau" else GreedyLR
        return FollowedRates(kind(SGD([torch.ones(1)], lr=0.1), **options), LOSS, set_rates)
    shape = build_shape(name, base_rate=0.1, warmup_steps=2, total_steps=steps, options=options)
    return ScheduledRates(shape, (0.1,), set_rates)


def evaluate(run: Run[Any, Any], evaluator: LeastSquaresEvaluator) -> Evaluation:
    def apply_agreed_requests() -> Iterator[AnyEvent]:
        return apply_requests(run) if run.agreement.waiting else iter(())

    return evaluation.evaluate(
        evaluator,
        prefix="eval",
        step=run.state.step,
        clock=run.clock,
        report=run.report,
        apply_requests=apply_agreed_requests,
        interrupted=lambda: run.stopped,
    )


def with_patience(run: Run[Any, Any], evaluator: LeastSquaresEvaluator) -> Evaluation:
    """Ends the run after two consecutive evaluations that hardly improved on the best."""
    metrics = yield from evaluate(run, evaluator)
    if metrics is not None:
        kept = run.state.callbacks
        best = run.state.best_metric
        kept["patience"] = patience_after(
            metrics["eval_loss"], best, kept.get("patience", 0), greater_is_better=False, threshold=0.02
        )
        run.control.should_training_stop = kept["patience"] >= 2 or run.control.should_training_stop
    return metrics


def count(run: Run[Any, Any], batch: Sequence[Row]) -> None:
    run.state.callbacks["rows"] = run.state.callbacks.get("rows", 0) + len(batch)


class At:
    """The n-th event of a kind."""

    def __init__(self, kind: type[Any], number: int) -> None:
        self.kind, self.left = kind, number

    def __call__(self, event: AnyEvent) -> bool:
        self.left -= isinstance(event, self.kind)
        return self.left == 0 and isinstance(event, self.kind)


Way = Callable[[int], Sequence[tuple[Cut, bool]]]
"""Maps the number of steps of a run to its interruptions: where, and whether it is asked to stop or just ends."""

WAYS: Mapping[str, Way] = {
    "after the first step": lambda last: [(step_is(1), False)],
    "in the middle of an epoch": lambda last: [(step_is(min(3, last - 1)), False)],
    "stopped there": lambda last: [(step_is(min(3, last - 1)), True)],
    "at the last step of an epoch": lambda last: [(step_is(min(6 if last > 6 else 2, last - 1)), False)],
    "at the end of an epoch": lambda last: [(At(EpochEnded, 1), False)],
    "before the last step": lambda last: [(step_is(last - 1), True)],
    "when an evaluation begins": lambda last: [(At(EvaluationBegan, 1), True)],
    "in the middle of an evaluation": lambda last: [(At(PredictionStepEnded, 5), True)],
    "twice in a row": lambda last: [(step_is(min(2, last - 2)), False), (step_is(min(3, last - 1)), True)],
}


def cut_after(step: int) -> Way:
    return lambda last: [(step_is(step), False)]


def joined(steps: dict[int, Any], rest: RecordedRun) -> dict[int, Any]:
    return {step: noted for step, noted in steps.items() if step <= rest.started_at} | rest.steps


def interrupted(kind: Kind, way: Way, last: int) -> RecordedRun:
    """Return what is recorded of a run that was interrupted and then finished."""
    storage, steps = MemoryStorage(), dict[int, Any]()
    for number, (cut, stop) in enumerate(way(last)):
        steps = joined(steps, record_run(make(kind, storage), resume=number > 0, cut=cut, stop=stop))
        storage.crash()
    rest = record_run(make(kind, storage), resume=True)
    rest.steps = joined(steps, rest)
    return rest


FACTORS: Mapping[str, Sequence[Any]] = {
    "data": list(DATA),
    "schedule": [*SHAPES, *ADAPTIVE],
    "accumulation": list(STEPS),
    "scaling": [False, True],
    "stopping": [False, True],
    "callback": [False, True],
    "way": list(WAYS),
}
PRODUCT = list(product(*FACTORS.values()))


def assert_resumes_exactly(chosen: Sequence[tuple[Any, ...]]) -> None:
    whole: dict[Kind, RecordedRun] = {}
    for *each, way in chosen:
        kind = Kind(*each)
        if kind not in whole:
            whole[kind] = record_run(make(kind, MemoryStorage()))
            assert whole[kind].last_step >= 4, kind
        found = first_difference(whole[kind], interrupted(kind, WAYS[way], whole[kind].last_step), [0])
        assert found is None, (kind, way, found)


def test_every_pair_resumes_exactly() -> None:
    """Weights, optimizer, schedule, loss scale, history and steps equal the uninterrupted run's, in a covering array.

    The array contains every pair of values.
    """
    chosen = covering_array(FACTORS, lambda _: True)
    assert set().union(*map(pairs_of, chosen)) == all_pairs(FACTORS, lambda _: True)
    assert_resumes_exactly([tuple(each[factor] for factor in FACTORS) for each in chosen])


@pytest.mark.matrix
@pytest.mark.parametrize("data", DATA)
def test_every_combination_resumes_exactly(data: str) -> None:
    """Test the full product of data, schedule, accumulation, scaling, stopping, callback, and interruption."""
    assert len(PRODUCT) == 4 * 12 * 2 * 2 * 2 * 2 * 9
    assert_resumes_exactly([each for each in PRODUCT if each[0] == data])


@pytest.mark.parametrize("accumulation", STEPS)
@pytest.mark.parametrize("data", DATA)
def test_a_run_resumes_exactly_at_every_step(data: str, accumulation: int) -> None:
    """A run with all parts resumes exactly after an interruption at any of its steps."""
    kind = Kind(data, "reduce_lr_on_plateau", accumulation, scaling=True, stopping=True, callback=True)
    whole = record_run(make(kind, MemoryStorage()))
    for step in range(1, whole.last_step):
        found = first_difference(whole, interrupted(kind, cut_after(step), 0), [step])
        assert found is None, (step, found)


def test_early_stopping_ends_some_of_these_runs() -> None:
    """Patience ends some runs, and at different steps, so that the product does test it."""
    ends = {
        record_run(make(Kind("map", name, 1, scaling=False, stopping=True, callback=True), MemoryStorage())).last_step
        for name in [*SHAPES, *ADAPTIVE]
    }
    assert min(ends) < max(ends) < STEPS[1]
