"""Reports: what a run logs to its history, its callbacks and its loggers, and the level of hexloop's own messages."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from hexloop.app.arguments import TrainingArguments
from hexloop.app.callbacks import CallbackHandler, EventDispatcher, TrainerControl, TrainerState
from hexloop.app.callbacks.progress import ProgressDisplay
from hexloop.app.run.session import Session
from hexloop.domain.evaluation import speed_metrics
from hexloop.domain.fail_safe import LoggerGroup
from hexloop.ports.logger import Record, RunInformation


def log(
    logs: dict[str, float],
    dispatcher: EventDispatcher,
    state: TrainerState,
    control: TrainerControl,
    session: Session | None,
    with_tokens: bool,
) -> None:
    """Add the epoch to `logs`, with `with_tokens` the tokens seen; append them to the history and report them."""
    logs["epoch"] = state.epoch
    if with_tokens:
        _add_tokens(logs, state, session)
    state.log_history.append({**logs, "step": state.global_step})
    control.should_log = False
    dispatcher.call("on_log", logs=logs)
    if session is not None and session.loggers is not None:
        session.loggers.write(Record(state.global_step, state.epoch, dict(logs)))


def _add_tokens(logs: dict[str, float], state: TrainerState, session: Session | None) -> None:
    """Add the tokens seen so far; to a log of training also the tokens per second."""
    if session is not None:
        session.counters.settle()
    logs["num_input_tokens_seen"] = tokens = state.num_input_tokens_seen
    if session is not None and "loss" in logs:
        start = session.run.start
        seconds = session.run.clock.monotonic() - start.at
        logs |= speed_metrics("train", seconds, tokens=tokens - start.tokens)


def start_reporting(session: Session) -> tuple[Callable[[], None], ...]:
    """Start the loggers and the sources of interrupts; return the functions that stop them."""
    parts, run = session.parts, session.run
    args, adapters = parts.args, parts.adapters
    loggers = LoggerGroup(adapters.loggers, lambda message: warnings.warn(message, stacklevel=2))
    name = args.run_name or str(args.output_dir)
    configuration, folder = args.to_sanitized_dict(), str(args.output_dir)

    def save_and_stop(reason: str) -> None:
        parts.requests.request_stop(reason, save=True)

    adapters.interrupts.start(save_and_stop)  # may raise, and then no logger has been started yet
    loggers.start(RunInformation(name, configuration, folder, run.plan.total_steps, run.state.step))
    session.loggers = loggers

    def finish() -> None:
        session.loggers = None
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
