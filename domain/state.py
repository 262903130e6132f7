"""The state of a run: one value, stored in checkpoints as JSON and loaded through migrations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated, Any

from attrs import Factory, define, frozen

from hexloop.domain.errors import CheckpointError, NewerSchemaError
from hexloop.domain.ranges import LONGEST_NAME, BatchSize, Count, Finite, FolderName, Holding, Rate, Seed, TrackerName

SCHEMA_VERSION = 1

MOST_TRACKERS = 100

LONGEST_TIME = 1e12
"""Seconds that no run takes."""

READINGS = ("time_spent",)
"""The fields of the run state that are readings of the clock."""


def _are_few(trackers: Mapping[str, str]) -> bool:
    return len(trackers) <= MOST_TRACKERS and all(len(name) <= LONGEST_NAME for name in trackers)


def _is_time(seconds: float) -> bool:
    return 0 <= seconds < LONGEST_TIME


Seconds = Annotated[float, Holding("a time in seconds", _is_time)]


class Cause(StrEnum):
    """What the time of a run goes into.

    STEP: optimizer steps; all others are lost to them. DATA: waiting for batches. SAVING: checkpoints and copies in
    memory. EVALUATING, COMPILING: evaluations, and compiling programs. STARTING: the way to the first step. RESTARTING:
    what was done after the checkpoint that the run resumed from, or the copy that it returned to, and the time until
    its next step. PAUSED: by a request. OTHER: callbacks, logs, and the program that drives the run.
    """

    STEP = "step"
    DATA = "data"
    SAVING = "saving"
    EVALUATING = "evaluating"
    COMPILING = "compiling"
    STARTING = "starting"
    RESTARTING = "restarting"
    PAUSED = "paused"
    OTHER = "other"

    @property
    def logged_as(self) -> str:
        """The name under which its share is logged."""
        return "goodput" if self is Cause.STEP else f"badput_{self.value}"


def _have_causes(times: Mapping[str, float]) -> bool:
    return times.keys() <= {*Cause}


@frozen
class TimeSpent:
    """What the wall time of a run went into, up to a moment.

    Args:
        seconds: by the names of causes.
        until: the moment, in seconds since the epoch.
    """

    seconds: Annotated[dict[str, Seconds], Holding("times by cause", _have_causes)]
    until: Finite


@frozen
class SkippedWindow:
    """A window of micro-batches that the run leaves out, because its loss or gradient was not usable.

    Args:
        epoch: the epoch that it is in, from 0.
        position: the samples of the epoch before it.
        samples: the samples that it has.
        step: optimizer steps done before it.
        reason: why it is left out.
    """

    epoch: Count
    position: Count
    samples: Count
    step: Count
    reason: str = ""


MOST_JOINED = 10_000
"""Parameter groups that may join an optimizer during a run."""


@frozen
class JoinedGroup:
    """A parameter group that joined the optimizer during the run.

    Args:
        params: the names of its parameters.
        learning_rate: its peak rate.
        options: the other options of the group, as plain values.
    """

    params: list[str]
    learning_rate: Rate
    options: dict[str, Any] = Factory(dict)


JoinedGroups = Annotated[list[JoinedGroup], Holding("a list of groups", lambda groups: len(groups) <= MOST_JOINED)]


@define
class RunState:
    """The state of a run between two steps.

    Args:
        run: the name of the run, kept over resumes; it identifies the run's checkpoints.
        seed: determines, with `data_seed` and `global_batch_size`, the order of samples.
        data_seed: the seed of the order of samples.
        global_batch_size: the samples of a micro-batch of all processes together.
        step: optimizer steps done.
        updates: steps that changed the weights (loss scaling may skip some).
        epoch: the current epoch, from 0.
        position: samples of the current epoch that are done.
        batches: micro-batches of the current epoch that are done.
        samples: samples trained on since the start.
        tokens: tokens trained on since the start.
        operations: floating-point operations since the start.
        logged_step: the step of the last log.
        loss_total: the sum of the losses logged until `logged_step`.
        finite_loss: the sum of the finite losses since the last log, of the steps that were read from the device.
        finite_steps: how many of these steps have a finite loss.
        nonfinite_steps: how many of these steps have another loss.
        nonfinite_losses: steps of the whole run with a loss that is not finite.
        nonfinite_norms: steps of the whole run with a gradient norm that is not finite.
        spikes: steps of the whole run with a loss that is a spike.
        recent_losses: the last finite losses, if spikes are looked for.
        skipped: the windows that are left out.
        learning_rate: the rate of the first parameter group in the last step, for a log right after a resume.
        learning_rates: the rates of the groups that are logged by name in the last step.
        gradient_norm: the gradient norm of the last step.
        best_metric: the best evaluation so far.
        best_step: the step of the best evaluation.
        best_checkpoint: the checkpoint with the weights of the best evaluation.
        parent_checkpoint: the previous checkpoint.
        pass_complete: the current epoch has no further step, because the data or a callback ended it.
        epoch_ended: the end of the current epoch was announced; some of the actions due at it may still be missing.
        due: the actions that are still due at this boundary, in order ("log", "evaluate", "save"); the first may have
            been interrupted.
        history: everything that was logged.
        callbacks: the states of stateful callbacks.
        trackers: what identifies the run for each logger that said so, by the logger's name.
        time_spent: what the time of the run went into, if that is measured.
        joined_groups: the parameter groups that joined the optimizer since the start, in order.
        trainable: whether each parameter is trained for which this changed since the start, by name.
    """

    run: str = ""
    seed: Seed = 42
    data_seed: Seed = 42
    global_batch_size: BatchSize = 1
    step: Count = 0
    updates: Count = 0
    epoch: Count = 0
    position: Count = 0
    batches: Count = 0
    samples: Count = 0
    tokens: Count = 0
    operations: float = 0.0
    logged_step: Count = 0
    loss_total: float = 0.0
    finite_loss: float = 0.0
    finite_steps: Count = 0
    nonfinite_steps: Count = 0
    nonfinite_losses: Count = 0
    nonfinite_norms: Count = 0
    spikes: Count = 0
    recent_losses: list[float] = Factory(list)
    skipped: list[SkippedWindow] = Factory(list)
    learning_rate: float | None = None
    learning_rates: dict[str, float] = Factory(dict)
    gradient_norm: float | None = None
    best_metric: float | None = None
    best_step: Count | None = None
    best_checkpoint: FolderName | None = None
    parent_checkpoint: FolderName | None = None
    pass_complete: bool = False
    epoch_ended: bool = False
    due: list[str] = Factory(list)
    history: list[dict[str, Any]] = Factory(list)
    callbacks: dict[str, Any] = Factory(dict)
    trackers: Annotated[dict[str, TrackerName], Holding("a few names", _are_few)] = Factory(dict)
    time_spent: TimeSpent | None = None
    joined_groups: JoinedGroups = Factory(list)
    trainable: dict[str, bool] = Factory(dict)

    def begin_next_epoch(self) -> None:
        """Move to the first sample of the next epoch."""
        self.epoch += 1
        self.position = self.batches = 0
        self.pass_complete = self.epoch_ended = False


Migration = Callable[[dict[str, Any]], dict[str, Any]]

MIGRATIONS: dict[int, Migration] = {}
"""For each earlier schema version, the function that converts its dictionary to the next version."""


def migrate(
    document: Mapping[str, Any], migrations: Mapping[int, Migration] = MIGRATIONS, present: int = SCHEMA_VERSION
) -> dict[str, Any]:
    """Return the dictionary of a saved state, converted to the schema version `present`.

    Args:
        document: the saved state.
        migrations: from a schema version to what converts a state of it to the next one.
        present: the version that is wanted.

    Raises:
        NewerSchemaError: if a newer hexloop wrote it.
        CheckpointError: if there is no migration for its version.
    """
    migrated = dict(document)
    while (version := migrated.get("schema_version")) != present:
        if not isinstance(version, int) or version not in migrations:
            kind = NewerSchemaError if isinstance(version, int) and version > present else CheckpointError
            raise kind(
                f"The saved state has schema version {version!r}, and this hexloop reads versions up to {present}. "
                "Resume with the version of hexloop that wrote it, or a newer one."
            )
        migrated = migrations[version](migrated)
    return migrated
