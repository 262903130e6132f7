"""Sentiment regression: one output, mean squared error, and another optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import BertForSequenceClassification

from tests.end_to_end.parity.scripts.results import Results, train_evaluate_predict
from tests.end_to_end.parity.scripts.texts import BAD, GOOD, VOCABULARY, make_tokenizer, sentences
from tests.end_to_end.small.encoders import bert_config


def main(library: Any, folder: Path, callbacks: list[Any], **options: Any) -> Results:
    tokenizer = make_tokenizer()

    def encoded(count: int, seed: int) -> Dataset:
        texts = sentences(count, seed, (*GOOD, *BAD))
        scores = [sum(1.0 if word in GOOD else -1.0 for word in text) / len(text) for text in texts]
        tokens = tokenizer([" ".join(text) for text in texts], padding="max_length", max_length=12, truncation=True)
        return Dataset.from_dict({**tokens, "label": scores})

    def compute_metrics(prediction: Any) -> dict[str, float]:
        given, wanted = np.squeeze(prediction.predictions), prediction.label_ids
        return {"mse": float(((given - wanted) ** 2).mean()), "pearson": float(np.corrcoef(given, wanted)[0, 1])}

    library.set_seed(7)
    config = bert_config(
        len(VOCABULARY),
        initializer_range=0.2,
        id2label={0: "praise"},
        label2id={"praise": 0},
        problem_type="regression",
    )
    arguments = library.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=2.5,
        per_device_train_batch_size=5,
        learning_rate=5e-2,
        optim="sgd",
        lr_scheduler_type="polynomial",
        lr_scheduler_kwargs={"power": 2.0},
        eval_strategy="steps",
        eval_steps=0.25,
        save_strategy="best",
        metric_for_best_model="mse",
        greater_is_better=False,
        logging_steps=4,
        dataloader_drop_last=True,
        **options,
    )
    trainer = library.Trainer(
        model=BertForSequenceClassification(config),
        args=arguments,
        train_dataset=encoded(33, seed=1),
        eval_dataset=encoded(21, seed=2),
        compute_metrics=compute_metrics,
        callbacks=callbacks,
    )
    return train_evaluate_predict(trainer, encoded(9, seed=3))
