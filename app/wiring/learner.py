"""Where a subclass's own methods take the place of a run's parts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial, wraps
from typing import Any, SupportsFloat, cast

from attrs import define, frozen
from torch import Tensor

from hexloop.adapters.batches.torch.structure import shallow_copy
from hexloop.adapters.trainable.torch.loss import in_full_precision
from hexloop.adapters.trainable.torch.trainable import (
    LOCAL_ITEM_SUM,
    ItemSum,
    TorchTrainable,
    estimated_item_sum,
    exact_item_sum,
    resolved_count,
)
from hexloop.app.arguments.data import AcceleratorConfig
from hexloop.app.wiring.losses import loss_in_force, preparing
from hexloop.app.wiring.parts import TrainerParts
from hexloop.app.wiring.state import layout_of
from hexloop.domain.loop import StandardLearner
from hexloop.domain.run import windows
from hexloop.ports.learner import Learner
from hexloop.ports.parallelism import OwnUpdate, Parallelism, ParallelismCapabilities
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


Windows = Callable[[Generator[Any, None, None], int], Generator[list[Any], None, None]]


@frozen
class RunLearner:
    """What takes a run's training steps.

    standard: forward, backward and update as they are if no hook is overridden. learner: what the loop calls; the same
    object in that case. windows: groups micro-batches for each optimizer step. window: where the run is in its window.
    """

    standard: Learner[Any, Any]
    learner: Learner[Any, Any]
    windows: Windows
    window: WindowState


class AfterStep:
    """What a learner calls after each optimizer step; the function passed to `first` is called once."""

    def __init__(self, each: Callable[[], None]) -> None:
        self._each = self._call = each

    def __call__(self) -> None:
        """Call the functions."""
        self._call()

    def first(self, call: Callable[[], None]) -> None:
        """Call a function after the next optimizer step only."""

        def call_both() -> None:
            self._call = self._each
            self._each()
            call()

        self._call = call_both


def make_learner(
    parts: TrainerParts, wrapped: Any, after: Callable[[], None], restore_modes: Callable[[], None]
) -> RunLearner:
    """Return the standard learner, and around it the user's `training_step` and `get_batch_samples` if overridden.

    after: called after each optimizer step. restore_modes: puts modules back in the modes from before an evaluation.
    """
    choice = preparing(parts, loss_in_force(parts))
    trainable = TorchTrainable(
        wrapped,
        parts.optimizer,
        choice.compute,
        normalises=choice.normalises,
        exact=parts.args.loss_weighting == "exact",
        label_names=parts.label_names,
        shifted=choice.shifted,
        item_sum=world_of(parts, choice.normalises),
        layout=layout_of(parts),
        inner=parts.model,
        restore_modes=restore_modes,
    )
    before, parallelism = _before_optimizer_step(parts), parts.adapters.parallelism
    standard: Learner[Any, Any]
    if parallelism.capabilities.owns_update:
        standard = cast("OwnUpdate[Any]", parallelism).learner(wrapped, trainable, before, after)
    else:
        standard = StandardLearner(trainable, parts.adapters.precision, parallelism_of(parts), before, after)
    learner: Any = standard
    window, group = WindowState(), windows
    if parts.hooks.training_step.overridden:
        training_step = parts.hooks.training_step.method
        learner = OverriddenTrainingStep(standard, wrapped, training_step, trainable.enter_training_mode, window)
    if parts.hooks.get_batch_samples.overridden:
        learner = OverriddenBatchSamples(learner, parts.hooks.get_batch_samples.method, parts.args.device, window)
        group = learner.windows
    return RunLearner(standard, learner, group, window)


def _before_optimizer_step(parts: TrainerParts) -> Callable[[], None]:
    """Tell the callbacks; every so many steps, where that is asked for, also empty the device's cache."""
    every, release = parts.args.torch_empty_cache_steps, parts.adapters.device.release_memory

    def tell() -> None:
        parts.dispatcher.call("on_pre_optimizer_step")

    def tell_and_release() -> None:
        tell()
        if parts.state.global_step % (every or 1) == 0:
            release()

    return tell_and_release if every else tell


def world_of(parts: TrainerParts, normalises: bool) -> ItemSum:
    """How a window's items are counted over the processes: exactly, unless the arguments ask for equal weights.

    normalises: the loss divides by the count that it is given.
    """
    args, collectives = parts.args, parts.adapters.collectives
    size = collectives.world_size
    if size == 1:
        return LOCAL_ITEM_SUM
    exact = args.average_tokens_across_devices if normalises else args.loss_weighting == "exact"
    return exact_item_sum(size, parts.adapters.device.name, collectives) if exact else estimated_item_sum(size)


@frozen
class MeetingEachBatch:
    """Another parallelism, whose gradients meet at every micro-batch and not at a window's last alone.

    That takes longer, and where weights are sharded less memory.
    """

    inner: Parallelism[Any]

    @property
    def capabilities(self) -> ParallelismCapabilities:
        """Those of the other."""
        return self.inner.capabilities

    def prepare(self, model: Any, make_optimizer: Callable[[Any], Any]) -> tuple[Any, Any]:
        """Let the other prepare the model."""
        return self.inner.prepare(model, make_optimizer)

    def synchronise(self, last_of_window: bool) -> None:
        """Let gradients meet in the next backward pass."""
        self.inner.synchronise(True)

    def backward(self, loss: Any) -> None:
        """Let the other add the gradients."""
        self.inner.backward(loss)

    def unwrap(self, model: Any) -> Any:
        """Let the other unwrap the model."""
        return self.inner.unwrap(model)


def parallelism_of(parts: TrainerParts) -> Parallelism[Any]:
    """How the model is spread; with `sync_each_batch` in accelerator_config gradients meet at each micro-batch."""
    config = parts.args.accelerator_config
    told = config.gradient_accumulation_kwargs if isinstance(config, AcceleratorConfig) else None
    parallelism = parts.adapters.parallelism
    return MeetingEachBatch(parallelism) if (told or {}).get("sync_each_batch") else parallelism
