"""What happens between steps where a subclass has methods of its own for it."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from hexloop.domain.events import AnyEvent, EpochEnded, StepEnded
from hexloop.domain.loop import log_evaluate_save

if TYPE_CHECKING:
    from hexloop.app.trainer import Trainer
    from hexloop.app.training.session import Session

Dispatch = Callable[[AnyEvent], None]


def asking_at_boundaries(trainer: Trainer, session: Session, dispatch: Dispatch) -> Dispatch:
    """`dispatch`, after which an overridden `_maybe_log_save_evaluate` is asked at each end of a step or an epoch."""
    began, last = time.time(), StepEnded(0, (), None, True)
    ask = trainer._maybe_log_save_evaluate
    parameters = inspect.signature(ask).parameters.values()
    open_ended = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    names = {each.name for each in parameters}

    def dispatch_and_ask(event: AnyEvent) -> None:
        nonlocal last
        dispatch(event)
        if not isinstance(event, StepEnded | EpochEnded):
            return
        last = event if isinstance(event, StepEnded) else last
        state = session.run.state
        values = {
            "tr_loss": sum(last.losses),  # type: ignore[arg-type]
            "grad_norm": last.gradient_norm,
            "model": trainer.model_wrapped,
            "trial": None,
            "epoch": trainer.state.epoch,
            "ignore_keys_for_eval": trainer.ignore_keys_for_eval,
            "start_time": began,
            "learning_rate": state.learning_rate,
        }
        if open_ended:
            ask(*values.values())
        else:
            ask(**{name: value for name, value in values.items() if name in names})
        trainer.control.set_due_actions([])

    return dispatch_and_ask


def do_what_is_due(trainer: Trainer, session: Session) -> None:
    """Log, evaluate and save, telling the callbacks."""
    for event in log_evaluate_save(session.run):
        trainer._dispatcher.dispatch(event)


def take_checkpoint(session: Session) -> None:
    """Take the checkpoint that is due."""
    session.checkpoints.take(session.run.state)


def load_best(session: Session) -> None:
    """Put the weights of the best checkpoint in force."""
    session.checkpoints.load_best_now(session.run.state)
