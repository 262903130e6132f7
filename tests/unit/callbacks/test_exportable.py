"""What callbacks keep goes into a checkpoint and comes back."""

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


def test_the_layout_is_the_reference_librarys() -> None:
    """States stand under the name of their class, several of one class in a list; who keeps nothing is left out."""
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


def test_restoring_makes_each_callback_anew_in_its_place() -> None:
    """Those of one class take their states in turn, the others stay the objects that they were."""
    idle = TrainerCallback()
    exported = export_states([counter(1, 5), counter(2, 6), EarlyStoppingCallback(7)])
    first, same, second, stopping = restore_states([Counter(), idle, Counter(), EarlyStoppingCallback()], exported)
    assert same is idle
    assert [vars(each) for each in (first, second)] == [{"first": 1, "count": 5}, {"first": 2, "count": 6}]
    assert isinstance(stopping, EarlyStoppingCallback)
    assert stopping.early_stopping_patience == 7


def test_one_more_callback_than_states_keeps_its_own() -> None:
    """A callback for which no state is left stays the object that it was, without a warning."""
    second = counter(8, 9)
    assert restore_states([Counter(), second], export_states([counter(1, 5)]))[1] is second


def test_states_that_nobody_takes_are_named() -> None:
    """A checkpoint of a run with more callbacks is read, and the warning names them."""
    exported = export_states([counter(1, 5), counter(2, 6), EarlyStoppingCallback()])
    with pytest.warns(UserWarning, match="Counter, EarlyStoppingCallback"):
        [restored] = restore_states([Counter()], exported)
    assert vars(restored) == {"first": 1, "count": 5}


def test_a_class_of_the_same_name_that_keeps_nothing_is_left_alone() -> None:
    """A callback that cannot be made from a state stays as it is, and the state is reported."""
    namesake = type("Counter", (TrainerCallback,), {})()
    with pytest.warns(UserWarning, match="Counter"):
        assert restore_states([namesake], export_states([Counter()])) == [namesake]


def test_a_class_that_does_not_say_what_it_keeps_is_an_error() -> None:
    """Deriving from ExportableState without a state() fails with the class's name."""
    silent = type("Silent", (TrainerCallback, ExportableState), {})()
    with pytest.raises(NotImplementedError, match=r"Silent.*state\(\)"):
        export_states([silent])
