"""Named-entity recognition: one label per token, rows padded to the longest of their batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import DataCollatorForTokenClassification, DistilBertConfig, DistilBertForTokenClassification

from tests.end_to_end.parity.scripts.results import Results, train_evaluate_predict
from tests.end_to_end.parity.scripts.texts import VOCABULARY, make_tokenizer, sentences

KINDS = ("O", "PERSON", "PLACE")
NAMES = {"Ada": 1, "Oslo": 2}


def main(library: Any, folder: Path, callbacks: list[Any], **options: Any) -> Results:
    tokenizer = make_tokenizer()

    def encoded(count: int, seed: int) -> Dataset:
        words = sentences(count, seed)
        tags = [[NAMES.get(word, 0) for word in text] for text in words]

        def align(rows: dict[str, Any]) -> Any:
            tokens = tokenizer(rows["tokens"], truncation=True, is_split_into_words=True)
            tokens["labels"] = [
                [-100 if place is None else of[place] for place in tokens.word_ids(row)]
                for row, of in enumerate(rows["tags"])
            ]
            return tokens

        return Dataset.from_dict({"tokens": words, "tags": tags}).map(
            align, batched=True, remove_columns=["tokens", "tags"]
        )

    def compute_metrics(prediction: Any) -> dict[str, float]:
        chosen, labels = np.argmax(prediction.predictions, axis=2), prediction.label_ids
        kept = labels != -100
        found = (chosen == labels) & kept & (labels > 0)
        precision = found.sum() / max(1, (kept & (chosen > 0)).sum())
        recall = found.sum() / max(1, (kept & (labels > 0)).sum())
        return {
            "precision": float(precision),
            "recall": float(recall),
            "f1": float(2 * precision * recall / max(1e-9, precision + recall)),
            "accuracy": float((chosen == labels)[kept].mean()),
        }

    library.set_seed(7)
    config = DistilBertConfig(
        vocab_size=len(VOCABULARY),
        dim=16,
        hidden_dim=32,
        n_layers=1,
        n_heads=2,
        max_position_embeddings=32,
        dropout=0.0,
        attention_dropout=0.0,
        initializer_range=0.2,
        id2label=dict(enumerate(KINDS)),
        label2id={kind: place for place, kind in enumerate(KINDS)},
    )
    arguments = library.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=3,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        eval_strategy="steps",
        eval_steps=4,
        save_steps=4,
        logging_steps=3,
        logging_first_step=True,
        **options,
    )
    trainer = library.Trainer(
        model=DistilBertForTokenClassification(config),
        args=arguments,
        train_dataset=encoded(26, seed=1),
        eval_dataset=encoded(19, seed=2),
        processing_class=tokenizer,
        data_collator=DataCollatorForTokenClassification(tokenizer),
        compute_metrics=compute_metrics,
        callbacks=callbacks,
    )
    return train_evaluate_predict(trainer, encoded(11, seed=3))
