"""A complete run of the production training loop on fakes: a linear model of Python floats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hexloop.adapters.batches import InMemoryBatches
from hexloop.adapters.clock import ManualClock
from hexloop.adapters.contents.checkpoint import CheckpointContents
from hexloop.adapters.engines.single.engine import SingleProcess
from hexloop.adapters.losses import PlainLosses
from hexloop.adapters.precision.plain import PlainPrecision
from hexloop.adapters.scheduler import ScheduledRates
from hexloop.adapters.snapshots import InMemorySnapshots
from hexloop.adapters.trainable.least_squares import LeastSquares, Row, Scalar, least_squares
from hexloop.domain.checkpoints.store import CheckpointStore
from hexloop.domain.loop import StandardLearner
from hexloop.domain.run import Run
from hexloop.domain.schedules import Linear
from hexloop.domain.triggers import Interval, Trigger, Triggers, make_plan
from hexloop.ports.learner import Precision
from hexloop.ports.state import Exportable
from hexloop.ports.storage import Storage


def simulated_run(
    rows: Sequence[Row],
    *,
    trainable: LeastSquares | None = None,
    batch_size: int = 8,
    accumulation: int = 1,
    epochs: float = 3.0,
    max_steps: int = -1,
    learning_rate: float = 0.1,
    precision: Precision[Scalar] | None = None,
    storage: Storage | None = None,
    **parts: Any,
) -> Run[Sequence[Row], Scalar]:
    """Return a run that fits y = w . x + b to rows of features and target, to pass to `hexloop.domain.loop.train`.

    batch_size to learning_rate have the meaning that they have in transformers' arguments. The rows are read in
    sequential order, the learning rate decays linearly to zero, gradients are clipped to 1, every 500th step is logged,
    and the clock stands still.

    Args:
        rows: the samples: features and target.
        trainable: the model; by default one with all weights zero.
        batch_size: rows in a micro-batch.
        accumulation: micro-batches in an optimizer step.
        epochs: how often the rows are trained on.
        max_steps: optimizer steps, instead of epochs.
        learning_rate: the initial rate.
        precision: plain floats by default.
        storage: where checkpoints are saved; by default nowhere.
        **parts: other fields of `Run` (triggers, report, checkpoints, ...), or other adapters for the ports above.

    Examples:
        >>> from hexloop import StepEnded
        >>> from hexloop.domain.loop import train
        >>> from hexloop.testing import simulated_run
        >>> rows = [((x / 10,), 3 * x / 10 - 1) for x in range(20)]
        >>> [event.step for event in train(simulated_run(rows, epochs=2)) if isinstance(event, StepEnded)]
        [1, 2, 3, 4, 5, 6]
    """
    trainable = trainable or least_squares(len(rows[0][0]), learning_rate)
    precision = precision or PlainPrecision()
    learner = StandardLearner(trainable, precision, SingleProcess())
    batches = parts.get("batches") or InMemoryBatches(rows, batch_size)
    plan = make_plan(batches.batches_per_epoch(), accumulation, epochs, max_steps)
    shape = Linear(num_warmup_steps=0, num_training_steps=plan.total_steps)
    standard: dict[str, Any] = {
        "learner": learner,
        "batches": batches,
        "losses": PlainLosses(),
        "scheduler": ScheduledRates(shape, (learning_rate,), trainable.set_learning_rates),
        "clock": ManualClock(),
        "plan": plan,
        "triggers": Triggers(log=Trigger(Interval.STEPS, 500)),
        "max_norm": 1.0,
    }
    chosen = standard | parts
    if storage is not None:
        kept: dict[str, Exportable] = {name: chosen[name] for name in ("scheduler", "losses", "batches")}
        kept |= {"model": trainable.model, "optimizer": trainable.optimizer, "precision": precision}
        contents = CheckpointContents(kept, snapshots=InMemorySnapshots())
        chosen.setdefault("checkpoints", CheckpointStore(storage, contents))
    return Run(**chosen)
