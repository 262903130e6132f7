"""Optimizers whose `eval()` replaces the weights that they train by those that are meant to be used.

Schedule-free optimizers do so: the gradients are computed at other weights than their averages, which are the result of
the training (Defazio et al. 2024, https://arxiv.org/abs/2405.15682).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Protocol

from torch import Tensor, nn

from hexloop.adapters.trainable.torch.averaged_weights import AveragedWeights
from hexloop.adapters.trainable.torch.layouts import WHOLE, TorchLayout


def without_wrappers(optimizer: Any) -> Any:
    """Return the optimizer that accelerate has wrapped: its wrapper has `train` and `eval` for any optimizer."""
    with suppress(AttributeError):
        while type(optimizer).__module__.startswith("accelerate."):
            optimizer = optimizer.optimizer
    return optimizer


class ModalOptimizer(Protocol):
    """The part of an optimizer that switches modes."""

    def train(self) -> object:
        """Put the weights that are trained into the model; no-op if they are there."""

    def eval(self) -> object:
        """Put their averages into the model; no-op if they are there."""


def switches_modes(optimizer: Any) -> bool:
    """Return whether an optimizer has `train()` and `eval()`, which replace the weights of the model."""
    return all(callable(getattr(optimizer, name, None)) for name in ("train", "eval"))


class OptimizerModes(AveragedWeights):
    """The averages that an optimizer puts into the model by `eval()`, and takes out of it by `train()`.

    `train()` undoes `eval()` by arithmetic, which rounds. The weights that are trained are therefore copied before and
    back afterwards. Both methods may change the weights and the options of the groups, and nothing else.
    """

    kind = "optimizer"

    def __init__(
        self, model: nn.Module, optimizer: Any, parameters: Mapping[str, Tensor], layout: TorchLayout = WHOLE
    ) -> None:
        updated = [each for group in optimizer.param_groups for each in group["params"]]
        own = set(map(id, parameters.values()))
        super().__init__(model, parameters, layout, [each for each in updated if id(each) not in own])
        self._optimizer, self._was_training = optimizer, True
        optimizer.train()

    def _put_averages(self) -> None:
        # A callback of the user's may have called `eval()` itself; the mode is then left as it is.
        self._was_training = all(group.get("train_mode", True) for group in self._optimizer.param_groups)
        self._optimizer.eval()

    def _before_training(self) -> None:
        if self._was_training:
            self._optimizer.train()

    def exported(self) -> Mapping[int, Tensor]:
        """Return copies of the averages."""
        self.show()
        try:
            return {id(each): each.detach().clone() for each in self.parameters.values()}
        finally:
            self.hide()
