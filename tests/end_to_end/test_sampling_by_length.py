"""Sampling by the lengths of the samples: `train_sampling_strategy="batch_rebalance"`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers.trainer_pt_utils import BatchRebalanceSampler

from hexloop import Trainer
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.order import batch_cost
from tests.end_to_end.small.models import rows
from tests.end_to_end.small.trainers import small_trainer


def lengths_in_batches(folder: Path, lengths: list[int], **given: Any) -> list[list[int]]:
    """Return the lengths of the samples of each micro-batch of a run of one epoch."""
    seen: list[list[int]] = []

    class Lengths(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
            seen.append(labels.tolist())
            return {"loss": (self.weight * labels.float().mean()) ** 2}

    def collate(features: list[dict[str, Any]]) -> dict[str, Tensor]:
        labels = torch.tensor([len(feature["input_ids"]) for feature in features])
        return {"input_ids": torch.zeros(len(features), int(labels.max())).long(), "labels": labels}

    data = [{"input_ids": [1] * length} for length in lengths]
    parts = {"model": Lengths(), "train_dataset": data, "data_collator": collate}
    small_trainer(folder, parts=parts, train_sampling_strategy="batch_rebalance", **given).train()
    return seen


@pytest.mark.parametrize("workers", [0, 2])
def test_batch_rebalance_divides_steps_by_cost(tmp_path: Path, workers: int) -> None:
    """A step has as many samples as always, each once an epoch, in micro-batches whose padded sizes are similar.

    The most expensive micro-batch is never more expensive than with transformers' sampler.
    """
    lengths = [int(length) for length in np.random.default_rng(0).integers(1, 60, 50)]
    seen = lengths_in_batches(tmp_path, lengths, gradient_accumulation_steps=4, dataloader_num_workers=workers)
    steps = [seen[start : start + 4] for start in range(0, len(seen), 4)]

    assert sorted(length for batch in seen for length in batch) == sorted(lengths)
    assert [sum(map(len, step)) for step in steps] == [16, 16, 16, 2]
    assert {len(batch) for batch in seen} > {4}
    for step in steps[:3]:
        together = [length for batch in step for length in batch]
        theirs = BatchRebalanceSampler(together, 16, dp_size=1, grad_accum=4, shuffle=False)
        most = max(batch_cost(len(each), max(together[index] for index in each)) for each in theirs)
        costs = [batch_cost(len(batch), max(batch)) for batch in step]
        assert max(costs) <= most
        assert costs == sorted(costs, reverse=True)


def test_batch_rebalance_follows_the_batch_size_that_fits(tmp_path: Path) -> None:
    """With `auto_find_batch_size`, steps have the samples of the size that was found."""
    attempts: list[int] = []

    class Finding(Trainer):
        def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
            attempts.append(self._train_batch_size)
            if self._train_batch_size > 4:
                raise RuntimeError("CUDA out of memory.")
            return super().training_step(*args, **kwargs)

    data = [{**row, "length": 1 + index} for index, row in enumerate(rows(16))]
    trainer = small_trainer(
        tmp_path, Finding, {"train_dataset": data}, train_sampling_strategy="batch_rebalance",
        per_device_train_batch_size=8, gradient_accumulation_steps=2, auto_find_batch_size=True,
    )  # fmt: skip
    trainer.train()

    assert attempts[-4:] == [4] * 4
    assert trainer.state.global_step == 2


def test_an_overridden_sampler_may_pass_the_standard_one_on(tmp_path: Path) -> None:
    """The batches stay balanced; transformers' own BatchRebalanceSampler is used as it is."""

    class Passing(Trainer):
        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            return super()._get_train_sampler(train_dataset)

    class Own(Trainer):
        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            return BatchRebalanceSampler([row["length"] for row in data], 8, dp_size=1, grad_accum=2)

    data: list[dict[str, Any]] = [{**row, "length": 40 if index % 4 == 0 else 1} for index, row in enumerate(rows(16))]
    sizes = {}
    for kind in (Trainer, Passing, Own):
        given = {"train_sampling_strategy": "batch_rebalance", "gradient_accumulation_steps": 2}
        loader = small_trainer(tmp_path, kind, {"train_dataset": data}, **given).get_train_dataloader()
        sizes[kind] = [len(batch["x"]) for batch in loader]

    assert sizes[Passing] == sizes[Trainer] != [4] * 4
    assert [sum(sizes[Own][:2]), sum(sizes[Own][2:])] == [8, 8]
    assert sizes[Own] != [4] * 4


@pytest.mark.parametrize("strategy", ["group_by_length", "batch_rebalance"])
def test_sampling_by_length_needs_lengths(tmp_path: Path, strategy: str) -> None:
    """The error names the strategy and the columns."""
    with pytest.raises(ConfigurationError, match=f"{strategy}.*neither the column 'length' nor 'input_ids'"):
        small_trainer(tmp_path, train_sampling_strategy=strategy).train()
