"""What code reads of `trainer.accelerator`, and a callback and a Trainer that read it at every moment of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Look = Callable[[Any, Any], Any]
"""Takes a Trainer and the model that the moment passes (None if it passes none)."""


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


def looked(look: Look, trainer: Any, model: Any = None) -> Any:
    """Return what a look sees; an error as its type."""
    try:
        return plain(look(trainer, model))
    except Exception as error:
        return f"raises {type(error).__name__}"
