"""A subclass that weights rare classes in `compute_loss`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.end_to_end.parity.data import samples_for
from tests.end_to_end.parity.models import CLASSES, make_model
from tests.end_to_end.parity.scripts.results import Results, train_evaluate_predict


def main(library: Any, folder: Path, callbacks: list[Any], **options: Any) -> Results:
    class WeighingTrainer(library.Trainer):  # type: ignore[misc]
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            labels = inputs.pop("labels")
            outputs = model(**inputs)
            weights = torch.arange(1.0, CLASSES + 1)
            loss = nn.functional.cross_entropy(outputs["logits"], labels, weight=weights)
            return (loss, outputs) if return_outputs else loss

    library.set_seed(7)
    arguments = library.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=4,
        per_device_train_batch_size=6,
        gradient_accumulation_steps=2,
        learning_rate=2e-2,
        eval_strategy="epoch",
        save_strategy="no",
        logging_steps=2,
        **options,
    )
    trainer = WeighingTrainer(
        model=make_model("convolution"),
        args=arguments,
        train_dataset=samples_for("convolution", 50),
        eval_dataset=samples_for("convolution", 20, seed=1),
        compute_metrics=lambda given: {"accuracy": float((np.argmax(given[0], axis=-1) == given[1]).mean())},
        callbacks=callbacks,
    )
    return train_evaluate_predict(trainer, samples_for("convolution", 7, seed=3))
