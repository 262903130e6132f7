"""What takes a run's training steps: the standard learner, the user's overridden hooks around it, and counters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial, wraps
from itertools import chain, islice
from typing import Any, cast

from attrs import define, frozen

from hexloop.adapters.batches.torch.structure import shallow_copy
from hexloop.adapters.evaluator.torch.evaluator import Modes
from hexloop.adapters.losses.torch import RunningLoss, TorchLosses, TorchWindowValues
from hexloop.adapters.precision.plain import ForwardAlone
from hexloop.adapters.trainable.torch.loss import in_full_precision
from hexloop.adapters.trainable.torch.reproduction import TransformersTrainable
from hexloop.adapters.trainable.torch.trainable import (
    LOCAL_ITEM_SUM,
    ItemSum,
    TorchTrainable,
    estimated_item_sum,
    resolved_count,
)
from hexloop.app.wiring.evaluation import (
    is_only_forward_in_half,
    item_sum,
    prepared_loss,
    run_loss,
    takes_argument,
    window_items,
)
from hexloop.app.wiring.parts import TrainerParts
from hexloop.app.wiring.state import layout_of
from hexloop.domain.errors import ConfigurationError, DataError
from hexloop.domain.loop import StandardLearner
from hexloop.domain.ranks import SharedLosses, SharedWindowValues
from hexloop.domain.run import windows
from hexloop.ports.learner import HALF_FORMATS, Learner, Losses, WindowValues
from hexloop.ports.parallelism import OwnUpdate

Windows = Callable[[Generator[Any, None, None], int], Generator[list[Any], None, None]]


@define
class WindowState:
    """Where a run is in its window of micro-batches, as far as an overridden hook needs to know.

    length: micro-batches of the current window; None if no hook that asks for it is overridden. batches_left: returns
    how many micro-batches the epoch has after those of all windows so far; None if that is not known.
    """

    length: int | None = None
    batches_left: Callable[[], int | None] = lambda: None


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
    if parts.args.reproduce is not None:
        trainable: TorchTrainable = _transformers_trainable(parts, wrapped, choice.compute)
    else:
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
    if parallelism.capabilities.owns_update:  # those of the optimizer's parameters are buffers of the engine
        parts.model.zero_grad(set_to_none=True)
    else:
        trainable.clear_gradients()  # a run may have failed in the middle of a window
    if parts.hooks.clip_grad_norm.overridden or parts.hooks.get_grad_norm.overridden:
        _clip_by_override(parts, trainable, wrapped)
    before = _before_optimizer_step(parts)
    standard: Learner[Any, Any]
    if parallelism.capabilities.owns_update:
        if parts.backward is not None:
            raise ConfigurationError(
                f"accelerator.backward or accelerator.gradient_accumulation_steps was assigned, but "
                f"{parallelism.capabilities.name} makes the backward pass itself; override compute_loss instead."
            )
        standard = cast("OwnUpdate[Any]", parallelism).learner(wrapped, trainable, before, after)
    else:
        accumulation = getattr(parts.args.accelerator_config, "gradient_accumulation_kwargs", None) or {}
        kind = SynchronisingLearner if accumulation.get("sync_each_batch") else StandardLearner
        precision = parts.adapters.precision
        if is_only_forward_in_half(parts):
            precision = ForwardAlone(precision)
        standard = kind(trainable, precision, parallelism, before, after, parts.backward)
    learner: Learner[Any, Any] = standard
    group: Windows = windows
    window = WindowState()
    if parts.hooks.training_step.overridden:
        learner = _with_training_step(parts, standard, trainable, wrapped, window)
    if parts.hooks.provides_windows:
        learner, group = _with_batch_samples(parts, learner, window)
    return RunLearner(standard, learner, group, window, modes)


def _transformers_trainable(parts: TrainerParts, wrapped: Any, compute: Any) -> TransformersTrainable:
    items, has_function = window_items(parts), parts.compute_loss_func is not None

    def scaled(count: Any) -> bool:
        if parts.loss_is_scaled_for_ga is not None:
            return parts.loss_is_scaled_for_ga
        return has_function or (parts.model_accepts_loss_kwargs and count is not None)

    return TransformersTrainable(wrapped, parts.optimizer, compute, inner=parts.model, items=items, scaled=scaled)


def whole_windows(group: Windows) -> Windows:
    """Return `group`, which raises DataError where transformers would keep gradients for the next epoch."""

    def checked(batches: Generator[Any, None, None], accumulation: int) -> Generator[list[Any], None, None]:
        with closing(group(batches, accumulation)) as found:
            for window in found:
                if len(window) < accumulation:
                    raise DataError(
                        f"The data have no length and ended after {len(window)} of the {accumulation} micro-batches "
                        "of a step, whose gradients transformers adds to the next epoch's first step and "
                        "reproduce='transformers' does not; give the data set a length, let its batches fill whole "
                        "steps, or leave reproduce out."
                    )
                yield window

    return checked


def make_losses(parts: TrainerParts) -> Losses[Any]:
    """Return what sums the losses of steps until they are logged."""
    collectives = parts.adapters.data_collectives
    if parts.adapters.mesh.data.size == 1:
        return _own_losses(parts)
    return SharedLosses(_own_losses(parts), collectives) if parts.args.reproduce is None else _own_losses(parts, True)


def make_window_values(parts: TrainerParts) -> WindowValues[Any]:
    """Return what collects the loss and the gradient norm of each step until they are read."""
    own, collectives = TorchWindowValues(), parts.adapters.data_collectives
    return own if parts.adapters.mesh.data.size == 1 else SharedWindowValues(own, collectives)


def _own_losses(parts: TrainerParts, averages: bool = False) -> Losses[Any]:
    """Return what sums this process's losses. averages: with `reproduce`, a drain averages over the processes."""
    device, filters = parts.adapters.device.name, parts.args.logging_nan_inf_filter
    if parts.args.reproduce is None:
        return TorchLosses(device, filters)
    state, several = parts.state, parts.adapters.data_collectives if averages else None
    return RunningLoss(device, filters, lambda: state.global_step, several)


def undrained(parts: TrainerParts, losses: Losses[Any]) -> float:
    """Return the sum of this process's losses that were not drained yet, and leave it there."""
    own = _own_losses(parts)
    own.load(losses.export())
    return own.drain()


def loss_figures(parts: TrainerParts, losses: Losses[Any], steps: int) -> dict[str, float]:
    """Return the mean loss of a run that has ended, if it is not that of all processes."""
    if parts.args.reproduce is None:
        return {}
    return {"train_loss": cast(RunningLoss, losses).total / max(steps, 1)}


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
    args, adapters = parts.args, parts.adapters
    size = adapters.mesh.data.size
    if size == 1:
        return LOCAL_ITEM_SUM
    exact = args.average_tokens_across_devices if normalises else args.loss_weighting == "exact"
    return item_sum(adapters) if exact else estimated_item_sum(size)


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


def _clip_by_override(parts: TrainerParts, trainable: TorchTrainable, model: Any) -> None:
    """Let the user's `_clip_grad_norm` clip, if `max_grad_norm` is above 0, and `_get_grad_norm` return the norm.

    Raises ConfigurationError if the engine clips by itself.
    """
    if parts.adapters.parallelism.capabilities.owns_update:
        raise ConfigurationError(
            "_clip_grad_norm or _get_grad_norm is overridden, but the engine of this run clips the gradients itself "
            "and never calls them; remove the override, or train with another engine."
        )
    clip, norm_of = parts.hooks.clip_grad_norm, parts.hooks.get_grad_norm

    def clip_and_measure(max_norm: float) -> Any:
        norm = clip(model) if max_norm > 0 else None
        return norm_of(model, grad_norm=norm)

    trainable.clip = clip_and_measure


@contextmanager
def reduced_precision(parts: TrainerParts, wrapped: Any) -> Iterator[None]:
    """Let the model compute in the run's precision for an overridden `training_step`, and return float32 to it.

    With `reproduce` always, because callbacks may call the model. No-op in full precision.
    """
    precision, asked = (
        parts.adapters.precision,
        parts.args.reproduce is not None or parts.hooks.training_step.overridden,
    )
    if not asked or precision.name not in HALF_FORMATS:
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


class LearnerMethods:
    """The methods of a learner, some of which call hooks of the user's instead."""

    def __init__(self, learner: Learner[Any, Any]) -> None:
        self.count_items = learner.count_items
        self.micro_step = learner.micro_step
        self.update = learner.update


def _with_training_step(
    parts: TrainerParts, standard: Learner[Any, Any], trainable: TorchTrainable, model: Any, place: WindowState
) -> LearnerMethods:
    """Return a learner whose micro-step is the user's `training_step(model, inputs[, num_items_in_batch])`.

    If the user's method calls the one that it overrides, that is the micro-step of `standard`.
    """
    learner, training_step = LearnerMethods(standard), parts.hooks.training_step.method
    by_position = _takes_positional(training_step, 3)  # as in transformers, so that the name is the user's choice
    takes_count = not by_position and takes_argument(training_step, "num_items_in_batch")
    # In transformers the standard training_step does it: what an override does before is in the mode of an evaluation.
    enter_training_mode = trainable.enter_training_mode if parts.args.reproduce is None else (lambda: None)
    synchronise, each = parts.adapters.parallelism.synchronise, isinstance(standard, SynchronisingLearner)

    def count_items(window: Sequence[Any]) -> object:
        place.length = len(window)
        return resolved_count(standard.count_items(window))

    def micro_step(batch: Any, window_items: object, last_of_window: bool) -> Any:
        inputs = shallow_copy(batch)  # the user's step may remove entries
        synchronise(last_of_window or each)
        enter_training_mode()
        if by_position:
            return training_step(model, inputs, window_items).detach()
        if takes_count:
            return training_step(model, inputs, num_items_in_batch=window_items).detach()
        return training_step(model, inputs).detach()

    learner.count_items, learner.micro_step = count_items, micro_step
    return learner


def _takes_positional(function: Callable[..., Any], count: int) -> bool:
    """Return whether a function takes `count` arguments by position."""
    parameters = inspect.signature(function).parameters.values()
    by_position = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    return len(by_position) >= count or any(each.kind is each.VAR_POSITIONAL for each in parameters)


def _with_device(get: Callable[..., Any], device: Any, batches: Iterator[Any], number: int) -> Any:
    return get(batches, number, device)


def _with_batch_samples(
    parts: TrainerParts, inner: Learner[Any, Any], place: WindowState
) -> tuple[LearnerMethods, Windows]:
    """Return a learner and its windows, each of which, with its item count, comes from the user's `get_batch_samples`.

    The last window of an epoch is asked for as many micro-batches as are left. If the method returns no count, `inner`
    counts.
    """
    learner, get = LearnerMethods(inner), parts.hooks.get_batch_samples.method
    if _takes_positional(get, 3):  # earlier releases of transformers passed no device
        get = partial(_with_device, get, parts.args.device)
    count: object = None

    def windows_of_user(batches: Generator[Any, None, None], accumulation: int) -> Generator[list[Any], None, None]:
        nonlocal count
        rest: Iterator[Any] = batches
        with closing(batches):
            while True:
                left = place.batches_left()
                if left == 0:
                    further = list(islice(batches, 1))
                    if not further:
                        return
                    rest = chain(further, batches)  # the data are longer than they say
                samples, count = get(rest, min(accumulation, left) if left else accumulation)
                if not samples:
                    return
                yield list(samples)

    def count_items(window: Sequence[Any]) -> object:
        place.length = len(window)
        return inner.count_items(window) if count is None else count

    learner.count_items = count_items
    return learner, windows_of_user
