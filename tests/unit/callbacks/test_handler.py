"""CallbackHandler calls the callbacks that override an event, in order, with the event's arguments."""

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
    """Records the end of every step."""

    def __init__(self, notes: list[Any] | None = None, name: str = "diary") -> None:
        self.notes: list[Any] = [] if notes is None else notes
        self.name = name

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.notes.append((self.name, args, state, control, kwargs))


class Sibling(Diary):
    """A diary of another class."""


def call(handler: CallbackHandler, event: str = "on_step_end", **extras: Any) -> TrainerControl:
    return handler.call_event(event, ARGS, STATE, TrainerControl(), **extras)


def test_callbacks_are_called_in_order_with_the_event_arguments() -> None:
    """Callbacks get args, state and control by position, and everything else by keyword."""
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


def test_replaced_optimizer_is_passed() -> None:
    """Callbacks receive the optimizer that the handler has at the time of the event."""
    diary = Diary()
    handler = CallbackHandler([diary], optimizer="old")
    handler.optimizer = "new"
    call(handler)
    assert diary.notes[0][4]["optimizer"] == "new"


def test_there_are_sixteen_events() -> None:
    """The events are those of transformers."""
    assert set(EVENTS) == {
        *("on_init_end", "on_train_begin", "on_train_end", "on_epoch_begin", "on_epoch_end", "on_step_begin"),
        *("on_pre_optimizer_step", "on_optimizer_step", "on_substep_end", "on_step_end", "on_evaluate", "on_predict"),
        *("on_save", "on_log", "on_prediction_step", "on_push_begin"),
    }


@pytest.mark.parametrize("event", EVENTS)
def test_base_class_methods_are_no_ops(event: str) -> None:
    """A callback without overridden methods is never called, and the base methods change nothing."""
    handler, control = CallbackHandler([TrainerCallback, DefaultFlowCallback]), TrainerControl()
    assert handler.overriding(event) == ()
    assert getattr(TrainerCallback(), event)(ARGS, STATE, control, metrics={}) is None
    assert control == TrainerControl()


@pytest.mark.parametrize("event", EVENTS)
def test_overridden_method_is_called_for_its_event_only(event: str) -> None:
    """A callback receives only the event that it overrides."""
    heard: list[str] = []
    kind = type("One", (TrainerCallback,), {event: lambda *args, **kwargs: heard.append(event)})
    handler = CallbackHandler([kind])
    for other in EVENTS:
        call(handler, other)
    assert heard == [event]
    assert [name for name in EVENTS if handler.overriding(name)] == [event]


def test_any_object_with_event_methods_is_a_listener() -> None:
    """Methods may be inherited, set on the instance, or belong to an object of any class."""

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


def test_patched_method_is_found_by_refresh() -> None:
    """`refresh`, which every run calls at its start, finds methods patched after the callback was added."""
    heard: list[str] = []
    callback = TrainerCallback()
    handler = CallbackHandler([callback])
    callback.on_log = lambda *args, **kwargs: heard.append("log")  # type: ignore[method-assign]
    handler.refresh()
    call(handler, "on_log")
    assert heard == ["log"]


def test_returned_control_updates_the_live_control() -> None:
    """The live control copies all five switches, and the next callback sees them."""

    class Returning(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> TrainerControl:
            return TrainerControl(should_save=True)

    diary = Diary()
    handler = CallbackHandler([Returning, diary])
    control = TrainerControl(should_log=True, should_epoch_stop=True)
    assert handler.call_event("on_step_end", ARGS, STATE, control) is control
    assert control == TrainerControl(should_save=True)
    assert diary.notes[0][3] is control


def test_control_may_be_changed_in_place() -> None:
    """Setting a switch is enough; returning the same control object changes nothing more."""

    class Setting(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> TrainerControl:
            control.should_log = True
            return control

    assert call(CallbackHandler([Setting, Diary])) == TrainerControl(should_log=True)


def test_other_return_values_are_an_error() -> None:
    """Returning an object without the five switches raises an error that shows it."""

    class Confused(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> Any:
            return "stop"

    with pytest.raises(TypeError, match="'stop'"):
        call(CallbackHandler([Confused]))


def test_callback_may_be_an_instance_or_a_class() -> None:
    """A class is instantiated without arguments."""
    diary = Diary()
    handler = CallbackHandler([DefaultFlowCallback])
    handler.add_callback(diary)
    handler.add_callback(EarlyStoppingCallback)
    assert handler.callback_list == "DefaultFlowCallback\nDiary\nEarlyStoppingCallback"
    assert handler.callbacks[1] is diary


def test_second_callback_of_a_class_is_warned_about() -> None:
    """Two callbacks of one exact class are both called after a warning; subclasses give no warning."""
    notes: list[Any] = []
    handler = CallbackHandler([Diary(notes), Sibling(notes)])
    with pytest.warns(UserWarning, match="Diary"):
        handler.add_callback(Diary(notes))
    call(handler)
    assert len(notes) == 3


def test_pop_returns_the_first_match() -> None:
    """`pop` finds an instance or the first instance of a class, and returns None without a match."""
    sibling, diary = Sibling(), Diary()
    handler = CallbackHandler([sibling, diary])
    assert handler.pop_callback(Diary) is sibling
    assert handler.pop_callback(Sibling) is None
    assert handler.pop_callback(sibling) is None
    assert handler.pop_callback(diary) is diary
    assert handler.callbacks == []
    call(handler)
    assert diary.notes == sibling.notes == []


def test_remove_accepts_a_class_or_an_instance() -> None:
    """A class without instances is ignored; an unknown instance raises an error that lists the callbacks."""
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


def test_changes_of_the_list_take_effect_at_the_next_event() -> None:
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


def test_callback_may_remove_itself() -> None:
    """All callbacks receive the current event; the removed one receives none of the next."""
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
def test_watched_list_reports_every_change(change: Any) -> None:
    """Every change of the list calls back once afterwards and returns what a plain list returns."""
    seen: list[list[int]] = []
    plain, watched = [7, 3], WatchedList[int](lambda: seen.append(list(watched)))
    list.extend(watched, plain)
    assert change(watched) == change(plain)
    assert seen == [plain]


def test_watched_list_does_not_report_reads() -> None:
    """Reading, copying and concatenating do not call back."""
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
def test_each_event_has_a_method_on_the_handler(event: str, positional: dict[str, Any], cleared: set[str]) -> None:
    """`handler.on_log(args, state, control, logs)` and the like clear the event's switch, then call."""
    heard: list[dict[str, Any]] = []
    kind = type("One", (TrainerCallback,), {event: lambda self, *given, **kwargs: heard.append(kwargs)})
    handler = CallbackHandler([kind])
    control = TrainerControl(*[True] * 5)
    announced = getattr(handler, event)(ARGS, STATE, control, *positional.values(), more=1)
    assert announced is control
    assert {name for name, switched_on in vars(control).items() if not switched_on} == cleared
    [extras] = heard
    assert {name: value for name, value in extras.items() if name not in EXTRAS} == {**positional, "more": 1}
