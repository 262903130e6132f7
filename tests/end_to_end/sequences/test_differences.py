"""Every difference of Seq2SeqTrainer from transformers in docs/differences.md, shown with both libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.nn.functional import cross_entropy

import hexloop
from tests.end_to_end.sequences.models import digits, padded, t5
from tests.end_to_end.sequences.test_parity import trainer_of

pytestmark = pytest.mark.filterwarnings("ignore:Using the model-agnostic default `max_length`:UserWarning")

LIBRARIES = (hexloop, transformers)


@torch.no_grad()
def losses_by_batch(sizes: list[int]) -> list[float]:
    model, rows, found = t5().train(False), digits(sum(sizes)), []
    for size in sizes:
        batch, rows = rows[:size], rows[size:]
        found.append(float(model(**padded(batch)).loss))
    return found


def test_a_short_last_batch_is_weighted_by_its_rows(tmp_path: Path) -> None:
    """Transformers' Seq2SeqTrainer gives it the weight of a full one."""
    first, last = losses_by_batch([4, 1])
    ours, theirs = (
        trainer_of(library, tmp_path, t5(), {"generation_max_length": 8}, eval_dataset=digits(5)).evaluate()
        for library in LIBRARIES
    )
    assert ours["eval_loss"] == pytest.approx((4 * first + last) / 5, rel=1e-5)
    assert theirs["eval_loss"] == pytest.approx((first + last) / 2, rel=1e-5)
    assert abs(ours["eval_loss"] - theirs["eval_loss"]) > 1e-3


def test_evaluating_does_not_change_the_generation_config(tmp_path: Path) -> None:
    """Transformers writes defaults into the model's config, so later batches are a token shorter than the first."""
    lengths = []
    for library in LIBRARIES:
        trainer = trainer_of(library, tmp_path, t5(), {}, compute_metrics=None)
        predicted = [trainer.predict(digits(4)).predictions.shape[1] for _ in range(2)]
        lengths.append((predicted, trainer.model.generation_config.max_length))
    assert lengths == [([21, 21], None), ([21, 20], 20)]


def test_the_loss_during_generation_is_the_training_loss(tmp_path: Path) -> None:
    """With a loss function, transformers' loss in evaluation is the model's own."""

    def double(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        return 2 * cross_entropy(outputs.logits.flatten(0, 1), labels.flatten())

    def collate(rows: Any) -> Any:
        batch = padded(rows)
        return batch | {"decoder_input_ids": t5().prepare_decoder_input_ids_from_labels(batch["labels"])}

    ours, theirs = (
        trainer_of(
            library,
            tmp_path,
            t5(),
            {"generation_max_length": 8},
            data_collator=collate,
            eval_dataset=digits(4),
            compute_loss_func=double,
        ).evaluate()["eval_loss"]
        for library in LIBRARIES
    )
    assert ours == pytest.approx(2 * theirs, rel=1e-5)
