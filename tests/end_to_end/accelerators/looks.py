"""What the cases share: arguments of short runs, and comparable values of what is looked at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

USUAL: dict[str, Any] = {
    "use_cpu": True, "report_to": "none", "disable_tqdm": True, "save_strategy": "no", "logging_steps": 1,
    "per_device_train_batch_size": 2, "per_device_eval_batch_size": 3, "learning_rate": 0.01, "num_train_epochs": 1,
    "dataloader_pin_memory": False,
}  # fmt: skip
CLOCK = ("runtime", "per_second", "flos", "preparation_time")
"""Suffixes of logged values that depend on the clock, or that the libraries measure differently."""


def arguments(library: Any, folder: Path, **given: Any) -> Any:
    """Return arguments of a short run of a library; hexloop's reproduces transformers unless `reproduce` is None."""
    own = {"reproduce": "transformers", **given} if library.__name__ == "hexloop" else given
    if library.__name__ != "hexloop":
        own = {name: value for name, value in own.items() if name not in ("reproduce", "loss_weighting")}
    return library.TrainingArguments(str(folder), **{**USUAL, **own})


def numbers(trainer: Any) -> Any:
    """Return every logged number but clock readings, and the weights."""
    logs = [{k: v for k, v in log.items() if not k.endswith(CLOCK)} for log in trainer.state.log_history]
    return [logs, {name: plain(value) for name, value in trainer.model.state_dict().items()}]


def plain(value: Any) -> Any:
    """Return plain data that compares as the value does: a tensor as its numbers, an object as its type's name."""
    if isinstance(value, torch.Tensor):
        return {"dtype": str(value.dtype), "values": value.detach().float().tolist()}
    if isinstance(value, str):
        return str(value.value) if hasattr(value, "value") else value
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, dict):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return f"{type(value).__module__.partition('.')[0]}:{type(value).__name__}"


def looked(look: Callable[[], Any]) -> Any:
    """Return what a look sees; an error as its type."""
    try:
        return plain(look())
    except Exception as error:
        return f"raises {type(error).__name__}"
