"""A script for transformers 4.24, and the same script for current releases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import BertForSequenceClassification

from tests.end_to_end.parity.scripts.results import Results, train_evaluate_predict
from tests.end_to_end.parity.scripts.texts import VOCABULARY, make_tokenizer, reviews
from tests.end_to_end.small.encoders import bert_config

COMMON: dict[str, Any] = {
    "num_train_epochs": 3,
    "learning_rate": 1e-2,
    "save_strategy": "steps",
    "save_steps": 5,
    "eval_steps": 5,
    "logging_steps": 2,
    "load_best_model_at_end": True,
    "metric_for_best_model": "accuracy",
}


def main(library: Any, folder: Path, callbacks: list[Any], **options: Any) -> Results:
    arguments = library.TrainingArguments(
        output_dir=str(folder),
        eval_strategy="steps",
        per_device_train_batch_size=8,
        per_device_eval_batch_size=4,
        warmup_steps=0.2,
        include_for_metrics=["inputs"],
        **COMMON,
        **options,
    )
    return run(library, arguments, callbacks, {"processing_class": make_tokenizer()})


def main_of_2022(library: Any, folder: Path, callbacks: list[Any], **options: Any) -> Results:
    del options["use_cpu"]
    arguments = library.TrainingArguments(
        output_dir=str(folder),
        evaluation_strategy="steps",
        per_gpu_train_batch_size=8,
        per_gpu_eval_batch_size=4,
        warmup_ratio=0.2,
        no_cuda=True,
        include_inputs_for_metrics=True,
        half_precision_backend="auto",
        group_by_length=False,
        adafactor=False,
        **COMMON,
        **options,
    )
    return run(library, arguments, callbacks, {"tokenizer": make_tokenizer()})


def run(library: Any, arguments: Any, callbacks: list[Any], further: dict[str, Any]) -> Results:
    class ScriptTrainer(library.Trainer):  # type: ignore[misc]
        """Overrides methods with their parameters of 2022."""

        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_later: Any) -> Any:
            outputs = model(**inputs)
            return (outputs["loss"], outputs) if return_outputs else outputs["loss"]

        def log(self, logs: dict[str, float], *_later: Any) -> None:
            logs["doubled"] = 2 * logs.get("loss", 0.0)
            super().log(logs)

    def compute_metrics(prediction: Any) -> dict[str, float]:
        logits, labels = prediction.predictions, prediction.label_ids
        return {
            "accuracy": float((np.argmax(logits, axis=-1) == labels).mean()),
            "words": float((prediction.inputs != 0).sum()),
        }

    def encoded(count: int, seed: int) -> Dataset:
        data = Dataset.from_dict(reviews(count, seed))
        return data.map(lambda rows: make_tokenizer()(rows["sentence"], truncation=True), batched=True)

    library.set_seed(7)
    config = bert_config(len(VOCABULARY), initializer_range=0.2)
    trainer = ScriptTrainer(
        model=BertForSequenceClassification(config),
        args=arguments,
        train_dataset=encoded(40, seed=1),
        eval_dataset=encoded(14, seed=2),
        compute_metrics=compute_metrics,
        callbacks=callbacks,
        **further,
    )
    return train_evaluate_predict(trainer, encoded(9, seed=3))
