"""The Trainer and what it returns."""

from __future__ import annotations

from hexloop.app.trainer.trainer import Trainer, TrainOutput, session_of

__all__ = ["TrainOutput", "Trainer", "session_of"]
