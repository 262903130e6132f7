"""What takes a run's training steps: the standard learner, the user's overridden hooks around it, and counters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial, wraps
from typing import Any, SupportsFloat, TypeAlias, cast

from attrs import define, field, frozen
from torch import Tensor

from hexloop.adapters.batches.torch.structure import shallow_copy
from hexloop.adapters.evaluator.torch.evaluator import Modes
from hexloop.adapters.losses.torch import TorchLosses
from hexloop.adapters.trainable.torch import counters
from hexloop.adapters.trainable.torch.counters import OperationCounter, OperationMeter, TokenCounter
from hexloop.adapters.trainable.torch.loss import in_full_precision
from hexloop.adapters.trainable.torch.trainable import (
    LOCAL_ITEM_SUM,
    ItemSum,
    TorchTrainable,
    estimated_item_sum,
    exact_item_sum,
    resolved_count,
)
from hexloop.app.wiring.evaluation import HALF_FORMATS, prepared_loss, run_loss, takes_argument
from hexloop.app.wiring.parts import TrainerParts
from hexloop.app.wiring.state import layout_of
from hexloop.domain.loop import StandardLearner
from hexloop.domain.ranks import SharedLosses
from hexloop.domain.run import Run, windows
from hexloop.ports.learner import Learner
from hexloop.ports.losses import Losses
from hexloop.ports.parallelism import OwnUpdate

Windows = Callable[[Generator[Any, None, None], int], Generator[list[Any], None, None]]


@define
class WindowState:
    """Where a run is in its window of micro-batches, as far as an overridden hook needs to know.

    last_of_window: whether the gradients of the current micro-batch are those of an optimizer step.
    length: micro-batches of the current window; None if no hook that asks for it is overridden.
    """

    last_of_window: bool = True
    length: int | None = None


@frozen
class RunLearner:
    """What takes a run's training steps.

    standard: forward, backward and update as they are if no hook is overridden. learner: what the loop calls; the same
    object in that case. windows: groups micro-batches for each optimizer step. window: where the run is in its window.
    modes: the training modes of the model's modules, which evaluations change and the next step restores.
    """

    standard: Learner[Any, Any]
    learner: Learner[Any, Any]
    windows: Windows
    window: WindowState
    modes: Modes

    def count_items(self, window: Sequence[Any]) -> object:
        """Return the item count of a window as the standard learner counts, on the device."""
        return resolved_count(self.standard.count_items(window))


def make_learner(parts: TrainerParts, wrapped: Any, after: Callable[[], None]) -> RunLearner:
    """Return the standard learner, and around it the user's `training_step` and `get_batch_samples` if overridden.

    after: called after each optimizer step.
    """
    choice, modes, parallelism = prepared_loss(parts, run_loss(parts)), Modes(), parts.adapters.parallelism
    trainable = TorchTrainable(
        wrapped,
        parts.optimizer,
        choice.compute,
        normalises=choice.normalises,
        exact=parts.args.loss_weighting == "exact",
        label_names=parts.label_names,
        shifted=choice.shifted,
        item_sum=_item_sum(parts, choice.normalises),
        layout=layout_of(parts),
        inner=parts.model,
        restore_modes=modes.restore,
    )
    before = _before_optimizer_step(parts)
    standard: Learner[Any, Any]
    if parallelism.capabilities.owns_update:
        standard = cast("OwnUpdate[Any]", parallelism).learner(wrapped, trainable, before, after)
    else:
        accumulation = getattr(parts.args.accelerator_config, "gradient_accumulation_kwargs", None) or {}
        kind = SynchronisingLearner if accumulation.get("sync_each_batch") else StandardLearner
        standard = kind(trainable, parts.adapters.precision, parallelism, before, after)
    learner: Any = standard
    window, group = WindowState(), windows
    if parts.hooks.training_step.overridden:
        training_step = parts.hooks.training_step.method
        learner = OverriddenTrainingStep(standard, wrapped, training_step, trainable.enter_training_mode, window)
    if parts.hooks.get_batch_samples.overridden:
        learner = OverriddenBatchSamples(learner, parts.hooks.get_batch_samples.method, parts.args.device, window)
        group = learner.windows
    return RunLearner(standard, learner, group, window, modes)


def make_losses(parts: TrainerParts) -> Losses[Any]:
    """Return what sums the losses of steps until they are logged."""
    own = TorchLosses(parts.adapters.device.name, parts.args.logging_nan_inf_filter)
    collectives = parts.adapters.collectives
    return own if collectives.world_size == 1 else SharedLosses(own, collectives)


def _before_optimizer_step(parts: TrainerParts) -> Callable[[], None]:
    """Return what calls the callbacks, and with `torch_empty_cache_steps` also empties the device's cache."""
    every, release = parts.args.torch_empty_cache_steps, parts.adapters.device.release_memory

    def call() -> None:
        parts.dispatcher.call("on_pre_optimizer_step")

    def call_and_release() -> None:
        call()
        if parts.state.global_step % (every or 1) == 0:
            release()

    return call_and_release if every else call


def _item_sum(parts: TrainerParts, normalises: bool) -> ItemSum:
    """Return how the items of a window are counted over all processes: exactly, or estimated from this process.

    normalises: the loss divides by the count that it is given.
    """
    args, collectives = parts.args, parts.adapters.collectives
    size = collectives.world_size
    if size == 1:
        return LOCAL_ITEM_SUM
    exact = args.average_tokens_across_devices if normalises else args.loss_weighting == "exact"
    return exact_item_sum(size, parts.adapters.device.name, collectives) if exact else estimated_item_sum(size)


class SynchronisingLearner(StandardLearner[Any, Any]):
    """A standard learner that averages gradients at every micro-batch instead of the last one of a window.

    This is slower, but needs less memory if weights are sharded.
    """

    def micro_step(self, batch: Any, window_items: object, last_of_window: bool) -> Any:
        """Run forward and backward of one micro-batch, and average its gradients."""
        return super().micro_step(batch, window_items, True)


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


# Overridden hooks


@contextmanager
def reduced_precision(parts: TrainerParts, wrapped: Any) -> Iterator[None]:
    """Let the model compute in the run's precision for an overridden `training_step`, and return float32 to it.

    No-op if `training_step` is not overridden, or in full precision.
    """
    precision = parts.adapters.precision
    if not parts.hooks.training_step.overridden or precision.name not in HALF_FORMATS:
        yield
        return
    own, forward = vars(wrapped).get("forward"), precision.wrap(wrapped.forward)

    @wraps(wrapped.forward)
    def compute(*args: Any, **kwargs: Any) -> Any:
        return in_full_precision(forward(*args, **kwargs))

    wrapped.forward = compute
    try:
        yield
    finally:
        del wrapped.forward
        if own is not None:
            wrapped.forward = own


class OverriddenTrainingStep:
    """A learner whose micro-step is the user's `training_step(model, inputs[, num_items_in_batch])`.

    If the user's method calls the one that it overrides, that is the micro-step of `standard`.
    enter_training_mode: called before each micro-step.
    """

    def __init__(
        self,
        standard: Learner[Any, Tensor],
        model: Any,
        training_step: Callable[..., Tensor],
        enter_training_mode: Callable[[], None],
        window: WindowState,
    ) -> None:
        self._takes_count = takes_argument(training_step, "num_items_in_batch")
        self._training_step = training_step
        self._enter_training_mode = enter_training_mode
        self._model = model
        self._window = window
        self.standard = standard
        self.update = standard.update
        self.set_learning_rates = standard.set_learning_rates

    def count_items(self, window: Sequence[Any]) -> object:
        """Return the standard learner's count, resolved."""
        self._window.length = len(window)
        return resolved_count(self.standard.count_items(window))

    def micro_step(self, batch: Any, window_items: Any, last_of_window: bool) -> Tensor:
        """Call the user's step with a copy of the batch's mapping, because it may remove entries."""
        inputs = shallow_copy(batch)
        self._window.last_of_window = last_of_window
        self._enter_training_mode()
        if self._takes_count:
            return self._training_step(self._model, inputs, num_items_in_batch=window_items).detach()
        return self._training_step(self._model, inputs).detach()

    # Bound in __init__ to the standard learner's own methods.
    update: Callable[[float], tuple[SupportsFloat | None, bool]]
    set_learning_rates: Callable[[Sequence[float]], None]


class OverriddenBatchSamples:
    """A learner whose windows, and the item count of each, come from the user's `get_batch_samples`.

    If that returns no count, `learner` counts.
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
        """Yield the user's windows of an epoch."""
        with closing(batches):
            while True:
                window, self._count = self._get(batches, accumulation)
                if not window:
                    return
                yield list(window)

    def count_items(self, window: Sequence[Any]) -> object:
        """Return the user's count of the current window, or the learner's."""
        self._window.length = len(window)
        return self.learner.count_items(window) if self._count is None else self._count


# Counters


Counter: TypeAlias = TokenCounter | OperationCounter | OperationMeter


@define
class RunCounters:
    """The counters of a run, whose counts may stay on the device; `each_batch` are called with every micro-batch."""

    each_batch: Sequence[Any] = ()
    pending: list[Counter] = field(factory=list)

    def settle(self) -> None:
        """Add all pending counts to the run's state."""
        for counter in self.pending:
            counter.settle()


def make_counters(
    parts: TrainerParts, run: Run[Any, Any], learner: Learner[Any, Any], total: Callable[[float], float]
) -> RunCounters:
    """Return the counters that the arguments and hooks require; without an operation counter, measure operations.

    total: sums a number over all processes.
    """
    counting, each_batch, pending = parts.args.include_num_input_tokens_seen, list[Any](), list[Counter]()
    if counting != "no":
        padding = getattr(parts.processing_class, "pad_token_id", None)
        each_batch.append(TokenCounter(run, parts.main_input_name, counting == "non_padding", padding, total))
    hook = parts.hooks.floating_point_ops
    operations = hook.method if hook.overridden else counters.operations_in(parts.model)
    if operations is not None:
        each_batch.append(OperationCounter(run, operations, total))
    elif not parts.args.torch_compile:
        meter = OperationMeter(run, total)
        meter.measure(learner)
        pending.append(meter)
    return RunCounters(each_batch, [*each_batch, *pending])


def floating_point_operations(model: Any, inputs: Any) -> float:
    """Return the operations of forward and backward on a batch: the model's own figure, an estimate, or measured."""
    estimate = counters.operations_in(model)
    return counters.measured_operations(model, inputs) if estimate is None else estimate(inputs)
