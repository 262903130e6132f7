"""How a Trainer's run ended, for whoever decides whether to start it again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from attrs import define, frozen

from hexloop.adapters.evaluator.torch.evaluator import Modes
from hexloop.app.arguments import TrainingArguments
from hexloop.app.run.checkpoints import RunCheckpoints
from hexloop.app.run.determinism import Control as LiveControl
from hexloop.app.run.memory_metrics import MemoryStages
from hexloop.app.wiring.learner import RunLearner
from hexloop.app.wiring.parts import TrainerParts
from hexloop.domain.checkpoints.names import checkpoint_name
from hexloop.domain.events import AnyEvent, CheckpointPublished, SaveFailed, TrainEnded
from hexloop.domain.fail_safe import LoggerGroup
from hexloop.domain.requests import Requests
from hexloop.domain.run import Run

FAILED = 1
"""The exit code of a program whose run's last steps are not saved, though it was stopped, or a save of them failed."""

STOPPED = 3
"""The exit code of one whose run was stopped before its end, and is saved: start it again to go on."""


@frozen
class Outcome:
    """How a run ended.

    step: optimizer steps done. stopped: whether it was asked to end before its last step; `reasons`: by each who asked.
    checkpoint: the one that holds the last step, None where there is none. save_failed: whether the newest save did,
    so that steps are lost which a checkpoint was to hold.
    """

    step: int
    stopped: bool
    reasons: tuple[str, ...]
    checkpoint: str | None
    save_failed: bool = False

    @property
    def exit_code(self) -> int:
        """What a script may exit with: 0 done, 3 stopped and saved, 1 not saved though it was to be."""
        if not self.stopped:
            return FAILED if self.save_failed else 0
        return STOPPED if self.checkpoint is not None else FAILED


def watch_outcome(
    set_outcome: Callable[[Outcome | None], None], note_finished: Callable[[], None]
) -> dict[type[AnyEvent], Callable[[Any], None]]:
    """Return the event handlers that find out how the run ended; `set_outcome` gets None until then.

    note_finished: called if the run reached its end and its last save succeeded.
    """
    published: set[str] = set()
    failed: set[int] = set()
    set_outcome(None)

    def saved(event: CheckpointPublished) -> None:
        published.add(event.name)
        failed.clear()

    def ended(event: TrainEnded) -> None:
        last = checkpoint_name(event.step)
        checkpoint = last if last in published else None
        set_outcome(Outcome(event.step, event.stopped, event.reasons, checkpoint, bool(failed)))
        if not event.stopped and published and not failed:
            note_finished()

    return {CheckpointPublished: saved, SaveFailed: lambda event: failed.add(event.step), TrainEnded: ended}


ROUND = 1.0
"""Seconds after which a process that stands still tells the others so again."""


def wait_while_paused(requests: Requests, args: TrainingArguments, world_size: int) -> None:
    """Wait until nobody wants this run to stand still, or for a while where other processes wait to hear of it.

    They would take a process that says nothing for `ddp_timeout` seconds for lost.
    """
    alone = world_size == 1
    requests.wait_while_paused(None if alone else min(ROUND, args.ddp_timeout / 4))


class Counter(Protocol):
    """Counts over micro-batches; counts may stay on the device until they are needed."""

    def settle(self) -> None:
        """Add the pending counts to the run's state."""
        ...


@define
class Session:
    """A run, and what the Trainer's hooks need of it while it lasts."""

    parts: TrainerParts
    run: Run[Any, Any]
    control: LiveControl
    learner: RunLearner
    checkpoints: RunCheckpoints
    modes: Modes
    counters: Sequence[Counter] = ()
    loggers: LoggerGroup | None = None

    def settle_counters(self) -> None:
        """Add the counts that are still on the device to the state."""
        settle(self.counters)

    def wait_while_paused(self) -> None:
        """Wait until the run is no longer paused; return earlier if other processes expect to hear from this one."""
        parts = self.parts
        wait_while_paused(parts.requests, parts.args, parts.adapters.collectives.world_size)


@frozen
class RunHost:
    """The Trainer's side of a run: what the run calls while it is constructed, and where it leaves its results.

    parts: collects the Trainer's parts as they stand. memory: measures the stages of the Trainer.
    renew_model: rebuilds a model that was trained, if there is a `model_init`. prepare: wraps the model and makes the
    optimizer and the schedule for a number of steps; returns the wrapped model. forget_run: drops the optimizer, the
    schedule and the wrapped model of the last run. attach: sets the session that is live, None at its end.
    """

    parts: Callable[[], TrainerParts]
    memory: MemoryStages
    renew_model: Callable[[], None]
    prepare: Callable[[Any, int], Any]
    forget_run: Callable[[], None]
    attach: Callable[[Session | None], None]
    set_outcome: Callable[[Outcome | None], None]
    set_train_batch_size: Callable[[int], None]


def settle(counters: Sequence[Counter]) -> None:
    """Add the counts that are still on the device to the state."""
    for counter in counters:
        counter.settle()
