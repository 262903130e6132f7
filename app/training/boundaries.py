"""What happens between steps where a subclass has methods of its own for it."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable

from hexloop.app.wiring.parts import TrainerParts
from hexloop.domain.events import AnyEvent, EpochEnded, StepEnded
from hexloop.domain.state import RunState

Dispatch = Callable[[AnyEvent], None]


def asking_at_boundaries(parts: TrainerParts, state: RunState, dispatch: Dispatch) -> Dispatch:
    """Return a `dispatch` that also calls an overridden `_maybe_log_save_evaluate` after every step and epoch."""
    began, last = time.time(), StepEnded(0, (), None, True)
    ask = parts.hooks.maybe_log_save_evaluate.method
    parameters = inspect.signature(ask).parameters.values()
    open_ended = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    names = {each.name for each in parameters}

    def dispatch_and_ask(event: AnyEvent) -> None:
        nonlocal last
        dispatch(event)
        if not isinstance(event, StepEnded | EpochEnded):
            return
        last = event if isinstance(event, StepEnded) else last
        values = {
            "tr_loss": sum(last.losses),  # type: ignore[arg-type]
            "grad_norm": last.gradient_norm,
            "model": parts.model_wrapped,
            "trial": None,
            "epoch": parts.state.epoch,
            "ignore_keys_for_eval": parts.ignore_keys_for_eval,
            "start_time": began,
            "learning_rate": state.learning_rate,
        }
        if open_ended:
            ask(*values.values())
        else:
            ask(**{name: value for name, value in values.items() if name in names})
        parts.control.set_due_actions([])

    return dispatch_and_ask
