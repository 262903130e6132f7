"""Dispatches the events of the loop to callbacks and observers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hexloop.app.callbacks.base import TrainerControl
from hexloop.app.callbacks.handler import CallbackHandler, Listener
from hexloop.app.callbacks.trainer_state import TrainerState
from hexloop.domain.events import (
    AnyEvent,
    EpochBegan,
    EpochEnded,
    Evaluated,
    MicroStepEnded,
    PredictionStepEnded,
    Saved,
    StepBegan,
    StepEnded,
    TrainBegan,
    TrainEnded,
)

CALLBACK_EVENTS: Mapping[type[AnyEvent], str] = {
    TrainBegan: "on_train_begin",
    EpochBegan: "on_epoch_begin",
    StepBegan: "on_step_begin",
    MicroStepEnded: "on_substep_end",
    StepEnded: "on_step_end",
    EpochEnded: "on_epoch_end",
    PredictionStepEnded: "on_prediction_step",
    Evaluated: "on_evaluate",
    Saved: "on_save",
    TrainEnded: "on_train_end",
}
"""The callback events of the loop. The others (on_log, on_optimizer_step, ...) are called elsewhere."""


class EventDispatcher:
    """Calls the callbacks of a run. An event that no callback overrides costs one dictionary lookup.

    args, state, control: the arguments of callbacks; they may be replaced between two events.
    """

    def __init__(self, handler: CallbackHandler, args: Any, state: TrainerState, control: TrainerControl) -> None:
        self.handler = handler
        self.args = args
        self.state = state
        self.control = control
        self._reactions: dict[type[AnyEvent], Callable[[Any], None]] = {}
        self._observers: tuple[Mapping[type[AnyEvent], Callable[[Any], None]], ...] = ()
        self.refresh()
        handler.inform(self)

    def dispatch(self, event: AnyEvent) -> None:
        """Call observers and callbacks for an event of the loop."""
        reaction = self._reactions.get(type(event))
        if reaction is not None:
            reaction(event)

    def call(self, event: str, **extras: Any) -> None:
        """Call the callbacks for an event by its callback name."""
        if listeners := self.handler.overriding(event):
            self.handler.call(listeners, self.args, self.state, self.control, **extras)

    def observe(self, *observers: Mapping[type[AnyEvent], Callable[[Any], None]]) -> None:
        """Call these observers, instead of earlier ones, before the callbacks at events of their type."""
        self._observers = observers
        self.refresh()

    def refresh(self) -> None:
        """Update who listens; the handler calls this when its callbacks change."""
        listening = {kind: self.handler.overriding(name) for kind, name in CALLBACK_EVENTS.items()}
        self._reactions = {kind: self._calling(listeners) for kind, listeners in listening.items() if listeners}
        self._reactions |= {TrainBegan: self._on_train_began, Evaluated: self._on_evaluated}
        for kind, observer in (item for observers in self._observers for item in observers.items()):
            self._reactions[kind] = _both(observer, self._reactions.get(kind))

    def _calling(self, listeners: tuple[Listener, ...]) -> Callable[[Any], None]:
        return lambda _event: self.handler.call(listeners, self.args, self.state, self.control)

    def _on_train_began(self, event: TrainBegan) -> None:
        """Call the callbacks, including methods that were set on a callback since it was added."""
        self.handler.refresh()
        self.call("on_train_begin")

    def _on_evaluated(self, event: Evaluated) -> None:
        """Clear the due evaluation before the callbacks see the control."""
        self.control.should_evaluate = False
        self.call("on_evaluate", metrics=event.metrics)


def _both(first: Callable[[Any], None], then: Callable[[Any], None] | None) -> Callable[[Any], None]:
    if then is None:
        return first

    def react(event: Any) -> None:
        first(event)
        then(event)

    return react
