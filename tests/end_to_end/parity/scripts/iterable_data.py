"""Iterable data without a length, for more steps than one epoch has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.utils.data import IterableDataset

from tests.end_to_end.parity.data import samples_for
from tests.end_to_end.parity.models import make_model
from tests.end_to_end.parity.scripts.results import Results, train_evaluate_predict


class Stream(IterableDataset[dict[str, Any]]):
    """An iterable dataset of unknown length."""

    def __init__(self, count: int, seed: int) -> None:
        self.samples = samples_for("plain GPT", count, seed)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self.samples[place] for place in range(len(self.samples)))


def main(library: Any, folder: Path, callbacks: list[Any], **options: Any) -> Results:
    library.set_seed(7)
    arguments = library.TrainingArguments(
        output_dir=str(folder),
        max_steps=15,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=8,
        learning_rate=5e-3,
        eval_strategy="steps",
        eval_steps=5,
        save_steps=5,
        logging_steps=5,
        **options,
    )
    trainer = library.Trainer(
        model=make_model("plain GPT"),
        args=arguments,
        train_dataset=Stream(24, seed=1),
        eval_dataset=Stream(13, seed=2),
        callbacks=callbacks,
    )
    return train_evaluate_predict(trainer, Stream(5, seed=3))
