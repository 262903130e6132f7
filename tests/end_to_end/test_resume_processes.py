"""A run in another number of processes than its checkpoint's keeps the samples of an optimizer step.

The checkpoint is made to say that several processes wrote it; what real ones do is shown in tests/engines.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from hexloop import Trainer
from hexloop.adapters.contents import documents
from hexloop.adapters.storage.local import LocalStorage
from hexloop.app.run.compatibility import SavedStep
from hexloop.domain.checkpoints.manifest import MANIFEST
from hexloop.domain.checkpoints.reading import read_manifest
from hexloop.domain.errors import CheckpointError, ConfigurationError
from tests.end_to_end.small.trainers import history, same_weights, small_trainer, weights

pytestmark = pytest.mark.filterwarnings("ignore:The run that resumes from:UserWarning")
NAME = "checkpoint-2"


def saved(folder: Path, processes: int, samples: int, asked: int = 1) -> Any:
    """A run of four steps, and its checkpoint of the second as `processes` with that argument would have written it."""
    whole = small_trainer(folder, per_device_train_batch_size=samples, max_steps=4, save_strategy="steps", save_steps=2)
    whole.train()
    storage = LocalStorage(folder)
    setup = json.loads((folder / NAME / "run_setup.json").read_text())
    setup |= {"batch_size": samples // asked, "asked_accumulation": asked}
    manifest = read_manifest(storage, NAME)
    for path in ("run_setup.json", MANIFEST):
        storage.remove(f"{NAME}/{path}")
    stored = storage.write(f"{NAME}/run_setup.json", [documents.to_bytes(setup)])
    files = {**manifest.files, "run_setup.json": stored}
    storage.write(f"{NAME}/{MANIFEST}", [evolve(manifest, world_size=processes, files=files).to_json()])
    return whole


def resumed(folder: Path, **given: Any) -> Any:
    """Resume from it in one process."""
    trainer = small_trainer(folder, **{"max_steps": 4, **given})
    trainer.train(resume_from_checkpoint=str(folder / NAME))
    return trainer


def test_the_accumulation_makes_up_for_fewer_processes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The run learns what it would have; a line says why; afterwards the arguments are those of the user again."""
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


def test_a_run_that_has_made_up_for_it_does_so_again(tmp_path: Path) -> None:
    """Its own checkpoint is of as many processes, but of another accumulation than the arguments say."""
    saved(tmp_path, processes=2, samples=8)
    first = resumed(tmp_path, per_device_train_batch_size=4, save_strategy="steps", save_steps=1)
    again = small_trainer(tmp_path, per_device_train_batch_size=4, max_steps=4)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert same_weights(weights(first), weights(again))


def test_what_does_not_divide_is_refused_with_what_does(tmp_path: Path) -> None:
    """Before the first step, with the numbers of processes and the sizes of batches that give the same steps."""
    saved(tmp_path, processes=4, samples=12)
    with pytest.raises(ConfigurationError) as raised:
        resumed(tmp_path, per_device_train_batch_size=5)
    assert str(raised.value) == (
        "The checkpoint's run had optimizer steps of 12 samples, which are not a multiple of the 5 samples of a batch "
        "with world_size=1 and per_device_train_batch_size=5; choose per_device_train_batch_size=1, 2, 3, 4, 6 or 12, "
        "or accept steps of another size by resume_despite=['batch_size']."
    )
    assert resumed(tmp_path, per_device_train_batch_size=6).state.global_step == 4
    assert resumed(tmp_path, per_device_train_batch_size=5, resume_despite=["batch_size"]).state.global_step == 4


def test_another_batch_on_purpose_is_a_difference_as_ever(tmp_path: Path) -> None:
    """An explicit accumulation, or another batch size in as many processes, is a difference."""
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
def test_who_asks_for_the_same_only_processes_differ(processes: int, asked: int, expected: bool) -> None:
    """A step of two processes, one batch each."""
    assert SavedStep(8, processes=2, accumulation=1, asked=1).only_processes_differ(processes, asked) is expected


def test_a_redistributed_step_is_redistributed_in_as_many_processes() -> None:
    """One process had taken over from two."""
    assert SavedStep(8, processes=1, accumulation=2, asked=1).only_processes_differ(1, asked=1)
