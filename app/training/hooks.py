"""Where a subclass's own methods take the place of a run's parts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial, wraps
from typing import Any, SupportsFloat

from attrs import define
from torch import Tensor

from hexloop.adapters.batches.torch.structure import shallow_copy
from hexloop.adapters.trainable.torch.loss import in_full_precision
from hexloop.adapters.trainable.torch.trainable import resolved_count
from hexloop.ports.learner import Learner
from hexloop.ports.precision import Precision


@contextmanager
def computing_in_format(model: Any, precision: Precision[Any]) -> Iterator[None]:
    """Let every call of `model` compute in a number format, for a step of the user's; what it gives is in float32."""
    own, forward = vars(model).get("forward"), precision.wrap(model.forward)

    @wraps(model.forward)
    def compute(*args: Any, **kwargs: Any) -> Any:
        return in_full_precision(forward(*args, **kwargs))

    model.forward = compute
    try:
        yield
    finally:
        del model.forward
        if own is not None:
            model.forward = own


@define
class WindowState:
    """Where a run is in its window of micro-batches, as far as an overridden hook needs to know.

    last_of_window: whether the gradients of the current micro-batch are those of an optimizer step.
    length: micro-batches of the current window; None if no hook that asks for it is overridden.
    """

    last_of_window: bool = True
    length: int | None = None


class OverriddenTrainingStep:
    """A learner whose micro-step is the user's `training_step(model, inputs[, num_items_in_batch])`.

    The user's method owns the whole action; where it calls the method that it overrides, that is `standard`'s.
    enter_training_mode: called before it.
    """

    def __init__(
        self,
        standard: Learner[Any, Tensor],
        model: Any,
        training_step: Callable[..., Tensor],
        enter_training_mode: Callable[[], None],
        window: WindowState,
    ) -> None:
        parameters = inspect.signature(training_step).parameters.values()
        self._takes_count = any(
            each.name == "num_items_in_batch" or each.kind is each.VAR_KEYWORD for each in parameters
        )
        self._training_step = training_step
        self._enter_training_mode = enter_training_mode
        self._model = model
        self.standard = standard
        self._window = window

    def count_items(self, window: Sequence[Any]) -> object:
        """As the standard learner counts."""
        self._window.length = len(window)
        return resolved_count(self.standard.count_items(window))

    def micro_step(self, batch: Any, window_items: Any, last_of_window: bool) -> Tensor:
        """The user's step, on a copy of the batch's mapping, as it may take entries out."""
        inputs = shallow_copy(batch)
        self._window.last_of_window = last_of_window
        self._enter_training_mode()
        if self._takes_count:
            return self._training_step(self._model, inputs, num_items_in_batch=window_items).detach()
        return self._training_step(self._model, inputs).detach()

    def update(self, max_norm: float) -> tuple[SupportsFloat | None, bool]:
        """As the standard learner updates."""
        return self.standard.update(max_norm)

    def set_learning_rates(self, rates: Sequence[float]) -> None:
        """As the standard learner does."""
        self.standard.set_learning_rates(rates)


class OverriddenBatchSamples:
    """A learner whose windows, and the items in each, are what the user's `get_batch_samples` gives.

    Where that counts nothing, `learner` does.
    """

    def __init__(
        self, learner: Learner[Any, Tensor], get_batch_samples: Callable[..., Any], device: Any, window: WindowState
    ) -> None:
        self.learner = learner
        self.micro_step = learner.micro_step
        self.update = learner.update
        self.set_learning_rates = learner.set_learning_rates
        takes_device = "device" in inspect.signature(get_batch_samples).parameters
        self._get = partial(get_batch_samples, device=device) if takes_device else get_batch_samples
        self._count: object = None
        self._window = window

    def windows(self, batches: Generator[Any, None, None], accumulation: int) -> Generator[list[Any], None, None]:
        """The user's windows of a pass over the data."""
        with closing(batches):
            while True:
                window, self._count = self._get(batches, accumulation)
                if not window:
                    return
                yield list(window)

    def count_items(self, window: Sequence[Any]) -> object:
        """The user's count of the present window."""
        self._window.length = len(window)
        return self.learner.count_items(window) if self._count is None else self._count
