"""DeepSpeed's engine, which takes backward pass, clipping and the optimizer's step in its own hands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, SupportsFloat

from hexloop.ports.trainable import Trainable

if TYPE_CHECKING:
    from torch import Tensor


class Engine(Protocol):
    """What a learner needs of a DeepSpeedEngine."""

    @property
    def optimizer(self) -> object:
        """The engine's optimizer: one of ZeRO or of a half format around `basic_optimizer`, else that itself."""
        ...

    @property
    def basic_optimizer(self) -> object:
        """The optimizer that was given, or that the configuration named."""
        ...

    def step(self) -> None:
        """Clip and step."""
        ...

    def was_step_applied(self) -> bool:
        """Whether the last step changed the weights."""
        ...

    def get_global_grad_norm(self) -> Any:
        """The norm of all gradients before clipping, as the last step found it."""
        ...


def _nothing() -> None:
    """What is called where nobody wants to know."""


class DeepSpeedLearner:
    """Answers the Learner port whole.

    engine: what `deepspeed.initialize` made; `gradient_clipping` in its configuration is the `max_norm` of `update`.
    trainable: counts items, and computes the loss by calling the engine. Its `clip` is used where nothing is spread
    and nothing is scaled, as the engine tells no norm then.
    synchronise, backward: say whether the coming micro-batch is the window's last, and add its gradients to the
    window's (the Parallelism port's methods, over the same engine).
    """

    def __init__(
        self,
        engine: Engine,
        trainable: Trainable[Any, Tensor],
        synchronise: Callable[[bool], None],
        backward: Callable[[Tensor], None],
        before_optimizer_step: Callable[[], None] = _nothing,
        after_optimizer_step: Callable[[], None] = _nothing,
    ) -> None:
        self.count_items = trainable.count_items
        self.set_learning_rates = trainable.set_learning_rates
        self._engine = engine
        self._trainable = trainable
        self._synchronise = synchronise
        self._backward = backward
        self._before_optimizer_step = before_optimizer_step
        self.after_optimizer_step = after_optimizer_step
        self._measures = engine.optimizer is not engine.basic_optimizer

    def micro_step(self, batch: Any, window_items: object, last_of_window: bool) -> Tensor:
        """Forward and backward of one micro-batch; see `Learner.micro_step`."""
        self._synchronise(last_of_window)
        loss = self._trainable.loss(batch, window_items)
        self._backward(loss)
        return self._trainable.detached(loss)

    def update(self, max_norm: float) -> tuple[SupportsFloat | None, bool]:
        """Clip and step; see `Learner.update`."""
        norm: SupportsFloat | None = None if self._measures else self._trainable.clip(max_norm)
        self._before_optimizer_step()
        self._engine.step()
        self.after_optimizer_step()
        if self._measures:
            norm = self._engine.get_global_grad_norm()
        return norm, self._engine.was_step_applied()

    # Bound in __init__ to the trainable's own methods: passing a call on would cost one more at every step.
    count_items: Callable[[Sequence[Any]], object]
    set_learning_rates: Callable[[Sequence[float]], None]
