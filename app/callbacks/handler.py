"""The callbacks of a Trainer, in order, and how they are called at the events of the loop."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, wraps
from typing import Any, TypeVar
from weakref import WeakSet, ref

from attrs import define

from hexloop.app.callbacks.base import EVENTS, TrainerCallback, TrainerControl, is_passive
from hexloop.app.callbacks.flow import FLOW_EVENTS, is_default_flow
from hexloop.app.callbacks.trackers import CALLBACKS, TrackerCallback
from hexloop.app.callbacks.trainer_state import TrainerState
from hexloop.app.notices import notices_in_force
from hexloop.domain import events
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import Problem, shown

Item = TypeVar("Item")


class WatchedList(list[Item]):
    """A list that calls `changed` after each method that may change it."""

    def __init__(self, changed: Callable[[], None]) -> None:
        super().__init__()
        self._changed = changed


def _observed(change: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(change)
    def change_and_tell(self: WatchedList[Any], *arguments: Any, **named: Any) -> Any:
        result = change(self, *arguments, **named)
        self._changed()
        return result

    return change_and_tell


_CHANGES = ("append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort")
for _name in (*_CHANGES, "__delitem__", "__iadd__", "__imul__", "__setitem__"):
    setattr(WatchedList, _name, _observed(getattr(list, _name)))


Listener = Callable[..., object]

KEYWORDS = ("model", "processing_class", "optimizer", "lr_scheduler", "train_dataloader", "eval_dataloader")
"""The attributes of a handler that every event passes to the callbacks as keywords."""


def _event(name: str, *cleared: str, positional: tuple[str, ...] = ()) -> Callable[..., TrainerControl]:
    """Return the method that announces the event `name` as in transformers, where it also clears switches."""

    def announce(
        self: CallbackHandler, args: Any, state: TrainerState, control: TrainerControl, *values: Any, **extras: Any
    ) -> TrainerControl:
        for switch in cleared:
            setattr(control, switch, False)
        return self.call_event(name, args, state, control, **dict(zip(positional, values, strict=False)), **extras)

    announce.__name__ = name
    announce.__doc__ = f"Announce {name} to every callback that overrides it, in order."
    return announce


class CallbackHandler:
    """Calls callbacks in the order in which they were added, and only those that override the event.

    The keywords of every event are model, processing_class, optimizer, lr_scheduler, train_dataloader and
    eval_dataloader.

    Args:
        callbacks: a list that may be changed in any way, at any time. Each is a TrainerCallback, of hexloop or of
            transformers, or any object with some of its methods; a class is instantiated.
        model: the keyword model of every event.
        processing_class: the keyword processing_class.
        optimizer: the keyword optimizer.
        lr_scheduler: the keyword lr_scheduler.
    """

    def __init__(
        self,
        callbacks: Iterable[object],
        model: object = None,
        processing_class: object = None,
        optimizer: object = None,
        lr_scheduler: object = None,
    ) -> None:
        self.model = model
        self.processing_class = processing_class
        self.optimizer = optimizer
        self.lr_scheduler = lr_scheduler
        self.train_dataloader: object = None
        self.eval_dataloader: object = None
        self._notices = notices_in_force()
        self._dispatchers: WeakSet[EventDispatcher] = WeakSet()
        self._overriding: dict[str, tuple[Listener, ...]] = {}
        self._callbacks = _watched(self)
        for callback in callbacks:
            self.add_callback(callback)
        self.refresh()
        if not any("DefaultFlowCallback" in _names_of(type(each)) for each in self._callbacks):  # of either library
            self._notices.warn(
                "no default flow",
                "The callbacks have no DefaultFlowCallback, so the arguments do not decide when to log, evaluate and "
                f"save; add one with add_callback(DefaultFlowCallback). The callbacks are:\n{self.callback_list}",
                stacklevel=3,
            )

    @property
    def callbacks(self) -> list[object]:
        """The callbacks, in the order in which they are called."""
        return self._callbacks

    @callbacks.setter
    def callbacks(self, callbacks: Iterable[object]) -> None:
        self._callbacks[:] = callbacks

    @property
    def callback_list(self) -> str:
        """The class names of the callbacks, one per line."""
        return "\n".join(type(callback).__name__ for callback in self._callbacks)

    @property
    def has_default_flow(self) -> bool:
        """Whether the arguments decide when to log, evaluate and save."""
        return any(map(is_default_flow, self._callbacks))

    def add_callback(self, callback: object) -> None:
        """Add a callback after the others; warn if there is one of its class.

        Args:
            callback: an instance, or a class, of which an instance is made.

        Raises:
            ConfigurationError: which is also an AttributeError, for an object without a method of an event.
        """
        added = callback() if isinstance(callback, type) else callback
        if not any(hasattr(added, event) for event in EVENTS):
            problem = (
                f"{added!r} is not a callback: it has none of the methods {', '.join(EVENTS)}; derive its class from "
                "TrainerCallback."
            )
            raise ConfigurationError(Problem(problem, kind=AttributeError))
        if type(added) in map(type, self._callbacks):
            self._notices.warn(
                "repeated callback",
                f"The callbacks already contain a {type(added).__name__}, and both will be called; remove one if that "
                f"is not intended. The callbacks are:\n{self.callback_list}",
                stacklevel=3,
            )
        self._callbacks.append(added)

    def pop_callback(self, callback: object) -> object:
        """Remove and return a callback, or the first instance of a class; return None if there is none.

        The class of a tracker in transformers stands for hexloop's of the same name.

        Args:
            callback: an instance or a class.
        """
        for position, candidate in enumerate(self._callbacks):
            if _is_one(candidate, callback) if isinstance(callback, type) else candidate == callback:
                return self._callbacks.pop(position)
        return None

    def remove_callback(self, callback: object) -> None:
        """Remove a callback, or the first instance of a class.

        Args:
            callback: an instance or a class.

        Raises:
            ValueError: if an instance is not among the callbacks; a class without an instance is ignored.
        """
        if self.pop_callback(callback) is None and not isinstance(callback, type):
            raise ValueError(f"{callback!r} is not among the callbacks: {', '.join(self.callback_list.splitlines())}.")

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy takes over: the callbacks and the objects that they receive, without loaders of a run."""
        own = {name: value for name, value in vars(self).items() if name not in ("_dispatchers", "_overriding")}
        return {**own, "_callbacks": list(self._callbacks), "train_dataloader": None, "eval_dataloader": None}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        """Take over the callbacks and attributes of another handler, without its dispatchers."""
        self._dispatchers, self._overriding = WeakSet(), {}
        self._callbacks = _watched(self)
        list.extend(self._callbacks, kept.pop("_callbacks"))
        vars(self).update(kept)
        self.refresh()

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "call_event":  # set on this instance: every event goes through it
            self.refresh()

    def overriding(self, event: str) -> tuple[Listener, ...]:
        """Return the callbacks' methods for `event` that are overridden.

        Args:
            event: the name of an event, such as "on_log".
        """
        return self._overriding[event]

    def refresh(self) -> None:
        """Update which events are overridden, when the list of callbacks changes and when a run starts."""
        if "call_event" in vars(self) or type(self).call_event is not CallbackHandler.call_event:
            self._overriding = {event: (partial(self._announce, event),) for event in EVENTS}
        else:
            self._overriding = self._listeners()
        for dispatcher in self._dispatchers:
            dispatcher.refresh()

    def inform(self, dispatcher: EventDispatcher) -> None:
        """Call `dispatcher.refresh` whenever the listeners change, as long as it exists.

        Args:
            dispatcher: has the method `refresh`.
        """
        self._dispatchers.add(dispatcher)

    def call_event(
        self, event: str, args: Any, state: TrainerState, control: TrainerControl, **extras: Any
    ) -> TrainerControl:
        """Call the callbacks for `event`; return `control`, with the switches of every control that they returned.

        Args:
            event: the name of an event, such as "on_log".
            args: the TrainingArguments.
            state: a live view of the run.
            control: switches that steer the loop.
            **extras: further keywords for the callbacks.
        """
        self.call(tuple(_listeners(self._callbacks, event)), args, state, control, **extras)
        return control

    def _listeners(self) -> dict[str, tuple[Listener, ...]]:
        return {event: tuple(_listeners(self._callbacks, event)) for event in EVENTS}

    def _announce(self, event: str, args: Any, state: TrainerState, control: TrainerControl, **named: Any) -> object:
        """Call a replaced `call_event`, without the keywords of every event, which it adds itself."""
        extras = {name: value for name, value in named.items() if name not in KEYWORDS}
        return self.call_event(event, args, state, control, **extras)

    def call(
        self, listeners: Iterable[Listener], args: Any, state: TrainerState, control: TrainerControl, **extras: Any
    ) -> None:
        """Call each of `listeners` with the keywords of every event and `extras`.

        Args:
            listeners: methods for an event.
            args: the TrainingArguments.
            state: a live view of the run.
            control: switches that steer the loop.
            **extras: further keywords for the callbacks.
        """
        keywords = {**{name: getattr(self, name) for name in KEYWORDS}, **extras}
        for listener in listeners:
            returned = listener(args, state, control, **keywords)
            if returned is not None and returned is not control:
                _take_over(control, returned, listener)

    on_init_end = _event("on_init_end")
    on_train_begin = _event("on_train_begin", "should_training_stop")
    on_train_end = _event("on_train_end")
    on_epoch_begin = _event("on_epoch_begin", "should_epoch_stop")
    on_epoch_end = _event("on_epoch_end")
    on_step_begin = _event("on_step_begin", "should_log", "should_evaluate", "should_save")
    on_pre_optimizer_step = _event("on_pre_optimizer_step")
    on_optimizer_step = _event("on_optimizer_step")
    on_substep_end = _event("on_substep_end")
    on_step_end = _event("on_step_end")
    on_evaluate = _event("on_evaluate", "should_evaluate", positional=("metrics",))
    on_predict = _event("on_predict", positional=("metrics",))
    on_save = _event("on_save", "should_save")
    on_log = _event("on_log", "should_log", positional=("logs",))
    on_prediction_step = _event("on_prediction_step")
    on_push_begin = _event("on_push_begin")


def _watched(handler: CallbackHandler) -> WatchedList[object]:
    """Return an empty list of callbacks whose changes refresh the handler; it does not refer back to it."""
    reference = ref(handler)

    def refresh() -> None:
        if (found := reference()) is not None:
            found.refresh()

    return WatchedList[object](refresh)


def _take_over(control: TrainerControl, returned: object, listener: Listener) -> None:
    """Copy the switches of what a callback returned. Raises ConfigurationError if it has none."""
    try:
        control.take_over(returned)
    except TypeError as error:
        name = getattr(listener, "__qualname__", repr(listener))
        problem = (
            f"The callback {name} returned a {type(returned).__name__} ({shown(returned)}), which has no switches of a "
            "TrainerControl; let it return its argument `control`, or nothing."
        )
        raise ConfigurationError(Problem(problem, kind=TypeError)) from error


def _is_one(candidate: object, kind: type[Any]) -> bool:
    """Return whether a callback is an instance of a class, or of hexloop's class for the same tracker."""
    if isinstance(candidate, kind):
        return True
    if not isinstance(candidate, TrackerCallback):
        return False
    own = CALLBACKS.get(candidate.tracker_name)
    return own is not None and not issubclass(kind, TrackerCallback) and own.__name__ in _names_of(kind)


def _names_of(kind: type[Any]) -> list[str]:
    return [each.__name__ for each in kind.__mro__]


def _listeners(callbacks: Iterable[object], event: str) -> Iterable[Listener]:
    """Yield the methods for `event`, except those of the base classes, which do nothing, and of the default flow."""
    # A callback written for transformers inherits its base class, whose module is loaded in that case only.
    transformers_base = getattr(sys.modules.get("transformers.trainer_callback"), "TrainerCallback", None)
    idle = (getattr(TrainerCallback, event), getattr(transformers_base, event, None))
    for callback in callbacks:
        if event in FLOW_EVENTS and is_default_flow(callback):
            continue
        listener = getattr(callback, event, None)
        if listener is not None and getattr(listener, "__func__", listener) not in idle and not is_passive(listener):
            yield listener


CALLBACK_EVENTS: Mapping[type[events.AnyEvent], str] = {
    events.TrainBegan: "on_train_begin",
    events.EpochBegan: "on_epoch_begin",
    events.StepBegan: "on_step_begin",
    events.MicroStepEnded: "on_substep_end",
    events.StepEnded: "on_step_end",
    events.EpochEnded: "on_epoch_end",
    events.PredictionStepEnded: "on_prediction_step",
    events.Evaluated: "on_evaluate",
    events.Saved: "on_save",
    events.TrainEnded: "on_train_end",
}
"""The callback events of the loop. The others (on_log, on_optimizer_step, ...) are called elsewhere."""


@define
class CallbackArguments:
    """The callbacks of a Trainer and their arguments. A dispatcher's reactions refer to this, and so not to itself."""

    handler: CallbackHandler
    args: Any
    state: TrainerState
    control: TrainerControl

    def call(self, event: str, **extras: Any) -> None:
        """Call the callbacks for an event by its callback name."""
        if listeners := self.handler.overriding(event):
            self.handler.call(listeners, self.args, self.state, self.control, **extras)

    def calling(self, listeners: tuple[Listener, ...]) -> Callable[[Any], None]:
        """Return what calls `listeners` at an event of the loop."""
        return lambda _event: self.handler.call(listeners, self.args, self.state, self.control)

    def on_train_began(self, event: events.TrainBegan) -> None:
        """Call the callbacks, including methods that were set on a callback since it was added."""
        self.handler.refresh()
        self.call("on_train_begin")

    def on_evaluated(self, event: events.Evaluated) -> None:
        """Clear the due evaluation before the callbacks see the control."""
        self.control.should_evaluate = False
        self.call("on_evaluate", metrics=event.metrics)


class EventDispatcher:
    """Calls the callbacks of a run. An event that no callback overrides costs one dictionary lookup."""

    def __init__(self, handler: CallbackHandler, args: Any, state: TrainerState, control: TrainerControl) -> None:
        self._callbacks = CallbackArguments(handler, args, state, control)
        self._reactions: dict[type[events.AnyEvent], Callable[[Any], None]] = {}
        self._observers: tuple[Mapping[type[events.AnyEvent], Callable[[Any], None]], ...] = ()
        self._late_observers: tuple[Mapping[type[events.AnyEvent], Callable[[Any], None]], ...] = ()
        self.refresh()
        handler.inform(self)

    def dispatch(self, event: events.AnyEvent) -> None:
        """Call observers and callbacks for an event of the loop."""
        reaction = self._reactions.get(type(event))
        if reaction is not None:
            reaction(event)

    def call(self, event: str, **extras: Any) -> None:
        """Call the callbacks for an event by its callback name."""
        self._callbacks.call(event, **extras)

    def dispatch_late(self, event: events.AnyEvent) -> None:
        """Call late observers for an event that comes after the loop was left."""
        for observers in self._late_observers:
            if (react := observers.get(type(event))) is not None:
                react(event)

    def observe(
        self,
        *observers: Mapping[type[events.AnyEvent], Callable[[Any], None]],
        late: Sequence[Mapping[type[events.AnyEvent], Callable[[Any], None]]] = (),
    ) -> None:
        """Call these observers, instead of earlier ones, before the callbacks at events of their type.

        late: further observers, which are also called for events that come after the loop was left.
        """
        self._observers, self._late_observers = (*observers, *late), tuple(late)
        self.refresh()

    def refresh(self) -> None:
        """Update who listens; the handler calls this when its callbacks change."""
        callbacks = self._callbacks
        listening = {kind: callbacks.handler.overriding(name) for kind, name in CALLBACK_EVENTS.items()}
        self._reactions = {kind: callbacks.calling(listeners) for kind, listeners in listening.items() if listeners}
        self._reactions |= {events.TrainBegan: callbacks.on_train_began, events.Evaluated: callbacks.on_evaluated}
        for kind, observer in (item for observers in self._observers for item in observers.items()):
            self._reactions[kind] = _both(observer, self._reactions.get(kind))


def _both(first: Callable[[Any], None], then: Callable[[Any], None] | None) -> Callable[[Any], None]:
    if then is None:
        return first

    def react(event: Any) -> None:
        first(event)
        then(event)

    return react
