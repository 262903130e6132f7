"""The hooks of a step."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from hexloop.app.trainer.attributes import TrainerAttributes
from hexloop.app.training.counters import operations_by_parameters
from hexloop.app.training.hooks import standard
from hexloop.app.training.losses import LossChoice, choose_loss
from hexloop.domain.errors import RunStateError


class Steps(TrainerAttributes):
    """What a step of a Trainer computes."""

    @standard
    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward of one micro-batch; gives its share of the window's loss, detached."""
        if self.session is None:
            raise RunStateError("training_step belongs to a live run; call train() or stream() instead.")
        learner = self.session.learner
        last_of_window = getattr(learner, "last_of_window", True)
        loss: Tensor = self.session.standard.micro_step(inputs, num_items_in_batch, last_of_window)
        return loss

    @standard
    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The loss of a batch, with `return_outputs` the pair of it and what the model returned."""
        return self.loss_choice.compute(model, inputs, return_outputs, num_items_in_batch)

    @property
    def loss_choice(self) -> LossChoice:
        """The loss that the arguments and the model make for."""
        return choose_loss(self.model, self.args, self.label_names, self.compute_loss_func)

    @standard
    def floating_point_ops(self, inputs: Any) -> float:
        """The floating-point operations of forward and backward on `inputs`, estimated; 0 where that is not known."""
        return operations_by_parameters(self.model)(inputs)
