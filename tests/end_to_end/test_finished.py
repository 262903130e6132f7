"""Which runs count as finished when they are started again with resume_from_checkpoint="auto"."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hexloop import TrainerCallback
from hexloop.app.assembly.storage import storage_for
from hexloop.app.run.checkpoints import finished_at
from hexloop.domain.events import StepEnded
from tests.end_to_end.small.models import rows
from tests.end_to_end.small.trainers import same_weights, small_trainer, weights

STEPS = 8


def trainer_in(folder: Path, *callbacks: TrainerCallback, **given: Any) -> Any:
    parts = {"train_dataset": rows(32), "callbacks": list(callbacks)}
    return small_trainer(
        folder, parts=parts, **{"max_steps": STEPS, "save_strategy": "steps", "save_steps": 2, **given}
    )


class DiesAfter(TrainerCallback):
    """Raises an error after a step, like a crash."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            raise RuntimeError("the machine is gone")


def steps_of_another_start(folder: Path) -> list[int]:
    events = trainer_in(folder).stream(resume_from_checkpoint="auto")
    return [event.step for event in events if type(event) is StepEnded]


def test_a_finished_run_trains_nothing_when_restarted(tmp_path: Path) -> None:
    """Neither after all its steps, nor after it was resumed from an earlier checkpoint and finished."""
    trainer_in(tmp_path).train()
    assert steps_of_another_start(tmp_path) == []
    trainer_in(tmp_path).train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert steps_of_another_start(tmp_path) == []


def test_a_run_that_ended_early_trains_nothing_when_restarted(tmp_path: Path) -> None:
    """Although its last checkpoint has steps left."""

    class Ends(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = state.global_step == 5

    trainer_in(tmp_path, Ends()).train()
    assert steps_of_another_start(tmp_path) == []


def test_a_resumed_finished_run_is_unfinished_until_it_ends(tmp_path: Path) -> None:
    """A run resumed from an earlier checkpoint and then killed resumes where it was killed and finishes."""
    whole = trainer_in(tmp_path)
    whole.train()
    with pytest.raises(RuntimeError, match="gone"):
        trainer_in(tmp_path, DiesAfter(5)).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    again = trainer_in(tmp_path)
    again.train(resume_from_checkpoint="auto")
    assert again.state.global_step == STEPS
    assert same_weights(weights(again), weights(whole))


MARKERS: dict[str, Any] = {
    "a list": [],
    "a negative step": {"step": -1},
    "a step that is true": {"step": True},
    "a huge step": {"step": 10**400},
    "an unknown entry": {"more": 1},
    "a run that is a number": {"run": 5},
    "a length that is a text": {"num_train_epochs": "1"},
}


@pytest.mark.parametrize("name", MARKERS)
def test_a_completion_marker_of_another_form_is_ignored(tmp_path: Path, name: str) -> None:
    """The run resumes from its last checkpoint, as if there was no marker."""
    trainer_in(tmp_path, max_steps=4).train()
    marker = json.loads((tmp_path / ".hexloop/finished.json").read_bytes())
    assert finished_at(storage_for(tmp_path), trainer_in(tmp_path, max_steps=4).args) == 4
    changed = {**marker, **MARKERS[name]} if MARKERS[name] else MARKERS[name]
    (tmp_path / ".hexloop/finished.json").write_text(json.dumps(changed))
    assert finished_at(storage_for(tmp_path), trainer_in(tmp_path, max_steps=4).args) is None


def test_a_finished_run_with_a_damaged_last_checkpoint_is_trained_again(tmp_path: Path) -> None:
    """Without that checkpoint the run is not finished."""
    whole = trainer_in(tmp_path)
    whole.train()
    damaged = tmp_path / f"checkpoint-{STEPS}" / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    again = trainer_in(tmp_path)
    with pytest.warns(UserWarning, match="set aside"):
        again.train(resume_from_checkpoint="auto")
    assert again.state.global_step == STEPS
    assert same_weights(weights(again), weights(whole))
