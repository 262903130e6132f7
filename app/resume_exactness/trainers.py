"""What a Trainer's run keeps between steps."""

from __future__ import annotations

from typing import Any

from hexloop.adapters.trainable.torch.model_state import ModelState
from hexloop.adapters.trainable.torch.optimizer_state import OptimizerState
from hexloop.ports.state import Exportable


def exportables(trainer: Any) -> dict[str, Exportable]:
    """Whoever exports something, by the name under which it is compared."""
    run = trainer.session.run
    model = trainer.adapters.parallelism.unwrap(trainer.model)
    return {
        "model": ModelState(model),
        "optimizer": OptimizerState(model, trainer.optimizer),
        "scheduler": run.scheduler,
        "scaler": trainer.adapters.precision,
        "losses": run.losses,
        "data": run.batches,
        "random": trainer.adapters.device,
    }
