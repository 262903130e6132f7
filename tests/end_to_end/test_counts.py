"""Counts of tokens and floating-point operations."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hexloop import Trainer
from tests.end_to_end.small.models import Net, net, rows
from tests.end_to_end.small.trainers import history, same_weights, small_trainer, weights

PER_SAMPLE = 2 * (4 * 8 + 8 * 1) + 2 * (4 * 8 + 8 * 1 + 8 * 1)
"""Two per multiplication: both layers' forward, their weights' gradients, and the gradient of the second's input."""


class Words(nn.Module):
    main_input_name = "words"

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 1)

    def forward(self, words: Tensor, labels: Tensor | None = None, attention_mask: Tensor | None = None) -> Any:
        return {"loss": self.table(words).square().mean()}


def texts(masked: bool) -> list[dict[str, Any]]:
    padded = [torch.tensor([1, 2, 3, 0, 0]), torch.tensor([4, 0, 0, 0, 0])] * 4
    return [{"words": each, **({"attention_mask": (each != 0).long()} if masked else {})} for each in padded]


def counted(folder: Path, how: Any, masked: bool = False, padding: int | None = None) -> int:
    parts = {
        "model": Words(),
        "train_dataset": texts(masked),
        "processing_class": None if padding is None else SimpleNamespace(pad_token_id=padding),
    }
    trainer = small_trainer(folder, parts=parts, include_num_input_tokens_seen=how, remove_unused_columns=False)
    trainer.train()
    return int(trainer.state.num_input_tokens_seen)


@pytest.mark.parametrize(
    ("how", "expected"), [(True, 40), ("all", 40), (False, 0), ("no", 0), ("non_padding", 16)], ids=str
)
def test_tokens_are_counted_in_every_way(tmp_path: Path, how: Any, expected: int) -> None:
    """True and False mean "all" and "no"."""
    assert counted(tmp_path, how, masked=True) == expected


def test_the_processing_class_defines_padding(tmp_path: Path) -> None:
    """It is used if there is no attention mask."""
    assert counted(tmp_path, "non_padding", padding=0) == 16


def test_without_a_padding_token_all_tokens_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The logger warns once, and says what to provide."""
    assert counted(tmp_path, "non_padding") == 40
    assert ["pad_token_id" in record.getMessage() for record in caplog.records] == [True]


def test_without_the_main_input_none_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The logger warns once, and says what to provide."""
    small_trainer(tmp_path, include_num_input_tokens_seen="all").train()

    assert ["main_input_name" in record.getMessage() for record in caplog.records] == [True]


def test_a_plain_model_is_measured(tmp_path: Path) -> None:
    """The counter of torch measures the first micro-batch, and every sample counts as much."""
    trainer = small_trainer(tmp_path, num_train_epochs=3)
    metrics = trainer.train().metrics

    assert metrics["total_flos"] == trainer.state.total_flos == 48 * PER_SAMPLE


def test_a_model_with_its_own_count_is_used(tmp_path: Path) -> None:
    """Its method is called with every micro-batch, and an overridden method of the Trainer takes precedence."""

    class Saying(Net):
        def floating_point_ops(self, inputs: Any) -> float:
            return 10.0 * len(inputs["x"])

    class Overriding(Trainer):
        def floating_point_ops(self, inputs: Any) -> float:
            return 2 * super().floating_point_ops(inputs)

    told = small_trainer(tmp_path, parts={"model": net(kind=Saying)}).train().metrics["total_flos"]
    overridden = small_trainer(tmp_path, Overriding, {"model": net(kind=Saying)}).train().metrics["total_flos"]

    assert (told, overridden) == (160.0, 320.0)


def test_operations_can_be_computed_without_a_run(tmp_path: Path) -> None:
    """Three times the forward pass; no random number is drawn."""
    trainer = small_trainer(tmp_path, parts={"model": net(dropout=0.5)})
    batch = {name: torch.stack([row[name] for row in rows(4)]) for name in ("x", "labels")}
    before = torch.get_rng_state()

    assert trainer.floating_point_ops(batch) == 4 * 3 * 2 * (4 * 8 + 8)
    assert torch.equal(torch.get_rng_state(), before)


def test_counts_are_checkpointed_and_resumed(tmp_path: Path) -> None:
    """A resumed run uses the stored measurement, and finishes like an uninterrupted one."""
    saving: dict[str, Any] = {"save_strategy": "steps", "save_steps": 3, "num_train_epochs": 2}
    whole = small_trainer(tmp_path, **saving)
    whole.train()
    again = small_trainer(tmp_path, **saving)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))

    assert history(again) == history(whole)
    assert again.state.total_flos == 32 * PER_SAMPLE


def test_stored_counts_are_up_to_date(tmp_path: Path) -> None:
    """`store_flos` updates them during a run."""
    trainer = small_trainer(tmp_path)
    seen: list[float] = []
    for event in trainer.stream():
        if type(event).__name__ == "StepEnded":
            trainer.store_flos()
            seen.append(trainer.state.total_flos)

    assert seen == [4 * step * PER_SAMPLE for step in range(1, 5)]


def test_measuring_changes_nothing(tmp_path: Path) -> None:
    """A model with its own count is not measured, and finishes with the same weights."""

    class Saying(Net):
        def floating_point_ops(self, inputs: Any) -> float:
            return 0.0

    measured = small_trainer(tmp_path, parts={"model": net(dropout=0.3)})
    told = small_trainer(tmp_path, parts={"model": net(dropout=0.3, kind=Saying)})
    measured.train()
    told.train()

    assert same_weights(weights(measured), weights(told))
