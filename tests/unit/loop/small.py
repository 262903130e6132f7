"""A small real run on the fakes: least squares on floats, saved and resumed in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from attrs import define, field

from hexloop.adapters.contents.checkpoint import CheckpointContents
from hexloop.adapters.scheduler import ScheduledRates
from hexloop.domain import evaluation
from hexloop.domain.checkpoints.store import CheckpointStore
from hexloop.domain.events import AnyEvent
from hexloop.domain.loop import StandardLearner, apply_requests, train
from hexloop.domain.run import Evaluation, Run
from hexloop.domain.schedules import Linear
from hexloop.domain.state import RunState
from hexloop.domain.triggers import Interval, Trigger, Triggers, make_plan
from hexloop.ports.state import Exportable
from hexloop.testing import (
    InMemoryBatches,
    InMemorySnapshots,
    LeastSquares,
    LeastSquaresEvaluator,
    ManualClock,
    MemoryStorage,
    PlainLosses,
    PlainPrecision,
    SingleProcess,
    least_squares,
)

Row = tuple[tuple[float, ...], float]
ROWS: list[Row] = [((x / 8,), x / 4 + 1) for x in range(-8, 8)]
"""Sixteen rows of y = 2 x + 1."""


@define
class Small:
    """The parts of a small run."""

    run: Run[Any, Any]
    trainable: LeastSquares
    clock: ManualClock
    storage: MemoryStorage
    store: CheckpointStore
    logs: list[dict[str, float]] = field(factory=list)

    def events(self) -> list[AnyEvent]:
        """Return the events of the whole run."""
        return list(train(self.run))

    @property
    def parameters(self) -> list[float]:
        """Return the model's weights and its bias."""
        return list(self.trainable.model.parameters)


def make_small(
    *,
    rows: Sequence[Row] = ROWS,
    batch_size: int = 2,
    accumulation: int = 1,
    epochs: float = 2,
    max_steps: int = -1,
    triggers: Triggers | None = None,
    storage: MemoryStorage | None = None,
    max_norm: float = 1.0,
    learner: Callable[[LeastSquares], Any] | None = None,
    batches: Any = None,
    **fields: Any,
) -> Small:
    """Return a least-squares run on `rows`; `fields` are further fields of the Run."""
    trainable = least_squares(1, learning_rate=0.1)
    batches = InMemoryBatches(rows, batch_size) if batches is None else batches
    plan = make_plan(batches.batches_per_epoch(), accumulation, epochs, max_steps)
    clock, losses = ManualClock(), PlainLosses()
    standard = StandardLearner(trainable, PlainPrecision(), SingleProcess()) if learner is None else learner(trainable)
    shape = Linear(num_warmup_steps=0, num_training_steps=plan.total_steps)
    scheduler = ScheduledRates(shape, (0.1,), trainable.set_learning_rates)
    run: Run[Any, Any] = Run(
        learner=standard,
        batches=batches,
        losses=losses,
        scheduler=fields.pop("scheduler", scheduler),
        clock=clock,
        plan=plan,
        state=RunState(run="small"),
        triggers=Triggers() if triggers is None else triggers,
        max_norm=max_norm,
        **fields,
    )
    storage = MemoryStorage() if storage is None else storage
    exportables: dict[str, Exportable] = {"model": trainable.model, "optimizer": trainable.optimizer, "losses": losses}
    store = CheckpointStore(storage, CheckpointContents(exportables, snapshots=InMemorySnapshots()))
    small = Small(run, trainable, clock, storage, store)
    run.checkpoints = store
    if "report" not in fields:
        run.report = lambda values: _report(small, values)
    if "evaluate" not in fields:
        run.evaluate = lambda: evaluate_small(small)
    return small


def _report(small: Small, values: dict[str, float]) -> None:
    small.logs.append(values)
    small.run.state.history.append({**values, "step": small.run.state.step})


def evaluate_small(small: Small) -> Evaluation:
    """Evaluate on the same rows, applying the run's requests between batches."""
    run = small.run

    def apply_agreed_requests() -> Iterator[AnyEvent]:
        return apply_requests(run) if run.agreement.waiting else iter(())

    return evaluation.evaluate(
        LeastSquaresEvaluator(small.trainable.model, ROWS, 4),
        prefix="eval",
        step=run.state.step,
        clock=run.clock,
        report=run.report,
        apply_requests=apply_agreed_requests,
        interrupted=lambda: run.stopped,
    )


def resume(small: Small, name: str | None = None) -> None:
    """Move a new small run to the newest checkpoint in its storage."""
    state = small.store.resume(name)
    assert state is not None
    small.run.state = state


def every(log: int = 0, evaluate: int = 0, save: int = 0, **further: Any) -> Triggers:
    """Return triggers in steps; 0 is never."""

    def trigger(steps: int) -> Trigger:
        return Trigger(Interval.STEPS, steps) if steps else Trigger()

    return Triggers(trigger(log), trigger(evaluate), trigger(save), **further)


def names(events: Sequence[AnyEvent]) -> list[str]:
    """Return the class names of the events."""
    return [type(event).__name__ for event in events]
