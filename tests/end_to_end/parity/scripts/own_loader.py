"""A subclass whose `get_train_dataloader` oversamples rare classes, with its own sampler and generator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, WeightedRandomSampler

from tests.end_to_end.parity.data import samples_for
from tests.end_to_end.parity.models import make_model
from tests.end_to_end.parity.scripts.results import Results, train_evaluate_predict


def main(library: Any, folder: Path, callbacks: list[Any], **options: Any) -> Results:
    class BalancingTrainer(library.Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            labels = self.train_dataset.columns["labels"]
            weights = (1.0 / torch.bincount(labels))[labels]
            generator = torch.Generator().manual_seed(3)
            sampler = WeightedRandomSampler(weights.tolist(), num_samples=40, generator=generator)
            return DataLoader(
                self.train_dataset,
                batch_size=self.args.train_batch_size,
                sampler=sampler,
                collate_fn=self.data_collator,
            )

    library.set_seed(7)
    arguments = library.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=3,
        per_device_train_batch_size=8,
        learning_rate=5e-3,
        eval_strategy="epoch",
        save_strategy="epoch",
        logging_strategy="epoch",
        **options,
    )
    trainer = BalancingTrainer(
        model=make_model("convolution"),
        args=arguments,
        train_dataset=samples_for("convolution", 60),
        eval_dataset=samples_for("convolution", 20, seed=1),
        callbacks=callbacks,
    )
    return train_evaluate_predict(trainer)
