"""The documents of a run, with any value in any field: the run state, the setup, the optimizer's and the marker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from attrs import asdict
from hypothesis import given
from hypothesis import strategies as st

from hexloop.adapters.contents.documents import encode_state, state_of
from hexloop.adapters.trainable.torch.optimizer_document import checked_document
from hexloop.app.assembly.saved_setup import check_setup, finish_in
from hexloop.domain.errors import CheckpointError
from hexloop.domain.json_documents import read_json
from hexloop.domain.state import RunState
from tests.unit.schemas.json_values import VALUES

GROUP = {"weight_decay": 0.1, "betas": [0.9, 0.999], "parameters": 3}

SETUP: dict[str, Any] = {
    "model": "Net", "precision": "fp32", "reproduce": None, "samples_per_epoch": None, "global_batch_size": 8,
    "batch_size": 4, "asked_accumulation": 2, "imported_from": "transformers",
    "optimizer": {"class": "AdamW", "by_arguments": True, "groups": [GROUP], "without_decay": ["a.bias"]},
}  # fmt: skip

OPTIMIZER: dict[str, Any] = {
    "groups": [{"lr": 0.1, "params": ["a", "b"]}],
    "state_keys": [["lr"]],
    "state": {"a": {"step": {"__tensor__": "a.step"}}},
    "further": {"top": {}, "state": {}},
    "outside": {"outside.0": {"__tensor__": "outside.0", "own_type": True}},
    "masters": {"a": {"__tensor__": "a.masters"}},
    "loss_scale": {"cur_scale": 65536.0, "cur_iter": 3, "last_overflow_iter": -1, "cur_hysteresis": 2},
}

NUMBERED: dict[str, Any] = {
    "numbered": True, "groups": [{"lr": 0.1, "params": [0, 1]}], "state": {"0": {"step": {"__tensor__": "0.step"}}}
}  # fmt: skip

FINISH: dict[str, Any] = {
    "run": "a", "step": 3, "checkpoint": "checkpoint-2", "session": "b", "max_steps": -1, "num_train_epochs": 1.5
}  # fmt: skip

DOCUMENTS: dict[str, tuple[dict[str, Any], Callable[[Any], object]]] = {
    "run state": (asdict(RunState(run="a", history=[{"loss": 1.0}], due=["save"], callbacks={"A": {}})), state_of),
    "setup": (SETUP, lambda values: check_setup(values, "run_setup in run_state.json")),
    "optimizer": (OPTIMIZER, checked_document),
    "numbered optimizer": (NUMBERED, checked_document),
    "marker": (FINISH, lambda values: finish_in(values, "finished.json")),
}


@pytest.mark.parametrize(
    ("trackers", "problem"),
    [
        ({"wandb": "x" * 1001}, "is not a text of at most 1,000 characters"),
        ({"wandb": 3}, "3 is not text"),
        ({"x" * 256: "id"}, "is not a few names"),
        ({str(number): "id" for number in range(101)}, "is not a few names"),
        ([], "is not a JSON object"),
    ],
)
def test_identifiers_of_trackers_are_short_texts(trackers: Any, problem: str) -> None:
    """A checkpoint that comes from elsewhere may hold anything; one of an earlier release holds none."""
    values = asdict(RunState(run="a", trackers={"wandb": "id"}))
    assert state_of(values).trackers == {"wandb": "id"}
    with pytest.raises(CheckpointError, match=problem):
        state_of({**values, "trackers": trackers})
    del values["trackers"]
    assert state_of(values).trackers == {}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_valid_documents_are_read(name: str) -> None:
    """As they are written."""
    values, read = DOCUMENTS[name]
    read(values)


@pytest.mark.parametrize("name", DOCUMENTS)
@given(source=st.data())
def test_any_value_in_any_field_is_read_or_refused(name: str, source: st.DataObject) -> None:
    """A refusal names the field; components' are ValueErrors, which the owner of the files names the file for."""
    values, read = DOCUMENTS[name]
    field = source.draw(st.sampled_from(sorted(values)))
    try:
        read({**values, field: source.draw(VALUES)})
    except (CheckpointError, ValueError) as error:
        told = str(error)
    else:
        return
    assert field in told or f"{field!r}" in told or name == "numbered optimizer"
    assert len(told) < 4000


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "a scale of zero": ("optimizer", {"loss_scale": {"cur_scale": 0}}, "param_groups.loss_scale.cur_scale: 0 is not a"),
    "a method of the scaler": (
        "optimizer", {"loss_scale": {"update_scale": 5, "cur_iter": -1, "last_overflow_iter": -2}},
        "param_groups.loss_scale.cur_iter: -1 is not between 0 and 9007199254740992; param_groups.loss_scale."
        "last_overflow_iter: -2 is not between -1 and 9007199254740992; param_groups.loss_scale: unknown entries "
        "'update_scale'",
    ),
    "a master that is no tensor": (
        "optimizer", {"masters": {"a": 5}}, "param_groups.masters['a']: 5 is not a JSON object"
    ),
    "a number for a name": (
        "numbered optimizer", {"groups": [{"params": ["a", -1]}]}, "groups[0].params[0]: 'a' is not a whole number"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_documents_of_optimizers_are_refused(name: str) -> None:
    """With the field; none of it is loaded."""
    document, changes, words = WRONG[name]
    with pytest.raises(ValueError, match=r"^param_groups") as raised:
        checked_document({**DOCUMENTS[document][0], **changes})
    assert words in str(raised.value)


@pytest.mark.parametrize("name", ["", "checkpoint-7", "my best", "ü" * 255])
def test_the_best_checkpoint_has_the_name_of_a_folder(name: str) -> None:
    """Or none, or an empty one."""
    values, _ = DOCUMENTS["run state"]
    assert state_of({**values, "best_checkpoint": name}).best_checkpoint == name


@pytest.mark.parametrize("name", [".", "..", "../a", "/a", "a/b", "a\\b", "a\0b", "a" * 256])
def test_a_name_that_leads_elsewhere_is_refused(name: str) -> None:
    """Also one that no file system has."""
    values, _ = DOCUMENTS["run state"]
    with pytest.raises(CheckpointError, match=r"best_checkpoint: .* is not the name of a folder"):
        state_of({**values, "best_checkpoint": name})


class Bounds(NamedTuple):
    """What a callback of the user's keeps."""

    low: float
    high: float


def test_any_collection_in_a_callbacks_state_is_saved() -> None:
    """A named tuple is a list in the document."""
    saved = read_json(encode_state(RunState(callbacks={"A": {"bounds": Bounds(0.5, 1.0)}})))
    assert saved["callbacks"] == {"A": {"bounds": [0.5, 1.0]}}
