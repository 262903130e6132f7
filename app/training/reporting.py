"""How the numbers of a run reach its history, its callbacks and its loggers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from hexloop.app.callbacks.display import ProgressDisplay
from hexloop.domain.evaluation import speed_metrics
from hexloop.domain.fail_safe import LoggerGroup
from hexloop.domain.run import Run
from hexloop.ports.logger import Record, RunInformation

if TYPE_CHECKING:
    from hexloop.app.trainer import Trainer


def log(trainer: Trainer, logs: dict[str, float]) -> None:
    """Complete `logs` in place with the epoch, and with the tokens seen where they are counted; enter and show them."""
    state = trainer.state
    logs["epoch"] = state.epoch
    if trainer.args.include_num_input_tokens_seen != "no":
        _add_tokens(trainer, logs)
    state.log_history.append({**logs, "step": state.global_step})
    trainer.control.should_log = False
    trainer._dispatcher.call("on_log", logs=logs)
    if trainer._watchers is not None:
        trainer._watchers.write(Record(state.global_step, state.epoch, dict(logs)))


def _add_tokens(trainer: Trainer, logs: dict[str, float]) -> None:
    """The tokens seen so far; in a log of training also how many a second."""
    session = trainer._session
    if session is not None:
        session.settle_counters()
    logs["num_input_tokens_seen"] = tokens = trainer.state.num_input_tokens_seen
    if session is not None and "loss" in logs:
        began = session.run.start
        seconds = trainer.adapters.clock.monotonic() - began.at
        logs |= speed_metrics("train", seconds, tokens=tokens - began.tokens)


def watch(trainer: Trainer, run: Run[Any, Any]) -> tuple[Callable[[], None], ...]:
    """Tell the loggers and the sources of interrupts that a run begins; gives what ends that."""
    args, adapters = trainer.args, trainer.adapters
    watchers = LoggerGroup(adapters.loggers, lambda message: warnings.warn(message, stacklevel=2))
    name = args.run_name or str(args.output_dir)
    configuration, folder = args.to_sanitized_dict(), str(args.output_dir)

    def save_and_stop(reason: str) -> None:
        trainer._requests.request_stop(reason, save=True)

    adapters.interrupts.start(save_and_stop)  # may refuse, and then nobody was told of the run yet
    watchers.start(RunInformation(name, configuration, folder, run.plan.total_steps, run.state.step))
    trainer._watchers = watchers

    def finish() -> None:
        trainer._watchers = None
        watchers.finish()

    return adapters.interrupts.stop, finish, partial(_close_bars, trainer, ProgressDisplay)


def _close_bars(trainer: Trainer, kind: type[Any]) -> None:
    """A run that ends in an error does not come to the event at which a progress bar closes itself.

    What it needs it is given: where a program ends with a run that nobody closed, the names of modules are gone by now.
    """
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, kind):
            callback.close()
