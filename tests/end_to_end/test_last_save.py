"""A run whose last save fails is unfinished; a program may exit without closing a run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from hexloop.adapters.storage.local import LocalStorage
from hexloop.domain.errors import StorageError
from hexloop.ports.storage import Stored
from tests.end_to_end.small.trainers import same_weights, small_trainer, weights

SAVES: dict[str, Any] = {"max_steps": 6, "save_strategy": "steps", "save_steps": 2}


class FailingAt(LocalStorage):
    """Cannot write one checkpoint."""

    failing = ""

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> Stored:
        """Fail for the checkpoint named."""
        if self.failing in path:
            raise StorageError("The disk said no.")
        return super().write(path, chunks)


def storage_failing_at(folder: Path, name: str) -> LocalStorage:
    """Return a folder in which the checkpoint `name` cannot be written."""
    storage = FailingAt(folder)
    storage.failing = name
    return storage


def test_a_run_whose_last_save_failed_resumes(tmp_path: Path) -> None:
    """Its exit code reports the failed save, and the same command trains the missing steps once the disk works."""
    whole = small_trainer(tmp_path / "whole", **SAVES)
    whole.train()
    failed = small_trainer(
        tmp_path / "recovered", parts={"storage": storage_failing_at(tmp_path / "recovered", "point-6")}, **SAVES
    )
    with pytest.warns(UserWarning, match="checkpoint-6 was not saved"):
        failed.train()
    assert (failed.outcome.save_failed, failed.outcome.exit_code, failed.outcome.checkpoint) == (True, 1, None)
    assert not (tmp_path / "recovered" / ".hexloop/finished.json").exists()
    again = small_trainer(tmp_path / "recovered", **SAVES)
    again.train(resume_from_checkpoint="auto")
    assert (again.outcome.save_failed, again.outcome.exit_code, again.outcome.checkpoint) == (False, 0, "checkpoint-6")
    assert same_weights(weights(again), weights(whole))
    idle = small_trainer(tmp_path / "recovered", **SAVES)
    idle.train(resume_from_checkpoint="auto")
    assert idle.outcome.exit_code == 0


def test_a_failed_save_is_replaced_by_a_later_one(tmp_path: Path) -> None:
    """A later checkpoint replaces it, so the run is finished."""
    trainer = small_trainer(tmp_path, parts={"storage": storage_failing_at(tmp_path, "point-4")}, **SAVES)
    with pytest.warns(UserWarning, match="checkpoint-4 was not saved"):
        trainer.train()
    assert (trainer.outcome.save_failed, trainer.outcome.exit_code) == (False, 0)
    assert (tmp_path / ".hexloop/finished.json").exists()


PROGRAM = """
import hexloop.app.run.driving
from pathlib import Path
from hexloop.domain.events import Saved
from tests.end_to_end.small.trainers import small_trainer

run = small_trainer(Path({folder!r}), max_steps=6, save_strategy="steps", save_steps=2, disable_tqdm=False).stream()
for event in run:
    if isinstance(event, Saved):
        break
print("over")
"""


@pytest.mark.matrix
def test_a_program_may_exit_with_an_unclosed_run(tmp_path: Path) -> None:
    """It exits silently, and the save in flight is complete."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(folder=str(tmp_path / "left"))],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "over" in ended.stdout
    assert "Traceback" not in ended.stderr
    assert "ignored" not in ended.stderr
    resumed = small_trainer(tmp_path / "left", **SAVES)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.outcome.exit_code == 0
