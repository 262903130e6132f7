"""What a run tells whoever drives it, in the order in which it happens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import define, frozen


@frozen
class Event:
    """Base of everything that a run yields. `step` is the number of optimizer steps done so far."""

    step: int


@frozen
class TrainBegan(Event):
    """The run is about to take its first step, or its first since it was resumed."""


@frozen
class EpochBegan(Event):
    """A pass over the data begins (or goes on, after a resume in its middle). `epoch` counts from 0."""

    epoch: int


@define(eq=False)
class StepBegan:
    """A window of micro-batches is at hand and about to be trained on.

    Not frozen, as the two other events of a step: they come once a step, and freezing costs more than making them.
    """

    step: int


@define(eq=False)
class MicroStepEnded:
    """A micro-batch that does not end its window was added to the gradients. `loss` is its share, on the device."""

    step: int
    loss: object


@define(eq=False)
class StepEnded:
    """An optimizer step was done.

    `losses` are the window's shares, one a micro-batch, whose sum is the window's loss; they and `gradient_norm` are
    handles that stay on the device until somebody reads them. `taken` is False where loss scaling skipped the update.
    """

    step: int
    losses: Sequence[object]
    gradient_norm: object
    taken: bool


@frozen
class Logged(Event):
    """Numbers were logged: the very mapping that joined the run's history."""

    values: Mapping[str, float]


@frozen
class EvaluationBegan(Event):
    """An evaluation begins."""


@frozen
class PredictionStepEnded(Event):
    """A held-out batch was predicted. `batch` counts from 1."""

    batch: int


@frozen
class Evaluated(Event):
    """An evaluation is complete."""

    metrics: Mapping[str, float]


@frozen
class EvaluationInterrupted(Event):
    """A stop was asked for in the middle of an evaluation, which will start over on resume."""


@frozen
class Saved(Event):
    """The run's state was taken for the checkpoint `name`."""

    name: str


@frozen
class CheckpointPublished(Event):
    """The checkpoint `name` is complete and durable."""

    name: str


@frozen
class SaveFailed(Event):
    """A checkpoint could not be written. Everything saved before it is intact, and the run goes on."""

    error: Exception


@frozen
class SaveWaits(Event):
    """The storage is full: the run stands still until there is room for the checkpoint in flight, or no hope of it."""

    error: Exception


@frozen
class SaveSkipped(Event):
    """The checkpoint `name` is left out, because the one before it is still being written."""

    name: str


@frozen
class Paused(Event):
    """The run stands still at a step boundary until somebody resumes it; every `next` returns with this event."""


@frozen
class EpochEnded(Event):
    """A pass over the data is complete, or was cut short. `epoch` counts from 0."""

    epoch: int


@frozen
class TrainEnded(Event):
    """The run is over; `stopped` where it was asked to end before its last step, `reasons` by each who asked."""

    metrics: Mapping[str, float]
    stopped: bool
    reasons: tuple[str, ...] = ()


AnyEvent = Event | StepBegan | MicroStepEnded | StepEnded
