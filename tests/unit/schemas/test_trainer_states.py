"""The `trainer_state.json` of transformers: what an import takes from it, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.app.assembly.torch.transformers_checkpoints.trainer_states import run_state
from hexloop.domain.errors import CheckpointError
from hexloop.domain.state import RunState
from tests.unit.schemas.json_values import VALUES

GOOD: dict[str, Any] = {
    "global_step": 10,
    "epoch": 2.5,
    "train_batch_size": 4,
    "num_input_tokens_seen": 0,
    "total_flos": 1.5,
    "best_metric": None,
    "best_global_step": None,
    "log_history": [{"loss": 2.0, "step": 4, "epoch": 1.0}, {"eval_loss": 1.0, "step": 4}, {"loss": 1.0, "step": 10}],
    "stateful_callbacks": {"TrainerControl": {}, "Counter": {"args": {}, "attributes": {}}},
    "logging_steps": 500,
}


def read(batch: int | None = None, **changes: Any) -> RunState:
    return run_state({**GOOD, **changes}, "trainer_state.json", batch, 1, 1, 42, 42)


def test_a_state_is_read() -> None:
    """The position follows from step and epoch, and the losses from the history."""
    state = read()
    assert (state.step, state.epoch, state.position, state.batches, state.samples) == (10, 2, 8, 2, 40)
    assert (state.loss_total, state.best_metric, sorted(state.callbacks)) == (14.0, None, ["Counter"])
    assert math.isnan(read(best_metric=math.nan).best_metric or 0)
    assert read(train_batch_size=None, batch=2).global_batch_size == 2


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an epoch near zero": ({"epoch": 1e-320}, "epoch: 1e-320 is not a number of epochs"),
    "a step of many digits": ({"global_step": 10**400}, "global_step: a number of 1329 bits is not between 1 and"),
    "callbacks that are a list": ({"stateful_callbacks": []}, "stateful_callbacks: [] is not a JSON object"),
    "tokens without end": ({"num_input_tokens_seen": math.inf}, "num_input_tokens_seen: inf is not a number of tokens"),
    "a best step that is an object": (
        {"best_global_step": {}, "best_metric": "x"},
        "best_metric: 'x' is not a number; best_global_step: {} is not a whole number",
    ),
    "a loss that is a text": (
        {"log_history": [5, {"step": "x"}, {"loss": "1", "step": []}]},
        "log_history[0].loss: '1' is not a number; log_history[0].step: [] is not a whole number",
    ),
    "a loss without a step": ({"log_history": [{"loss": 1}]}, "log_history[0].step: it is missing"),
    "many steps in part of an epoch": ({"global_step": 10**14, "epoch": 7e13 + 0.25}, "is not at epoch 7000000"),
    "a huge position": ({"global_step": 2**53, "epoch": 2**53, "train_batch_size": 2**31}, "samples: "),
    "a huge batch": ({"train_batch_size": 2**40}, "train_batch_size: 1099511627776 is not between"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_state_is_refused_with_its_fields(name: str) -> None:
    """At once, with the path of the file."""
    changes, words = WRONG[name]
    with pytest.raises(CheckpointError) as raised:
        read(**changes)
    assert words in str(raised.value)
    assert "trainer_state.json" in str(raised.value)


@given(st.sampled_from(sorted(GOOD)), VALUES)
def test_any_value_is_read_or_refused(name: str, value: Any) -> None:
    """Each state that is read is one that a checkpoint can hold; there is no other error than a CheckpointError."""
    try:
        state = read(**{name: value})
    except CheckpointError:
        return
    assert 1 <= state.step <= 2**53
