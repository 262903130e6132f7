"""The learner of a DeepSpeed engine, which does the backward pass, clipping and the optimizer step itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, SupportsFloat

from hexloop.ports.trainable import Trainable

if TYPE_CHECKING:
    from torch import Tensor


class SteppingEngine(Protocol):
    """The part of DeepSpeedEngine that the learner uses."""

    @property
    def optimizer(self) -> object:
        """ZeRO's or a half format's optimizer around `basic_optimizer`, else `basic_optimizer` itself."""

    @property
    def basic_optimizer(self) -> object:
        """The optimizer that was passed in, or that the configuration defines."""

    def step(self) -> None:
        """Clip the gradients and step."""

    def was_step_applied(self) -> bool:
        """Return whether the last step changed the weights."""

    def get_global_grad_norm(self) -> Any:
        """Return the norm of all gradients before clipping, as of the last step."""


def _no_op() -> None:
    """No-op."""


class DeepSpeedLearner:
    """Learner adapter over a DeepSpeed engine.

    engine: created by `deepspeed.initialize`; `gradient_clipping` in its configuration is the `max_norm` of `update`.
    trainable: counts items, and computes the loss by calling the engine. Its `clip` is used if nothing is partitioned
        or scaled, because the engine reports no norm then.
    synchronise, backward: the methods of the Parallelism port, over the same engine.
    before_optimizer_step, after_optimizer_step: called around each optimizer step.
    """

    def __init__(
        self,
        engine: SteppingEngine,
        trainable: Trainable[Any, Tensor],
        synchronise: Callable[[bool], None],
        backward: Callable[[Tensor], None],
        before_optimizer_step: Callable[[], None] = _no_op,
        after_optimizer_step: Callable[[], None] = _no_op,
    ) -> None:
        self.count_items = trainable.count_items
        self.set_learning_rates = trainable.set_learning_rates
        self._engine = engine
        self._trainable = trainable
        self._synchronise = synchronise
        self._backward = backward
        self._before_optimizer_step = before_optimizer_step
        self._after_optimizer_step = after_optimizer_step
        self._reports_norm = engine.optimizer is not engine.basic_optimizer

    def micro_step(self, batch: Any, window_items: object, last_of_window: bool) -> Tensor:
        """Run forward and backward of one micro-batch; see `Learner.micro_step`."""
        self._synchronise(last_of_window)
        loss = self._trainable.loss(batch, window_items)
        self._backward(loss)
        return self._trainable.detached(loss)

    def update(self, max_norm: float) -> tuple[SupportsFloat | None, bool]:
        """Clip and step; see `Learner.update`."""
        norm: SupportsFloat | None = None if self._reports_norm else self._trainable.clip(max_norm)
        self._before_optimizer_step()
        self._engine.step()
        self._after_optimizer_step()
        if self._reports_norm:
            norm = self._engine.get_global_grad_norm()
        return norm, self._engine.was_step_applied()

    # Assigned in __init__ from the trainable: forwarding methods would cost one more call per step.
    count_items: Callable[[Sequence[Any]], object]
    set_learning_rates: Callable[[Sequence[float]], None]
