"""A live run: what belongs to it, the Trainer's side of it, what it reports to, and how it ended."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from attrs import define, frozen

from hexloop.app.arguments import TrainingArguments
from hexloop.app.callbacks import CallbackHandler
from hexloop.app.callbacks.progress import ProgressDisplay
from hexloop.app.run.checkpoints import RunCheckpoints
from hexloop.app.run.determinism import GlobalState
from hexloop.app.run.memory_metrics import MemoryStages
from hexloop.app.wiring.learner import RunCounters, RunLearner
from hexloop.app.wiring.parts import TrainerParts
from hexloop.domain.checkpoints.manifest import checkpoint_name
from hexloop.domain.evaluation import speed_metrics
from hexloop.domain.events import AnyEvent, CheckpointPublished, SaveFailed, TrainEnded
from hexloop.domain.fail_safe import LoggerGroup
from hexloop.domain.run import Run
from hexloop.ports.logger import RunInformation

PAUSE_INTERVAL = 1.0
"""Seconds after which a paused process communicates again, if there are others."""


@define
class Session:
    """A live run and what belongs to it.

    parts: the Trainer's parts, with the prepared model. loggers: None until they are started, and after the run.
    """

    parts: TrainerParts
    run: Run[Any, Any]
    global_state: GlobalState
    learner: RunLearner
    checkpoints: RunCheckpoints
    counters: RunCounters
    loggers: LoggerGroup | None = None

    def wait_while_paused(self) -> None:
        """Wait until the run is no longer paused.

        Return earlier in a run of several processes: a process that does not communicate for `ddp_timeout` seconds
        counts as lost.
        """
        parts = self.parts
        alone = parts.adapters.collectives.world_size == 1
        parts.requests.wait_while_paused(None if alone else min(PAUSE_INTERVAL, parts.args.ddp_timeout / 4))

    def token_speed(self, tokens: int) -> dict[str, float]:
        """Return the tokens per second since the start, if there are `tokens` by now."""
        start = self.run.start
        return speed_metrics("train", self.run.clock.monotonic() - start.at, tokens=tokens - start.tokens)

    def start_reporting(self) -> tuple[Callable[[], None], ...]:
        """Start the loggers and the sources of interrupts; return the functions that stop them."""
        parts, run = self.parts, self.run
        args, adapters = parts.args, parts.adapters
        loggers = LoggerGroup(adapters.loggers, lambda message: warnings.warn(message, stacklevel=2))
        name = args.run_name or str(args.output_dir)
        configuration, folder = args.to_sanitized_dict(), str(args.output_dir)
        adapters.interrupts.start(partial(parts.requests.request_stop, save=True))  # may raise, so before the loggers
        loggers.start(RunInformation(name, configuration, folder, run.plan.total_steps, run.state.step))
        self.loggers = loggers

        def finish() -> None:
            self.loggers = None
            loggers.finish()

        return adapters.interrupts.stop, finish, partial(_close_bars, parts.callback_handler, ProgressDisplay)


def _close_bars(handler: CallbackHandler, kind: type[Any]) -> None:
    """Close progress bars: a run that raises does not reach the event at which a bar closes itself.

    Takes all that it needs as parameters: when a program exits while a run is open, module globals are already gone.
    """
    for callback in handler.callbacks:
        if isinstance(callback, kind):
            callback.close()


def set_log_level(args: TrainingArguments) -> None:
    """Set the level that the arguments define for this process on the logger `hexloop`, the parent of all others.

    `passive` leaves the level as the application set it. If the logger has no handler, its messages go to standard
    error, as in transformers.
    """
    chosen = args.log_level if args.should_log else args.log_level_replica
    if chosen == "passive":
        return
    logger = logging.getLogger("hexloop")
    logger.setLevel(args.get_process_log_level())
    if args.log_level != "passive" and not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("[%(levelname)s] %(name)s: %(message)s"))
        logger.addHandler(handler)


@frozen
class RunHost:
    """The Trainer's side of a run: what the run calls while it is constructed, and where it leaves its results.

    parts: collects the Trainer's parts as they are now. memory: measures the stages of the Trainer.
    renew_model: rebuilds a model that was trained, if there is a `model_init`. prepare: wraps the model and makes the
    optimizer and the schedule for a number of steps; returns the wrapped model. forget_run: drops the optimizer, the
    schedule and the wrapped model of the last run. attach: sets the live session, None at its end.
    """

    parts: Callable[[], TrainerParts]
    memory: MemoryStages
    renew_model: Callable[[], None]
    prepare: Callable[[Any, int], Any]
    forget_run: Callable[[], None]
    attach: Callable[[Session | None], None]
    set_outcome: Callable[[RunOutcome | None], None]
    set_train_batch_size: Callable[[int], None]


@frozen
class RunOutcome:
    """How a run ended.

    step: optimizer steps done. stopped: whether a request ended it before its last step; `reasons`: of all requests.
    checkpoint: the one that holds the last step, None if there is none. save_failed: whether the newest save failed, so
    that the steps since the last checkpoint are lost.
    """

    step: int
    stopped: bool
    reasons: tuple[str, ...]
    checkpoint: str | None
    save_failed: bool = False

    @property
    def exit_code(self) -> int:
        """The exit code for a script: 0 done, 3 stopped and saved, 1 not saved although it should be."""
        if not self.stopped:
            return 1 if self.save_failed else 0
        return 3 if self.checkpoint is not None else 1


def watch_outcome(
    set_outcome: Callable[[RunOutcome | None], None], note_finished: Callable[[], None]
) -> dict[type[AnyEvent], Callable[[Any], None]]:
    """Return the event handlers that find out how the run ended; `set_outcome` gets None until then.

    note_finished: called if the run reached its end and its last save succeeded.
    """
    published: set[str] = set()
    failed: set[int] = set()
    set_outcome(None)

    def on_published(event: CheckpointPublished) -> None:
        published.add(event.name)
        failed.clear()

    def on_end(event: TrainEnded) -> None:
        last = checkpoint_name(event.step)
        checkpoint = last if last in published else None
        set_outcome(RunOutcome(event.step, event.stopped, event.reasons, checkpoint, bool(failed)))
        if not event.stopped and published and not failed:
            note_finished()

    return {CheckpointPublished: on_published, SaveFailed: lambda event: failed.add(event.step), TrainEnded: on_end}
