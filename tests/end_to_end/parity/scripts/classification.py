"""Sentiment classification of padded sentences; the best epoch's weights are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import BertForSequenceClassification, DataCollatorWithPadding

from tests.end_to_end.parity.scripts.results import Results, train_evaluate_predict
from tests.end_to_end.parity.scripts.texts import VOCABULARY, make_tokenizer, reviews
from tests.end_to_end.small.encoders import bert_config


def main(library: Any, folder: Path, callbacks: list[Any], **options: Any) -> Results:
    tokenizer = make_tokenizer()

    def encoded(count: int, seed: int) -> Dataset:
        data = Dataset.from_dict(reviews(count, seed))
        return data.map(lambda rows: tokenizer(rows["sentence"], truncation=True), batched=True)

    def compute_metrics(prediction: Any) -> dict[str, float]:
        chosen = np.argmax(prediction.predictions, axis=1)
        liked = prediction.label_ids == 1
        return {
            "accuracy": float((chosen == prediction.label_ids).mean()),
            "recall": float((chosen[liked] == 1).mean()),
        }

    library.set_seed(7)
    config = bert_config(
        len(VOCABULARY),
        initializer_range=0.2,
        id2label={0: "no", 1: "yes"},
        label2id={"no": 0, "yes": 1},
    )
    arguments = library.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=5,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=16,
        learning_rate=1e-2,
        weight_decay=0.01,
        warmup_steps=3,
        eval_strategy="epoch",
        save_strategy="epoch",
        logging_steps=2,
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        save_total_limit=2,
        **options,
    )
    trainer = library.Trainer(
        model=BertForSequenceClassification(config),
        args=arguments,
        train_dataset=encoded(64, seed=1),
        eval_dataset=encoded(22, seed=2),
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer, pad_to_multiple_of=4),
        compute_metrics=compute_metrics,
        callbacks=[*callbacks, library.EarlyStoppingCallback(early_stopping_patience=2)],
    )
    return train_evaluate_predict(trainer, encoded(13, seed=3))
