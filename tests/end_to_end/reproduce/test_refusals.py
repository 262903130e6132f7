"""What cannot be reproduced is refused, with the way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import IterableDataset

from hexloop import Trainer, TrainingArguments
from hexloop.domain.errors import CheckpointError, ConfigurationError, DataError
from tests.end_to_end.reproduce.script import Net, Rows, Stream


def trainer(folder: Path, data: Any = None, **arguments: Any) -> Trainer:
    given = {"reproduce": "transformers", "max_steps": 4, "save_steps": 2, "use_cpu": True, "disable_tqdm": True}
    args = TrainingArguments(str(folder), per_device_train_batch_size=4, report_to=[], **{**given, **arguments})
    return Trainer(Net(0.1), args, train_dataset=Rows("row", 30) if data is None else data)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"reproduce": "accelerate"}, "choose 'transformers'"),
        ({"loss_weighting": "exact"}, "leave loss_weighting out"),
        ({"keyed_data_randomness": True}, "leave one of them out"),
        ({"resume_despite": ["batch_size"]}, "resume with the settings of the checkpoint"),
        ({"resume_despite": ["data_length"]}, "resume with the settings of the checkpoint"),
    ],
)
def test_conflicting_arguments(arguments: dict[str, Any], problem: str) -> None:
    """Arguments that contradict it are refused when they are created."""
    with pytest.raises(ConfigurationError, match=problem):
        TrainingArguments("out", **{"reproduce": "transformers", **arguments})


def test_weighting_is_implied() -> None:
    """It implies transformers' weighting of losses; without it, losses are exact."""
    assert TrainingArguments("out", reproduce="transformers").loss_weighting == "reference"
    assert TrainingArguments("out").loss_weighting == "exact"


def test_batch_size_search(tmp_path: Path) -> None:
    """A search for a batch size starts again in another way than in transformers."""
    with pytest.raises(ConfigurationError, match="set per_device_train_batch_size to one that fits"):
        trainer(tmp_path, auto_find_batch_size=True)


def test_other_readers(tmp_path: Path) -> None:
    """A run does not resume with another number of workers, because their streams would be others."""
    trainer(tmp_path).train()
    with pytest.raises(CheckpointError, match=r"read with 1 processes, 0 loader workers .* reads with 1 processes, 2"):
        trainer(tmp_path, dataloader_num_workers=2).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


@pytest.mark.parametrize("before", [None, "transformers"])
def test_with_and_without(before: str | None, tmp_path: Path) -> None:
    """A run does not resume from a checkpoint of a run whose samples have the other order."""
    trainer(tmp_path, reproduce=before).train()
    after = "transformers" if before is None else None
    with pytest.raises(CheckpointError, match=f"Resume with reproduce={before!r}"):
        trainer(tmp_path, reproduce=after).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def test_steps_over_the_end_of_a_stream(tmp_path: Path) -> None:
    """Micro-batches that transformers would add to the next epoch's first step are refused."""
    stream: IterableDataset[Any] = Stream("row", 20)
    with pytest.raises(DataError, match="ended after 1 of the 2 micro-batches"):
        trainer(tmp_path, stream, gradient_accumulation_steps=2, max_steps=5).train()
    trainer(tmp_path / "whole", Stream("row", 24), gradient_accumulation_steps=2, max_steps=5).train()
