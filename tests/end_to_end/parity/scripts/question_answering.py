"""Extractive question answering: two labels per row, and a Trainer whose evaluation turns logits into answers."""

from __future__ import annotations

import random
from pathlib import Path
from time import time
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import BertForQuestionAnswering, default_data_collator
from transformers.trainer_utils import speed_metrics

from tests.end_to_end.parity.scripts.results import Results, train_evaluate_predict
from tests.end_to_end.parity.scripts.texts import OTHER, VOCABULARY, make_tokenizer
from tests.end_to_end.small.encoders import bert_config

LENGTH = 16


def rows(count: int, seed: int) -> Dataset:
    """Return questions about a name, and texts that contain it."""
    source, tokenizer = random.Random(seed), make_tokenizer()
    questions, texts = [], []
    for _ in range(count):
        words = source.choices(OTHER[:9], k=9)
        words[source.randrange(9)] = "Ada"
        questions.append("is Ada")
        texts.append(" ".join(words))
    tokens = dict(tokenizer(questions, texts, padding="max_length", max_length=LENGTH, truncation="only_second"))
    places = [row.index(VOCABULARY.index("Ada"), 4) for row in tokens["input_ids"]]
    return Dataset.from_dict({**tokens, "start_positions": places, "end_positions": places})


def answers(prediction: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the first and the last token of each answer."""
    start, end = prediction.predictions
    return np.argmax(start, axis=1), np.argmax(end, axis=1)


def main(library: Any, folder: Path, callbacks: list[Any], **options: Any) -> Results:
    class AnsweringTrainer(library.Trainer):  # type: ignore[misc]
        compute_metrics: Any
        control: Any

        def evaluate(
            self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
        ) -> dict[str, float]:
            loader = self.get_eval_dataloader(self.eval_dataset if eval_dataset is None else eval_dataset)
            kept, self.compute_metrics = self.compute_metrics, None
            began = time()
            try:
                output = self.evaluation_loop(
                    loader,
                    description="Evaluation",
                    prediction_loss_only=False,
                    ignore_keys=ignore_keys,
                    metric_key_prefix=metric_key_prefix,
                )
            finally:
                self.compute_metrics = kept
            output.metrics.update(
                speed_metrics(metric_key_prefix, began, num_samples=output.num_samples)  # type: ignore[no-untyped-call]
            )
            first, last = answers(output)
            metrics = dict(output.metrics)
            metrics[f"{metric_key_prefix}_exact"] = float(
                ((first == output.label_ids[0]) & (last == output.label_ids[1])).mean()
            )
            self.log(metrics)
            self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
            return metrics

    library.set_seed(7)
    config = bert_config(len(VOCABULARY))
    arguments = library.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=2,
        per_device_train_batch_size=6,
        learning_rate=2e-2,
        eval_strategy="epoch",
        save_strategy="epoch",
        logging_steps=3,
        label_names=["start_positions", "end_positions"],
        load_best_model_at_end=True,
        metric_for_best_model="exact",
        **options,
    )
    trainer = AnsweringTrainer(
        model=BertForQuestionAnswering(config),
        args=arguments,
        train_dataset=rows(30, seed=1),
        eval_dataset=rows(14, seed=2),
        processing_class=make_tokenizer(),
        data_collator=default_data_collator,
        callbacks=callbacks,
    )
    return train_evaluate_predict(trainer, rows(9, seed=3))
