"""The standard training step over the ports: forward and backward of a micro-batch, and the update of a window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, SupportsFloat, TypeVar

from hexloop.ports.parallelism import Parallelism
from hexloop.ports.precision import Precision
from hexloop.ports.trainable import Trainable

Batch = TypeVar("Batch")
Loss = TypeVar("Loss")


class StandardLearner(Generic[Batch, Loss]):
    """Implements the Learner port with a model in pieces (Trainable), a Precision and a Parallelism.

    In pseudocode::

        micro_step: parallelism.synchronise(last_of_window)        # reduce gradients over ranks, or accumulate
                    loss = trainable.loss(batch) under precision   # forward
                    parallelism.backward(precision.scale(loss))    # backward
        update:     precision.unscale(optimizer)
                    trainable.clip(max_norm)
                    precision.step(optimizer)                      # skipped if a scaled gradient overflowed
                    trainable.clear_gradients()

    before_optimizer_step, after_optimizer_step: called before and after the optimizer's step, if given.
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
        """Run forward and backward of one micro-batch; see `Learner.micro_step`."""
        forward, precision, parallelism = self._forward, self._precision, self._parallelism
        parallelism.synchronise(last_of_window)
        loss = forward(batch, window_items)
        parallelism.backward(precision.scale(loss))
        return self._trainable.detached(loss)

    def update(self, max_norm: float) -> tuple[SupportsFloat | None, bool]:
        """Clip the gradients and take the optimizer step; see `Learner.update`."""
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

    # Bound in __init__ to the trainable's methods, which saves a call per step.
    count_items: Callable[[Sequence[Batch]], object]
    set_learning_rates: Callable[[Sequence[float]], None]
