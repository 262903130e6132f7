"""A small ViT classifies patterns in images; its collator builds the images from the rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import ViTConfig, ViTForImageClassification

from tests.end_to_end.parity.data import images
from tests.end_to_end.parity.models import CLASSES, IMAGE_SIDE
from tests.end_to_end.parity.scripts.results import Results, train_evaluate_predict
from tests.end_to_end.small.encoders import LAYER


def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    pictures = torch.stack([row["picture"].expand(3, -1, -1) for row in rows])
    return {"pixel_values": pictures, "labels": torch.tensor([row["pattern"] for row in rows])}


def rows_of(count: int, seed: int) -> list[dict[str, Any]]:
    columns = images(count, seed).columns
    return [
        {"picture": picture, "pattern": int(label), "file": f"{place}.png"}
        for place, (picture, label) in enumerate(zip(columns["pixels"], columns["labels"], strict=True))
    ]


def main(library: Any, folder: Path, callbacks: list[Any], **options: Any) -> Results:
    library.set_seed(7)
    config = ViTConfig(
        image_size=IMAGE_SIDE,
        patch_size=4,
        initializer_range=0.2,
        id2label={place: f"pattern {place}" for place in range(CLASSES)},
        label2id={f"pattern {place}": place for place in range(CLASSES)},
        **LAYER,
    )
    arguments = library.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=3,
        per_device_train_batch_size=8,
        learning_rate=1e-2,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        logging_strategy="steps",
        logging_steps=3,
        remove_unused_columns=False,
        eval_accumulation_steps=2,
        label_smoothing_factor=0.1,
        **options,
    )
    trainer = library.Trainer(
        model=ViTForImageClassification(config),
        args=arguments,
        data_collator=collate,
        train_dataset=rows_of(40, seed=1),
        eval_dataset=rows_of(20, seed=2),
        compute_metrics=lambda given: {
            "accuracy": float((np.argmax(given.predictions, axis=1) == given.label_ids).mean())
        },
        callbacks=callbacks,
    )
    return train_evaluate_predict(trainer, rows_of(10, seed=3))
