"""A run resumed with another number of processes keeps the samples of an optimizer step.

The checkpoint is edited as if several processes had written it; tests/engines covers real ones.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from hexloop import Trainer
from hexloop.adapters.storage.local import LocalStorage
from hexloop.app.run.step_sizes import SavedStep
from hexloop.domain.checkpoints.manifest import MANIFEST
from hexloop.domain.checkpoints.reading import read_manifest
from hexloop.domain.errors import CheckpointError, ConfigurationError
from tests.end_to_end.small.documents import TOGETHER, document_of, replace_document
from tests.end_to_end.small.trainers import history, same_weights, small_trainer, weights

pytestmark = pytest.mark.filterwarnings("ignore:The run that resumes from:UserWarning")
NAME = "checkpoint-2"


def saved(folder: Path, processes: int, samples: int, asked: int = 1) -> Any:
    """Run four steps, and edit the checkpoint of the second as if `processes` had written it with that argument."""
    whole = small_trainer(folder, per_device_train_batch_size=samples, max_steps=4, save_strategy="steps", save_steps=2)
    whole.train()
    storage = LocalStorage(folder)
    setup = document_of(folder / NAME, "run_setup")
    setup |= {"batch_size": samples // asked, "asked_accumulation": asked}
    replace_document(folder / NAME, "run_setup", json.dumps(setup).encode())
    manifest = read_manifest(storage, NAME)
    storage.remove(f"{NAME}/{MANIFEST}")
    files = {**manifest.files, TOGETHER: storage.digest(f"{NAME}/{TOGETHER}")}
    storage.write(f"{NAME}/{MANIFEST}", [evolve(manifest, world_size=processes, files=files).to_json()])
    return whole


def resumed(folder: Path, **given: Any) -> Any:
    """Resume from it in one process."""
    trainer = small_trainer(folder, **{"max_steps": 4, **given})
    trainer.train(resume_from_checkpoint=str(folder / NAME))
    return trainer


def test_accumulation_compensates_for_fewer_processes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The run learns the same; the log says why; afterwards the arguments are the user's again."""
    whole = saved(tmp_path, processes=2, samples=8)
    accumulated = []

    class Watching(Trainer):
        def get_train_dataloader(self) -> Any:
            accumulated.append(self.args.gradient_accumulation_steps)
            return super().get_train_dataloader()

    trainer = small_trainer(tmp_path, Watching, per_device_train_batch_size=4, max_steps=4)
    trainer.train(resume_from_checkpoint=str(tmp_path / NAME))
    assert accumulated == [2]
    assert trainer.args.gradient_accumulation_steps == 1
    assert [entry["loss"] for entry in history(trainer)[:-1]] == pytest.approx(
        [entry["loss"] for entry in history(whole)[:-1]], rel=1e-6
    )
    assert [record.message for record in caplog.records if "keep that size" in record.message] == [
        "The checkpoint's run had optimizer steps of 8 samples; to keep that size with world_size=1, "
        "gradient_accumulation_steps is 2 instead of 1."
    ]


def test_a_compensated_run_compensates_again(tmp_path: Path) -> None:
    """Its own checkpoint has the same number of processes, but another accumulation than the arguments."""
    saved(tmp_path, processes=2, samples=8)
    first = resumed(tmp_path, per_device_train_batch_size=4, save_strategy="steps", save_steps=1)
    again = small_trainer(tmp_path, per_device_train_batch_size=4, max_steps=4)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert same_weights(weights(first), weights(again))


def test_indivisible_sizes_are_refused_with_alternatives(tmp_path: Path) -> None:
    """Before the first step, with the numbers of processes and batch sizes that give the same steps."""
    saved(tmp_path, processes=4, samples=12)
    with pytest.raises(ConfigurationError) as raised:
        resumed(tmp_path, per_device_train_batch_size=5)
    assert str(raised.value) == (
        "The checkpoint's run had optimizer steps of 12 samples, which are not a multiple of the 5 samples of a batch "
        "with world_size=1 and per_device_train_batch_size=5; choose per_device_train_batch_size=1, 2, 3, 4, 6 or 12, "
        "or accept steps of another size by resume_despite=['batch_size']. For help, "
        "see docs/troubleshooting.md#resume-refused."
    )
    assert resumed(tmp_path, per_device_train_batch_size=6).state.global_step == 4
    assert resumed(tmp_path, per_device_train_batch_size=5, resume_despite=["batch_size"]).state.global_step == 4


def test_an_explicit_other_batch_size_is_a_difference(tmp_path: Path) -> None:
    """An explicit accumulation, or another batch size with the same number of processes, is a difference."""
    saved(tmp_path, processes=2, samples=8)
    with pytest.raises(CheckpointError, match="steps had 8 samples, and those of this run have 12"):
        resumed(tmp_path, per_device_train_batch_size=4, gradient_accumulation_steps=3)
    saved(tmp_path / "alone", processes=1, samples=8)
    with pytest.raises(CheckpointError, match="steps had 8 samples, and those of this run have 4"):
        resumed(tmp_path / "alone", per_device_train_batch_size=4)


@pytest.mark.parametrize(
    ("processes", "asked", "expected"),
    [(2, 1, False), (1, 1, True), (4, 1, True), (4, 2, False)],
)
def test_explicit_equal_settings_are_accepted(processes: int, asked: int, expected: bool) -> None:
    """A step of two processes with one batch each."""
    assert SavedStep(8, processes=2, accumulation=1, asked=1).only_processes_differ(processes, asked) is expected


def test_a_redistributed_step_returns_to_its_number_of_processes() -> None:
    """One process had resumed a run of two."""
    assert SavedStep(8, processes=1, accumulation=2, asked=1).only_processes_differ(1, asked=1)
