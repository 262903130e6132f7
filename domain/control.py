"""What callbacks decide: five switches that they may read and set at every event."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from attrs import define


@define(slots=False)
class Control:
    """The switches of the loop. The loop sets those that are due, then asks the callbacks, then acts.

    should_training_stop: end the run after this boundary.
    should_epoch_stop: go to the end of this epoch.
    should_save, should_evaluate, should_log: do so at this boundary; cleared when done and at each new step.
    """

    SWITCHES: ClassVar[tuple[str, ...]] = (
        "should_training_stop",
        "should_epoch_stop",
        "should_save",
        "should_evaluate",
        "should_log",
    )

    should_training_stop: bool = False
    should_epoch_stop: bool = False
    should_save: bool = False
    should_evaluate: bool = False
    should_log: bool = False

    def due(self) -> list[str]:
        """The actions that are due, in the order in which they are done."""
        switches = (("log", self.should_log), ("evaluate", self.should_evaluate), ("save", self.should_save))
        return [action for action, switched_on in switches if switched_on]

    def set_due(self, actions: list[str]) -> None:
        """Make these actions due, and no others."""
        self.should_log = "log" in actions
        self.should_evaluate = "evaluate" in actions
        self.should_save = "save" in actions

    def on(self) -> set[str]:
        """The names of the switches that are on."""
        return {name for name in self.SWITCHES if getattr(self, name)}

    def switch(self, names: Collection[str], on: bool) -> None:
        """Switch all of these on, or off."""
        for name in names:
            setattr(self, name, on)
