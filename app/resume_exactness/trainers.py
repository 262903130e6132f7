"""What a Trainer's run keeps between steps."""

from __future__ import annotations

from typing import Any

from hexloop.app.training import checkpoints
from hexloop.ports.state import Exportable


def exportables(trainer: Any) -> dict[str, Exportable]:
    """Whoever exports something, by the name under which it is compared."""
    return checkpoints.exportables(trainer, trainer._session.run)
