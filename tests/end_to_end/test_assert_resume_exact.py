"""`assert_resume_exact` accepts runs that resume exactly, and reports where others diverge."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hexloop import Trainer
from hexloop.adapters.storage.local import LocalStorage
from hexloop.testing import StreamedBatches, assert_resume_exact, simulated_run
from tests.end_to_end.small.models import FEATURES, Noisy, net
from tests.end_to_end.small.trainers import small_trainer

ROOT = Path(__file__).parents[2]
LINE = [((x / 8,), x / 4 + 1) for x in range(11)]


def pure_fakes(folder: str) -> Any:
    return simulated_run(LINE, batch_size=2, storage=LocalStorage(folder))


class Drawing:
    """Rows with noise from a generator that is not checkpointed."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(3)

    def __iter__(self) -> Iterator[Any]:
        for features, target in LINE:
            yield features, target + float(self.generator.normal())


def impure_fakes(folder: str) -> Any:
    return simulated_run(LINE, batches=StreamedBatches(Drawing(), 2), max_steps=8, storage=LocalStorage(folder))


def pure_trainer(folder: str) -> Trainer:
    trainer: Trainer = small_trainer(
        Path(folder), parts={"model": net(0.3), "train_dataset": Noisy(14)}, num_train_epochs=2
    )
    return trainer


class Impure(Noisy):
    """Its augmentation draws from a generator that checkpoints do not contain."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.generator = np.random.default_rng(3)

    def __getitem__(self, index: int) -> Any:
        row = super().__getitem__(index)
        return {**row, "x": row["x"] + torch.from_numpy(self.generator.normal(size=FEATURES)).float()}


def impure_trainer(folder: str) -> Trainer:
    trainer: Trainer = small_trainer(Path(folder), parts={"train_dataset": Impure(14)}, num_train_epochs=2)
    return trainer


SHARED = np.random.default_rng(3)


def unsteady_fakes(folder: str) -> Any:
    """A job whose runs differ within one process."""
    rows = [(features, target + float(SHARED.normal())) for features, target in LINE]
    return simulated_run(rows, batch_size=2, storage=LocalStorage(folder))


def test_fakes_that_resume_exactly_pass() -> None:
    """Resumed at every step, in this process."""
    assert_resume_exact(pure_fakes, stops=[*range(1, 18), (2, 3), (5, 11, 12)], fresh_process=False)


def test_a_trainer_that_resumes_exactly_passes() -> None:
    """Resumed in a new process, which imports the job."""
    assert_resume_exact(pure_trainer, stops=[5])


def test_unsaved_state_of_a_trainer_is_reported() -> None:
    """The message names the step, the first difference, the tensor, its size, and what to do."""
    with pytest.raises(AssertionError) as raised:
        assert_resume_exact(impure_trainer, stops=[5], fresh_process=False)
    text = str(raised.value)

    assert (
        "after step 5 and resumed differs from the uninterrupted run from step 6 on: the batch differs in 'x';" in text
    )
    assert "the loss is " in text
    assert "At the end model: layers.0.bias differs in 8 of 8 values, by at most " in text
    assert "state_dict" in text


@pytest.mark.matrix
def test_unsaved_state_is_found_at_a_random_step() -> None:
    """If the caller gives no steps, a few are drawn; in a new process, with fakes."""
    with pytest.raises(AssertionError, match=r"from step \d on: the batch differs; .*At the end model: "):
        assert_resume_exact(impure_fakes)


def test_a_nondeterministic_job_is_reported_as_such() -> None:
    """Its uninterrupted runs already differ at the first step."""
    with pytest.raises(AssertionError, match=r"The job is not deterministic: two runs .* differ at step 1, before any"):
        assert_resume_exact(unsteady_fakes, stops=[9], fresh_process=False)


def test_a_nested_function_runs_in_this_process() -> None:
    """A new process cannot import it; asking for one is refused."""

    def job(folder: str) -> Any:
        return pure_fakes(folder)

    assert_resume_exact(job, stops=[4])
    with pytest.raises(ValueError, match="needs a job that a new process can import"):
        assert_resume_exact(job, stops=[4], fresh_process=True)


@pytest.mark.parametrize("stops", [[0], [18], [3, (4, 18)], []])
def test_steps_that_the_run_does_not_have_are_refused(stops: Any) -> None:
    """A run of 18 steps can be interrupted after steps 1 to 17."""
    with pytest.raises(ValueError, match="The job takes 18 steps"):
        assert_resume_exact(pure_fakes, stops=stops)


def test_a_run_that_saves_nothing_is_refused() -> None:
    """There is nothing to resume from."""
    with pytest.raises(ValueError, match="use a CheckpointStore on the folder"):
        assert_resume_exact(lambda folder: simulated_run(LINE), stops=[1])


WITHOUT_TORCH = """
import sys
sys.modules.update(dict.fromkeys(["torch", "numpy", "accelerate", "pytest", "hypothesis", "safetensors"]))
from hexloop.testing import LocalStorage, assert_resume_exact, simulated_run
LINE = [((x / 8,), x / 4 + 1) for x in range(11)]
assert_resume_exact(lambda folder: simulated_run(LINE, storage=LocalStorage(folder)))
"""


def test_fakes_need_no_framework() -> None:
    """It works where torch and numpy cannot be imported."""
    ended = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
