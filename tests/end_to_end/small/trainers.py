"""Trainers of the small model, and comparisons of two runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from torch import Tensor

from hexloop import Trainer, TrainingArguments
from tests.end_to_end.small.models import net, rows

DEFAULTS: dict[str, Any] = {
    "use_cpu": True,
    "disable_tqdm": True,
    "report_to": "none",
    "save_strategy": "no",
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 4,
    "learning_rate": 0.01,
    "num_train_epochs": 1,
    "logging_steps": 1,
}

CLOCK_READINGS = ("runtime", "per_second")


def arguments(folder: Path, **given: Any) -> TrainingArguments:
    """Return arguments of a short run without output."""
    return TrainingArguments(output_dir=str(folder), **{**DEFAULTS, **given})


def small_trainer(
    folder: Path, kind: type[Trainer] = Trainer, parts: dict[str, Any] | None = None, **given: Any
) -> Any:
    """Return a silent Trainer of the small model on 16 samples; `parts` are further arguments of its constructor."""
    chosen: dict[str, Any] = {"train_dataset": rows(16), "loggers": [], **(parts or {})}
    if "model_init" not in chosen:
        chosen.setdefault("model", net())
    return kind(args=arguments(folder, **given), **chosen)


def weights(trainer: Trainer) -> dict[str, Tensor]:
    """Return a copy of the weights."""
    return {name: tensor.detach().clone() for name, tensor in trainer.model.state_dict().items()}


def same_weights(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Return whether all weights are bitwise equal."""
    return one.keys() == other.keys() and all(bool((one[name] == other[name]).all()) for name in one)


def history(trainer: Trainer) -> list[dict[str, float | str]]:
    """Return everything logged without clock readings; NaNs compare as equal."""
    return [
        {
            name: value if math.isfinite(value) else str(value)
            for name, value in entry.items()
            if not name.endswith(CLOCK_READINGS)
        }
        for entry in trainer.state.log_history
    ]
