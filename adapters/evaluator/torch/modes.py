"""The training modes of a model's modules while the model is in evaluation mode."""

from __future__ import annotations

from attrs import define, field
from torch import nn


@define
class Modes:
    """Puts a model in evaluation mode, and its modules back in the modes that they had before.

    Several evaluations may follow each other before `restore`: it restores the modes from before the first.
    """

    _before: list[tuple[nn.Module, bool]] = field(factory=list, init=False)

    def enter_evaluation(self, model: nn.Module) -> None:
        """Put the model in evaluation mode, and keep the modes of its modules if it was in training mode."""
        if model.training:
            self._before = [(module, module.training) for module in model.modules()]
        model.eval()

    def restore(self) -> None:
        """Put each module back in its mode. No-op if the model was not in training mode."""
        before, self._before = self._before, []
        if before:
            before[0][0].train()  # a module may override train()
        for module, training in before:
            module.training = training
