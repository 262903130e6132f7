"""What the run computes on."""

from __future__ import annotations

from hexloop.app.arguments.data import Data
from hexloop.app.arguments.declare import argument, argument_group


@argument_group
class Hardware(Data):
    """Hardware."""

    use_cpu: bool = argument(default=False, help="train on the processor even where an accelerator is present")

    def _settle(self) -> None:
        super()._settle()
        if self.use_cpu:
            self.dataloader_pin_memory = False
