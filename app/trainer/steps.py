"""The hooks of a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from itertools import islice
from typing import Any

from torch import Tensor

from hexloop.adapters.trainable.torch.world import settled
from hexloop.app.trainer.attributes import TrainerAttributes
from hexloop.app.training.columns import takes_any_keyword
from hexloop.app.training.counters import measured_operations, operations_in
from hexloop.app.training.hooks import standard
from hexloop.app.training.losses import LossChoice, choose_loss, smoother_for
from hexloop.domain.errors import RunStateError


class Steps(TrainerAttributes):
    """What a step of a Trainer computes."""

    @standard
    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward of one micro-batch; gives its share of the window's loss, detached."""
        if self._session is None:
            raise RunStateError("training_step belongs to a live run; call train() or stream() instead.")
        learner = self._session.learner
        last_of_window = getattr(learner, "last_of_window", True)
        loss: Tensor = self._session.standard.micro_step(inputs, num_items_in_batch, last_of_window)
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
        found, told = takes_any_keyword(self.model), self.model_accepts_loss_kwargs
        divides = None if found == told else told
        smoother = self.label_smoother
        return choose_loss(self.model, self.args, self.label_names, self.compute_loss_func, divides, smoother)

    @property
    def label_smoother(self) -> Any:
        """What computes the loss of smoothed labels, None where nothing does; a subclass may write another, or None.

        It is called with what the model returned and the labels, and may be told `shift_labels` and
        `num_items_in_batch`.
        """
        if "_own_smoother" in vars(self):
            return self._own_smoother
        return smoother_for(self.model, self.args)

    @label_smoother.setter
    def label_smoother(self, smoother: Any) -> None:
        self._own_smoother = smoother

    @standard
    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: Any = None
    ) -> tuple[list[Any], Any]:
        """The next `num_batches` micro-batches, or as many as are left, and the items in them, left on the device.

        The count is None where the loss needs none, and where no run is live. Overridden, it gives every window.
        """
        samples = list(islice(epoch_iterator, num_batches))
        if not samples or self._session is None:
            return samples, None
        return samples, settled(self._session.standard.count_items(samples))

    @property
    def current_gradient_accumulation_steps(self) -> int:
        """The micro-batches of the present optimizer step, which may be fewer at the end of an epoch."""
        length = getattr(self._session.learner, "window_length", None) if self._session is not None else None
        return self.args.gradient_accumulation_steps if length is None else length

    @standard
    def compute_loss_context_manager(self) -> ExitStack:
        """What the loss is computed in. Overridden, that of every step and every prediction is."""
        with ExitStack() as contexts:
            contexts.enter_context(self.autocast_smart_context_manager())
            return contexts.pop_all()

    @standard
    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> AbstractContextManager[Any]:
        """A context in which the model computes in the run's number format. Overridden, every loss is computed in it.

        A step that is not overridden computes in that format anyway.
        """
        return self.accelerator.autocast()

    @standard
    def floating_point_ops(self, inputs: Any) -> float:
        """The floating-point operations of forward and backward on `inputs`.

        As the model says, or by its parameters where it is one of transformers', else measured. Overridden, it is
        asked about every micro-batch.
        """
        told = operations_in(self.model)
        return measured_operations(self.model, inputs) if told is None else told(inputs)

    def store_flos(self) -> None:
        """Bring `state.total_flos` up to date; logs of the end and checkpoints do so themselves."""
        if self._session is not None:
            self._session.settle_counters()
