"""The events that a run yields, in the order in which they occur."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import define, frozen


@frozen
class Event:
    """Base of the events of a run. `step` is the number of optimizer steps done so far.

    Args:
        step: optimizer steps done so far.
    """

    step: int


@frozen
class TrainBegan(Event):
    """The run starts or resumes; its next step follows."""


@frozen
class EpochBegan(Event):
    """An epoch starts, or continues after a resume in its middle. `epoch` counts from 0.

    Args:
        epoch: the number of the epoch, from 0.
    """

    epoch: int


@define(eq=False)
class StepBegan:
    """A window of micro-batches was read and is about to be trained on.

    Not frozen, like the other two events of a step: they are created at every step, and freezing would cost more than
    creating them.

    Args:
        step: optimizer steps done so far.
    """

    step: int


@define(eq=False)
class MicroStepEnded:
    """A micro-batch was added to the gradients, and is not the last of its window.

    Args:
        step: optimizer steps done so far.
        loss: its share of the window's loss, on the device.
    """

    step: int
    loss: object


@define(eq=False)
class StepEnded:
    """An optimizer step was done.

    Args:
        step: optimizer steps done so far.
        losses: the share of each micro-batch in the window's loss, which is their sum. Like `gradient_norm`, they stay
            on the device until they are read.
        gradient_norm: the norm before clipping, on the device.
        taken: False if loss scaling skipped the update.
    """

    step: int
    losses: Sequence[object]
    gradient_norm: object
    taken: bool


@frozen
class Logged(Event):
    """Values were logged. `values` is the mapping that was appended to the run's history.

    Args:
        values: the mapping that was appended to the run's history.
    """

    values: Mapping[str, float]


@frozen
class IrregularWindow(Event):
    """A window's loss or gradient norm was not finite, or its loss was a spike.

    Args:
        step: that of the window.
        kind: "loss", "gradient norm" or "spike".
        value: the loss or the norm.
        reaction: "warn", "stop", "skip" or "rollback".
        epoch: the epoch of the window, from 0.
        position: where the window starts, in samples of the epoch over all processes.
        samples: how many samples the window has, over all processes.
        indices: those of the samples in the dataset, if they are known.
        first: no earlier window of the run was of this kind.
        median: of recent losses, for a spike.
        back_to: the step whose state the run returns to, if it leaves the window out.
    """

    kind: str
    value: float
    reaction: str
    epoch: int
    position: int
    samples: int
    indices: Sequence[int] | None = None
    first: bool = False
    median: float | None = None
    back_to: int | None = None

    @property
    def described(self) -> str:
        """The start of a sentence about the window."""
        what = f"gradient norm is {self.value}" if self.kind == "gradient norm" else f"loss is {self.value:.6g}"
        if self.median is not None:
            what += f", against a median of {self.median:.6g}"
        last = self.position + self.samples - 1
        return f"At step {self.step} the {what} (samples {self.position} to {last} of epoch {self.epoch})"


@define(eq=False)
class WindowLeftOut:
    """A window of micro-batches was read and not trained on.

    Args:
        step: optimizer steps done.
        micro_batches: how many the window had.
    """

    step: int
    micro_batches: int


@frozen
class EvaluationBegan(Event):
    """An evaluation starts."""


@frozen
class PredictionStepEnded(Event):
    """A held-out batch was predicted. `batch` counts from 1.

    Args:
        batch: the number of the batch, from 1.
    """

    batch: int


@frozen
class Evaluated(Event):
    """An evaluation is complete.

    Args:
        metrics: the metrics by name.
    """

    metrics: Mapping[str, float]


@frozen
class EvaluationInterrupted(Event):
    """A stop request interrupted an evaluation, which starts over on resume."""


@frozen
class Saved(Event):
    """The run's state was captured for the checkpoint `name`.

    Args:
        name: the name of the checkpoint.
    """

    name: str


@frozen
class CheckpointPublished(Event):
    """The checkpoint `name` is complete and durable.

    Args:
        name: the name of the checkpoint.
    """

    name: str


@frozen
class SaveFailed(Event):
    """A checkpoint could not be written. Earlier checkpoints are intact, and the run continues.

    Args:
        error: what failed.
    """

    error: Exception


@frozen
class SaveWaits(Event):
    """The storage is full. Training waits until the checkpoint in flight is written or has failed for good.

    Args:
        error: what failed.
    """

    error: Exception


@frozen
class SaveSkipped(Event):
    """The checkpoint `name` is skipped, because the previous one is still being written.

    Args:
        name: the name of the checkpoint.
    """

    name: str


@frozen
class Paused(Event):
    """The run is paused at a step boundary. Until it is resumed, every `next` returns this event."""


@frozen
class EpochEnded(Event):
    """An epoch is complete or was cut short. `epoch` counts from 0.

    Args:
        epoch: the number of the epoch, from 0.
    """

    epoch: int


@frozen
class TrainEnded(Event):
    """The run finished.

    Args:
        metrics: the metrics by name.
        stopped: whether a request ended it before its last step.
        reasons: one for each request.
    """

    metrics: Mapping[str, float]
    stopped: bool
    reasons: tuple[str, ...] = ()


AnyEvent = Event | StepBegan | MicroStepEnded | StepEnded | WindowLeftOut
