"""Fine-tuning in several processes: the first one tokenizes, and the losses are those of one process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hexloop import SFTConfig, SFTTrainer
from tests.end_to_end.fine_tuning.small import conversations, llama, tokenizer
from tests.engines.processes import in_processes


def losses(folder: Path, rows: int, **given: Any) -> list[float]:
    """Train the tiny model on conversations; return the losses. rows: of a micro-batch of each process."""
    arguments = SFTConfig(
        str(folder / "run"),
        max_steps=3,
        per_device_train_batch_size=rows,
        logging_steps=1,
        learning_rate=1e-2,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        assistant_only_loss=True,
        **given,
    )
    trainer = SFTTrainer(llama(), arguments, train_dataset=conversations(24), processing_class=tokenizer())
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize(
    "options", [{}, pytest.param({"packing": True, "max_length": 64}, marks=pytest.mark.matrix)], ids=["", "packed"]
)
def test_two_processes_train_as_one(options: dict[str, Any], tmp_path: Path) -> None:
    """With kept tokens or without, two ranks have the losses of one process with batches twice as large."""
    alone = losses(tmp_path / "alone", 4, **options)
    cache = str(tmp_path / "tokens")

    def share(rank: int) -> list[list[float]]:
        ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
        os.environ.update({name: str(value) for name, value in ranks.items()})
        return [
            losses(tmp_path / "lazy", 2, **options),
            losses(tmp_path / "kept", 2, token_cache=cache, dataset_num_proc=1, **options),
        ]

    found = in_processes(2, share)
    for each in found:
        if isinstance(each, BaseException):
            raise each
        for of_run in each:
            assert of_run == pytest.approx(alone, rel=1e-5)
    assert len(list(Path(cache).rglob("*.tokens"))) == 1
