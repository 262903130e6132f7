"""The Trainer and what it gives."""

from __future__ import annotations

from hexloop.app.trainer.trainer import Trainer, TrainOutput

__all__ = ["TrainOutput", "Trainer"]
