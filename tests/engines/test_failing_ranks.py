"""What one of several real processes does, or suffers, the others learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hexloop import TrainerCallback
from hexloop.adapters.storage.local import LocalStorage
from hexloop.domain.checkpoints.reading import checkpoint_steps, verify
from tests.engines.several.training import Training, ended, fresh, run


class Fails(TrainerCallback):
    """A bug that rank 1 alone has."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if args.process_index == 1 and state.global_step == 6:
            raise ValueError("a bug of its own")


class AsksToStop(TrainerCallback):
    """Rank 1 alone is asked to stop."""

    trainer: Any = None

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if args.process_index == 1 and state.global_step == 5:
            self.trainer.request_stop("the machine is wanted", save=True)


def test_what_goes_wrong_on_one_rank_is_told_by_all(tmp_path: Path) -> None:
    """The others learn at once which rank it was and why, and what was saved is whole."""
    training = Training(
        processes=2, callbacks=(Fails,), arguments={"save_strategy": "steps", "save_steps": 4, "save_async": False}
    )
    first, second = ended(training, fresh(tmp_path / "run"))
    assert second == "ValueError: a bug of its own"
    assert first.startswith("CollectiveError: Rank 0 waited for")
    assert "rank 1 failed: ValueError: a bug of its own" in first
    storage = LocalStorage(tmp_path / "run")
    assert [verify(storage, f"checkpoint-{step}").manifest.step for step in checkpoint_steps(storage)] == [4]


@pytest.mark.matrix
def test_processes_that_are_not_alike_are_refused(tmp_path: Path) -> None:
    """Every rank says which of them has which argument otherwise, before the first step."""
    training = Training(processes=2, of_rank_1={"learning_rate": 0.5, "seed": 7})
    for said in ended(training, fresh(tmp_path / "run")):
        assert said.startswith("ConfigurationError: 2 problems")
        assert "Rank 1 has learning_rate=0.5, but rank 0 has 0.01" in said
        assert "Rank 1 has seed=7, but rank 0 has 42" in said


@pytest.mark.matrix
def test_a_stop_that_one_rank_is_asked_for_is_everybody_s(tmp_path: Path) -> None:
    """All stop at the same step, at most two boundaries later, with a checkpoint of it, from which the run goes on."""
    whole = run(Training(processes=2), fresh(tmp_path / "whole"))
    training = Training(processes=2, callbacks=(AsksToStop,), arguments={"save_strategy": "steps", "save_steps": 100})
    run(training, fresh(tmp_path / "run"))
    (step,) = checkpoint_steps(LocalStorage(tmp_path / "run"))
    assert step in (6, 7)
    resumed = run(
        Training(processes=2, resume=str(tmp_path / "run" / f"checkpoint-{step}")), fresh(tmp_path / "resumed")
    )
    assert resumed.logged == whole.logged
