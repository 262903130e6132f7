"""Trains a tiny model with `report_to`: `training.py TRACKER MODE`, in the current folder.

MODE: "finish"; "fail" at step 6 of 8, after the checkpoint of step 4; "resume" from it; or "twice", two runs in a row.
The log of the last run is written to `log_history.json`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hexloop import Trainer, TrainerCallback, TrainingArguments


class Points(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Points of a plane and their distance from the diagonal."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        point = torch.tensor([index / 16, (index % 5) / 5])
        return {"points": point, "labels": point[:1] - point[1:]}


class Model(nn.Module):
    """A linear model with the loss in its output."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, points: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss, and the predictions."""
        predictions = self.layer(points)
        return {"loss": nn.functional.mse_loss(predictions, labels), "logits": predictions}


class Failing(TrainerCallback):
    """Raises at step 6."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Raise."""
        if state.global_step == 6:
            raise ValueError("the disk is on fire")


def main(tracker: str, mode: str) -> None:
    """Train once or twice."""
    for folder in ("out", "out-2") if mode == "twice" else ("out",):
        train(tracker, mode, folder)


def train(tracker: str, mode: str, folder: str) -> None:
    """Train once."""
    torch.manual_seed(0)
    arguments = TrainingArguments(
        folder,
        report_to=tracker,
        run_name="a tiny run",
        max_steps=8,
        per_device_train_batch_size=4,
        learning_rate=0.25,
        logging_steps=2,
        save_steps=4,
        eval_strategy="steps",
        eval_steps=4,
        use_cpu=True,
        disable_tqdm=True,
    )
    callbacks = [Failing()] if mode == "fail" else []
    trainer = Trainer(Model(), arguments, train_dataset=Points(), eval_dataset=Points(), callbacks=callbacks)
    trainer.train(resume_from_checkpoint=mode == "resume")
    Path("log_history.json").write_text(json.dumps(trainer.state.log_history), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
