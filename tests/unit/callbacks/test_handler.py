"""CallbackHandler calls who overrides an event, in order, with everything that the event comes with."""

from __future__ import annotations

from typing import Any

import pytest

from hexloop.app.callbacks import (
    EVENTS,
    CallbackHandler,
    DefaultFlowCallback,
    EarlyStoppingCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
)
from hexloop.app.callbacks.handler import WatchedList

ARGS, STATE = object(), TrainerState(global_step=3)
EXTRAS = {"model", "processing_class", "optimizer", "lr_scheduler", "train_dataloader", "eval_dataloader"}


class Diary(TrainerCallback):
    """Notes every step's end."""

    def __init__(self, notes: list[Any] | None = None, name: str = "diary") -> None:
        self.notes: list[Any] = [] if notes is None else notes
        self.name = name

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.notes.append((self.name, args, state, control, kwargs))


class Sibling(Diary):
    """A diary of another class."""


def call(handler: CallbackHandler, event: str = "on_step_end", **extras: Any) -> TrainerControl:
    return handler.call_event(event, ARGS, STATE, TrainerControl(), **extras)


def test_callbacks_are_called_in_order_with_what_the_event_comes_with() -> None:
    """Each gets args, state and control by place, the Trainer's parts by name, and what is special to the event."""
    notes: list[Any] = []
    handler = CallbackHandler([Diary(notes, "first"), Sibling(notes, "second")], "model", "tokenizer", "adam", "linear")
    handler.train_dataloader, handler.eval_dataloader = "train", "eval"
    control = TrainerControl()
    assert handler.call_event("on_step_end", ARGS, STATE, control, metrics={"loss": 1.0}) is control
    assert [note[0] for note in notes] == ["first", "second"]
    for _name, args, state, seen, extras in notes:
        assert (args, state, seen) == (ARGS, STATE, control)
        assert seen is control
        assert extras == {
            "model": "model",
            "processing_class": "tokenizer",
            "optimizer": "adam",
            "lr_scheduler": "linear",
            "train_dataloader": "train",
            "eval_dataloader": "eval",
            "metrics": {"loss": 1.0},
        }


def test_parts_that_are_exchanged_are_seen() -> None:
    """A callback is given the optimizer that the handler has when the event comes, not the one it began with."""
    diary = Diary()
    handler = CallbackHandler([diary], optimizer="old")
    handler.optimizer = "new"
    call(handler)
    assert diary.notes[0][4]["optimizer"] == "new"


def test_there_are_sixteen_events() -> None:
    """The events are the reference library's."""
    assert set(EVENTS) == {
        *("on_init_end", "on_train_begin", "on_train_end", "on_epoch_begin", "on_epoch_end", "on_step_begin"),
        *("on_pre_optimizer_step", "on_optimizer_step", "on_substep_end", "on_step_end", "on_evaluate", "on_predict"),
        *("on_save", "on_log", "on_prediction_step", "on_push_begin"),
    }


@pytest.mark.parametrize("event", EVENTS)
def test_the_base_class_is_never_called_and_does_nothing(event: str) -> None:
    """A callback that overrides nothing listens to nothing, and calling its method by hand changes nothing."""
    handler, control = CallbackHandler([TrainerCallback, DefaultFlowCallback]), TrainerControl()
    assert handler.overriding(event) == ()
    assert getattr(TrainerCallback(), event)(ARGS, STATE, control, metrics={}) is None
    assert control == TrainerControl()


@pytest.mark.parametrize("event", EVENTS)
def test_an_overridden_method_is_called_at_its_event_alone(event: str) -> None:
    """Of sixteen events a callback hears the one that it overrides."""
    heard: list[str] = []
    kind = type("One", (TrainerCallback,), {event: lambda *args, **kwargs: heard.append(event)})
    handler = CallbackHandler([kind])
    for other in EVENTS:
        call(handler, other)
    assert heard == [event]
    assert [name for name in EVENTS if handler.overriding(name)] == [event]


def test_inherited_methods_instance_attributes_and_plain_objects_count() -> None:
    """A listener may be inherited, put onto the instance, or a method of an object of any class."""

    class Inheriting(Diary):
        pass

    class Plain:
        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            heard.append("plain")

    heard: list[str] = []
    patched = TrainerCallback()
    patched.on_log = lambda *args, **kwargs: heard.append("patched")  # type: ignore[method-assign]
    inheriting = Inheriting()
    handler = CallbackHandler([inheriting, patched, Plain()])
    call(handler, "on_log")
    call(handler)
    assert heard == ["patched", "plain"]
    assert len(inheriting.notes) == 1


def test_a_method_put_onto_a_callback_later_is_heard_after_a_refresh() -> None:
    """`refresh`, which every run begins with, finds what was patched since the callback was added."""
    heard: list[str] = []
    callback = TrainerCallback()
    handler = CallbackHandler([callback])
    callback.on_log = lambda *args, **kwargs: heard.append("log")  # type: ignore[method-assign]
    handler.refresh()
    call(handler, "on_log")
    assert heard == ["log"]


def test_a_control_that_is_returned_replaces_the_switches_of_the_live_one() -> None:
    """The live control takes over all five switches, and the next callback sees them."""

    class Returning(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> TrainerControl:
            return TrainerControl(should_save=True)

    diary = Diary()
    handler = CallbackHandler([Returning, diary])
    control = TrainerControl(should_log=True, should_epoch_stop=True)
    assert handler.call_event("on_step_end", ARGS, STATE, control) is control
    assert control == TrainerControl(should_save=True)
    assert diary.notes[0][3] is control


def test_a_control_that_is_set_in_place_or_returned_itself_stays() -> None:
    """Setting a switch is enough; returning the same object changes nothing more."""

    class Setting(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> TrainerControl:
            control.should_log = True
            return control

    assert call(CallbackHandler([Setting, Diary])) == TrainerControl(should_log=True)


def test_returning_anything_else_is_an_error_that_shows_it() -> None:
    """A callback that returns something without the five switches is told so."""

    class Confused(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> Any:
            return "stop"

    with pytest.raises(TypeError, match="'stop'"):
        call(CallbackHandler([Confused]))


def test_callbacks_are_added_as_instance_or_class() -> None:
    """A class stands for an instance made without arguments."""
    diary = Diary()
    handler = CallbackHandler([DefaultFlowCallback])
    handler.add_callback(diary)
    handler.add_callback(EarlyStoppingCallback)
    assert handler.callback_list == "DefaultFlowCallback\nDiary\nEarlyStoppingCallback"
    assert handler.callbacks[1] is diary


def test_a_second_one_of_a_class_is_warned_of_and_called() -> None:
    """Two of one exact class are both called, after a warning; a subclass is none of its parent's."""
    notes: list[Any] = []
    handler = CallbackHandler([Diary(notes), Sibling(notes)])
    with pytest.warns(UserWarning, match="Diary"):
        handler.add_callback(Diary(notes))
    call(handler)
    assert len(notes) == 3


def test_pop_gives_back_the_first_match_by_class_or_instance() -> None:
    """A class finds its first instance, subclasses included; what is not there gives None."""
    sibling, diary = Sibling(), Diary()
    handler = CallbackHandler([sibling, diary])
    assert handler.pop_callback(Diary) is sibling
    assert handler.pop_callback(Sibling) is None
    assert handler.pop_callback(sibling) is None
    assert handler.pop_callback(diary) is diary
    assert handler.callbacks == []
    call(handler)
    assert diary.notes == sibling.notes == []


def test_remove_takes_out_by_class_or_instance() -> None:
    """A class that has no instance is passed over; an instance that is not there is an error naming those that are."""
    diary = Diary()
    handler = CallbackHandler([DefaultFlowCallback, diary])
    assert handler.has_default_flow
    handler.remove_callback(DefaultFlowCallback)
    assert not handler.has_default_flow
    handler.remove_callback(DefaultFlowCallback)
    with pytest.raises(ValueError, match="not among the callbacks: Diary"):
        handler.remove_callback(Diary())
    handler.remove_callback(diary)
    assert handler.callback_list == ""


def test_changing_the_list_itself_changes_who_is_called() -> None:
    """Inserting, deleting and replacing in `callbacks` takes effect at the next event."""
    notes: list[Any] = []
    first, second, third = Diary(notes, "1"), Diary(notes, "2"), Diary(notes, "3")
    handler = CallbackHandler([first])
    handler.callbacks.insert(0, second)
    handler.callbacks += [third]
    call(handler)
    del handler.callbacks[1]
    call(handler)
    handler.callbacks = [first]
    call(handler)
    assert [note[0] for note in notes] == [*"213", *"23", *"1"]


def test_a_callback_may_take_itself_out_while_it_is_called() -> None:
    """Everybody hears the event at hand; from the next on the one that left hears nothing."""
    diary = Diary()

    class Once(TrainerCallback):
        calls = 0

        def on_step_end(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
            self.calls += 1
            handler.remove_callback(self)

    once = Once()
    handler = CallbackHandler([once, diary])
    call(handler)
    call(handler)
    assert (once.calls, len(diary.notes)) == (1, 2)


@pytest.mark.parametrize(
    "change",
    [
        lambda items: items.append(1),
        lambda items: items.extend([1]),
        lambda items: items.insert(0, 1),
        lambda items: items.remove(7),
        lambda items: items.pop(),
        lambda items: items.clear(),
        lambda items: items.sort(),
        lambda items: items.reverse(),
        lambda items: items.__setitem__(0, 1),
        lambda items: items.__setitem__(slice(None), [1]),
        lambda items: items.__delitem__(0),
        lambda items: items.__iadd__([1]),
        lambda items: items.__imul__(2),
    ],
)
def test_a_watched_list_tells_of_every_change(change: Any) -> None:
    """Each way of changing a list calls back once, after the change, with a plain list's result."""
    seen: list[list[int]] = []
    plain, watched = [7, 3], WatchedList[int](lambda: seen.append(list(watched)))
    list.extend(watched, plain)
    assert change(watched) == change(plain)
    assert seen == [plain]


def test_a_watched_list_is_silent_when_it_is_read() -> None:
    """Reading, copying and adding up tell nothing."""
    watched = WatchedList[int](lambda: pytest.fail("nothing changed"))
    assert ([*watched, 1], watched.copy(), watched + watched, 1 in watched) == ([1], [], [], False)


@pytest.mark.parametrize(
    ("event", "positional", "cleared"),
    [
        ("on_init_end", {}, set()),
        ("on_train_begin", {}, {"should_training_stop"}),
        ("on_train_end", {}, set()),
        ("on_epoch_begin", {}, {"should_epoch_stop"}),
        ("on_epoch_end", {}, set()),
        ("on_step_begin", {}, {"should_log", "should_evaluate", "should_save"}),
        ("on_pre_optimizer_step", {}, set()),
        ("on_optimizer_step", {}, set()),
        ("on_substep_end", {}, set()),
        ("on_step_end", {}, set()),
        ("on_evaluate", {"metrics": {"eval_loss": 1.0}}, {"should_evaluate"}),
        ("on_predict", {"metrics": {"test_loss": 1.0}}, set()),
        ("on_save", {}, {"should_save"}),
        ("on_log", {"logs": {"loss": 1.0}}, {"should_log"}),
        ("on_prediction_step", {}, set()),
        ("on_push_begin", {}, set()),
    ],
)
def test_events_can_be_announced_by_their_own_method(event: str, positional: dict[str, Any], cleared: set[str]) -> None:
    """`handler.on_log(args, state, control, logs)` and the like clear the switch that they answer, then call."""
    heard: list[dict[str, Any]] = []
    kind = type("One", (TrainerCallback,), {event: lambda self, *given, **kwargs: heard.append(kwargs)})
    handler = CallbackHandler([kind])
    control = TrainerControl(*[True] * 5)
    announced = getattr(handler, event)(ARGS, STATE, control, *positional.values(), more=1)
    assert announced is control
    assert {name for name, switched_on in vars(control).items() if not switched_on} == cleared
    [extras] = heard
    assert {name: value for name, value in extras.items() if name not in EXTRAS} == {**positional, "more": 1}
