"""Two named evaluation datasets, one of which selects the best model; the model is plain torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.end_to_end.parity.data import samples_for
from tests.end_to_end.parity.models import make_model
from tests.end_to_end.parity.scripts.results import Results, train_evaluate_predict


def main(library: Any, folder: Path, callbacks: list[Any], **options: Any) -> Results:
    library.set_seed(7)
    arguments = library.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=2,
        per_device_train_batch_size=8,
        learning_rate=5e-3,
        eval_strategy="steps",
        eval_steps=4,
        save_strategy="steps",
        save_steps=4,
        eval_on_start=True,
        load_best_model_at_end=True,
        metric_for_best_model="eval_near_loss",
        greater_is_better=False,
        logging_steps=4,
        **options,
    )
    trainer = library.Trainer(
        model=make_model("convolution"),
        args=arguments,
        train_dataset=samples_for("convolution", 60),
        eval_dataset={"near": samples_for("convolution", 18, seed=1), "far": samples_for("convolution", 9, seed=2)},
        callbacks=callbacks,
    )
    return train_evaluate_predict(trainer, samples_for("convolution", 7, seed=3))
