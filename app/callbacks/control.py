"""The switches of the loop as callbacks see them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from hexloop.app.callbacks.exportable import ExportableState
from hexloop.domain.triggers import ControlFlags


@dataclass
class TrainerControl(ControlFlags, ExportableState):
    """The very switches that the loop reads, under the reference library's name, and a dataclass as there."""

    should_training_stop: bool = False
    should_epoch_stop: bool = False
    should_save: bool = False
    should_evaluate: bool = False
    should_log: bool = False

    def state(self) -> dict[str, Any]:
        """The switches as they stand."""
        return {"args": asdict(self), "attributes": {}}

    def take_over(self, other: object) -> None:
        """Set every switch as `other`, any object with the same five, has it. Raises TypeError where one is missing."""
        for switch in fields(self):
            if not hasattr(other, switch.name):
                raise TypeError(f"Expected an object with the switches of a TrainerControl, got {other!r}.")
            setattr(self, switch.name, getattr(other, switch.name))
