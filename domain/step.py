"""The two actions of a training step, in their standard order, written once over the ports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, SupportsFloat, TypeVar

from hexloop.ports.parallelism import Parallelism
from hexloop.ports.precision import Precision
from hexloop.ports.trainable import Trainable

Batch = TypeVar("Batch")
Loss = TypeVar("Loss")


class StandardLearner(Generic[Batch, Loss]):
    """Answers the Learner port from a model in pieces, a number format and a way of spreading the model.

    micro-step: say whether gradients will meet; forward under the precision; backward through the parallelism.
    update: unscale, clip, step where that is safe, forget the gradients.
    `before_optimizer_step` and `after_optimizer_step`, where given, are called on either side of the optimizer's step.
    """

    def __init__(
        self,
        trainable: Trainable[Batch, Loss],
        precision: Precision[Loss],
        parallelism: Parallelism[Loss],
        before_optimizer_step: Callable[[], None] | None = None,
        after_optimizer_step: Callable[[], None] | None = None,
    ) -> None:
        self.count_items = trainable.count_items
        self.set_learning_rates = trainable.set_learning_rates
        self._forward = precision.wrap(trainable.loss)
        self._trainable = trainable
        self._precision = precision
        self._parallelism = parallelism
        self._before_optimizer_step = before_optimizer_step
        self.after_optimizer_step = after_optimizer_step

    def micro_step(self, batch: Batch, window_items: object, last_of_window: bool) -> Loss:
        """Forward and backward of one micro-batch; see `Learner.micro_step`."""
        forward, precision, parallelism = self._forward, self._precision, self._parallelism
        parallelism.synchronise(last_of_window)
        loss = forward(batch, window_items)
        parallelism.backward(precision.scale(loss))
        return self._trainable.detached(loss)

    def update(self, max_norm: float) -> tuple[SupportsFloat | None, bool]:
        """Clip and step; see `Learner.update`."""
        trainable, precision = self._trainable, self._precision
        precision.unscale(trainable.optimizer)
        norm = trainable.clip(max_norm)
        if self._before_optimizer_step:
            self._before_optimizer_step()
        taken = precision.step(trainable.optimizer)
        if self.after_optimizer_step:
            self.after_optimizer_step()
        trainable.clear_gradients()
        return norm, taken

    # Bound in __init__ to the trainable's own methods: passing a call on would cost one more at every step.
    count_items: Callable[[Sequence[Batch]], object]
    set_learning_rates: Callable[[Sequence[float]], None]
