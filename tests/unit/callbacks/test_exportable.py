"""Saving and restoring the state of callbacks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hexloop.app.callbacks import (
    EarlyStoppingCallback,
    ExportableState,
    TrainerCallback,
    TrainerControl,
    export_states,
    restore_states,
    wrong_states,
)


class Counter(TrainerCallback, ExportableState):
    """Counts."""

    def __init__(self, first: int = 0) -> None:
        self.first = first
        self.count = first

    def state(self) -> dict[str, Any]:
        return {"args": {"first": self.first}, "attributes": {"count": self.count}}


def counter(first: int, count: int) -> Counter:
    made = Counter(first)
    made.count = count
    return made


def test_layout_equals_that_of_transformers() -> None:
    """States are keyed by class name, several of one class in a list; stateless callbacks are omitted."""
    stopping = EarlyStoppingCallback(2, 0.5)
    stopping.early_stopping_patience_counter = 1
    exported = export_states([stopping, TrainerCallback(), counter(1, 5), counter(2, 6), TrainerControl(True)])
    assert json.loads(json.dumps(exported)) == {
        "EarlyStoppingCallback": {
            "args": {"early_stopping_patience": 2, "early_stopping_threshold": 0.5},
            "attributes": {"early_stopping_patience_counter": 1},
        },
        "Counter": [
            {"args": {"first": 1}, "attributes": {"count": 5}},
            {"args": {"first": 2}, "attributes": {"count": 6}},
        ],
        "TrainerControl": {
            "args": {
                "should_training_stop": True,
                "should_epoch_stop": False,
                "should_save": False,
                "should_evaluate": False,
                "should_log": False,
            },
            "attributes": {},
        },
    }


def test_restoring_replaces_stateful_callbacks() -> None:
    """Callbacks of one class take their states in order; other callbacks stay the same objects."""
    idle = TrainerCallback()
    exported = export_states([counter(1, 5), counter(2, 6), EarlyStoppingCallback(7)])
    first, same, second, stopping = restore_states([Counter(), idle, Counter(), EarlyStoppingCallback()], exported)
    assert same is idle
    assert [vars(each) for each in (first, second)] == [{"first": 1, "count": 5}, {"first": 2, "count": 6}]
    assert isinstance(stopping, EarlyStoppingCallback)
    assert stopping.early_stopping_patience == 7


def test_callback_without_a_saved_state_is_kept() -> None:
    """A callback without a saved state stays the same object, without a warning."""
    second = counter(8, 9)
    assert restore_states([Counter(), second], export_states([counter(1, 5)]))[1] is second


def test_unused_states_are_warned_about() -> None:
    """Saved states without a matching callback give a warning that names them."""
    exported = export_states([counter(1, 5), counter(2, 6), EarlyStoppingCallback()])
    with pytest.warns(UserWarning, match="Counter, EarlyStoppingCallback"):
        [restored] = restore_states([Counter()], exported)
    assert vars(restored) == {"first": 1, "count": 5}


def test_stateless_class_of_the_same_name_is_kept() -> None:
    """A callback that cannot be restored is kept, and its state is reported."""
    namesake = type("Counter", (TrainerCallback,), {})()
    with pytest.warns(UserWarning, match="Counter"):
        assert restore_states([namesake], export_states([Counter()])) == [namesake]


def test_exportable_class_without_state_is_an_error() -> None:
    """Deriving from ExportableState without a state() raises an error that names the class."""
    silent = type("Silent", (TrainerCallback, ExportableState), {})()
    with pytest.raises(NotImplementedError, match=r"Silent.*state\(\)"):
        export_states([silent])


def stopping_with(key: str, **entries: Any) -> list[str]:
    """Return what is wrong with a state of early stopping with other entries."""
    saved = export_states([EarlyStoppingCallback(2, 0.5)])
    saved["EarlyStoppingCallback"][key] |= entries
    return list(wrong_states([EarlyStoppingCallback()], saved))


def test_states_of_own_callbacks_have_their_entries() -> None:
    """Each entry exists, and has a value of its kind; every problem is told with its name."""
    assert stopping_with("args") == []
    assert stopping_with("args", early_stopping_patience=7, early_stopping_threshold=None) == []
    assert stopping_with("args", early_stopping_patience=None, early_stopping_threshold="x") == [
        "callbacks.EarlyStoppingCallback.args.early_stopping_patience in its run state is None, which is not a whole "
        "number.",
        "callbacks.EarlyStoppingCallback.args.early_stopping_threshold in its run state is 'x', which is not a number.",
    ]
    assert stopping_with("attributes", early_stopping_patience_counter=10**30, on_evaluate=1) == [
        f"callbacks.EarlyStoppingCallback.attributes.early_stopping_patience_counter in its run state is {10**30}, "
        "which is not a whole number.",
        "callbacks.EarlyStoppingCallback.attributes in its run state has the entry 'on_evaluate', which a "
        "EarlyStoppingCallback does not have.",
    ]
    assert len(stopping_with("attributes", early_stopping_patience_counter="x" * 10**6)[0]) < 300


def test_states_of_user_callbacks_replace_no_method() -> None:
    """They may have other entries than now, of any kind."""
    saved: dict[str, Any] = {"Counter": {"args": {"first": "x"}, "attributes": {"more": [], "count": None}}}
    assert list(wrong_states([Counter()], saved)) == []
    saved["Counter"]["attributes"]["on_save"] = 5
    assert list(wrong_states([Counter()], saved)) == [
        "callbacks.Counter.attributes.on_save in its run state is 5, which would replace a method of Counter."
    ]
