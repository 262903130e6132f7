"""What takes a run's training steps: the standard learner, the user's overridden hooks around it, and counters."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch

from hexloop.adapters.evaluator.torch.evaluator import Modes
from hexloop.adapters.losses.torch import RunningLoss, TorchLosses, TorchWindowValues
from hexloop.adapters.precision.plain import ForwardAlone
from hexloop.adapters.trainable.torch.capture import CapturedLearner
from hexloop.adapters.trainable.torch.peft_tensors import RankUpdates
from hexloop.adapters.trainable.torch.reproduction import TransformersTrainable
from hexloop.adapters.trainable.torch.trainable import (
    LOCAL_ITEM_SUM,
    ItemSum,
    TorchTrainable,
    estimated_item_sum,
    resolved_count,
)
from hexloop.app.assembly.learner import RunLearner, SynchronisingLearner, WindowState
from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.torch.losses import LossChoice, components_of, is_only_forward_in_half, item_sum, window_items
from hexloop.app.assembly.torch.model import compiled
from hexloop.app.assembly.torch.state import layout_of
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.loop import StandardLearner
from hexloop.domain.ranks import SharedLosses, SharedWindowValues
from hexloop.domain.run import windows
from hexloop.ports.learner import Learner, Losses, WindowValues
from hexloop.ports.parallelism import OwnUpdate, SteppingInBackward

LOGGER = logging.getLogger("hexloop")


def make_learner(parts: TrainerParts, wrapped: Any, choice: LossChoice, after: Callable[[], None]) -> RunLearner:
    """Return the standard learner of a wrapped model. after: called after each optimizer step."""
    modes, parallelism, averages = Modes(), parts.adapters.parallelism, parts.averages.weights
    if not parts.rules.own_losses:
        parts.loss_tap.components = components_of(parts, choice)  # none, or an error
        trainable: TorchTrainable = _transformers_trainable(parts, wrapped, choice.compute)
    else:
        parts.loss_tap.components = components = components_of(parts, choice)
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
            components=components,
        )
    if parallelism.capabilities.owns_update:  # those of the optimizer's parameters are buffers of the engine
        parts.model.zero_grad(set_to_none=True)
    else:
        trainable.clear_gradients()  # a run may have failed in the middle of a window
    close = _step_in_backward(parts, trainable)
    if averages.before_forward is not None:
        trainable.loss = _after(averages.before_forward, trainable.loss)  # type: ignore[method-assign]
    before, ranks = _before_optimizer_step(parts), _rank_updates(parts)
    if ranks is not None:
        before = _both(ranks.before_step, before)
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
        if parts.args.capture_step:
            standard = _captured(parts, trainable, before, after)
        else:
            standard = kind(trainable, precision, parallelism, before, after, parts.backward)
            if ranks is not None:
                standard.before_clearing = partial(_update_ranks, parts.state, ranks)

    if averages.after_step is not None and isinstance(standard, StandardLearner):
        standard.before_clearing = _each(standard.before_clearing, averages.after_step)

    def count_items(window: Sequence[Any]) -> object:
        return resolved_count(standard.count_items(window))

    return RunLearner(standard, standard, windows, WindowState(), modes, trainable, count_items, close)


def _step_in_backward(parts: TrainerParts, trainable: TorchTrainable) -> Callable[[], None]:
    """Let parameters be updated within the backward pass if the parallelism does that. Return what ends it.

    Raises ConfigurationError if the optimizer or an override of the user's cannot do without all gradients at once.
    """
    args, parallelism = parts.args, parts.adapters.parallelism
    if not parallelism.capabilities.steps_in_backward:
        return lambda: None
    if parts.hooks.clips:
        raise ConfigurationError(
            "_clip_grad_norm or _get_grad_norm is overridden, but with layer-wise steps each gradient is freed within "
            "the backward pass, before they could be called; remove the override, or choose an optimizer that steps at "
            "the end (optim_layerwise=False)."
        )
    accumulation = getattr(args.accelerator_config, "gradient_accumulation_kwargs", None) or {}
    if accumulation.get("sync_each_batch"):
        raise ConfigurationError(
            "sync_each_batch in accelerator_config cannot be combined with layer-wise steps, which complete gradients "
            "in the last micro-batch of a step only; leave it out."
        )
    if args.max_grad_norm > 0 and args.gradient_accumulation_steps == 1 and args.should_log:
        LOGGER.warning(
            "Layer-wise steps with max_grad_norm=%g run the backward pass twice, because the norm of all gradients has "
            "to be known before the first update. Set max_grad_norm=0 to run it once, without clipping.",
            args.max_grad_norm,
        )
    return cast("SteppingInBackward[Any]", parallelism).attach(trainable, args.max_grad_norm)


def _after(first: Callable[[], object], call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `first`, and then returns what `call` returns."""

    def both(*values: Any) -> Any:
        first()
        return call(*values)

    return both


def _each(first: Callable[[bool], None] | None, second: Callable[[bool], None]) -> Callable[[bool], None]:
    """Return a function that passes whether a step was taken to both functions."""
    if first is None:
        return second
    earlier = first

    def both(taken: bool) -> None:
        earlier(taken)
        second(taken)

    return both


def _rank_updates(parts: TrainerParts) -> RankUpdates | None:
    """Return what AdaLoRA does after each optimizer step, if the model has adapters of it.

    Raises ConfigurationError if it could not: it reads the gradients of whole matrices.
    """
    ranks, capabilities = RankUpdates.of(parts.unwrapped_model), parts.adapters.parallelism.capabilities
    if ranks is None:
        return None
    if capabilities.steps_in_backward:
        raise ConfigurationError(
            "AdaLoRA cannot be trained with layer-wise steps, which free each gradient before it could read them; "
            "choose an optimizer that steps at the end (optim_layerwise=False), or another kind of adapters."
        )
    if capabilities.owns_update or capabilities.sharded:
        raise ConfigurationError(
            f"AdaLoRA cannot be trained with the parallelism {capabilities.name}: it changes the ranks of its matrices "
            "by their whole gradients, which no process has; use DDP, or another kind of adapters."
        )
    if parts.args.capture_step:
        raise ConfigurationError(
            "AdaLoRA cannot be trained with capture_step=True: it decides on ranks in Python after each step, which "
            "would run only while a step is recorded; leave capture_step out, or use another kind of adapters."
        )
    return ranks


def _update_ranks(state: Any, ranks: RankUpdates, taken: bool) -> None:
    if taken:
        ranks.after_step(state.global_step)


def _both(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    def call() -> None:
        first()
        second()

    return call


def _captured(
    parts: TrainerParts, trainable: TorchTrainable, before: Callable[[], None], after: Callable[[], None]
) -> CapturedLearner:
    """Return the learner of `capture_step`. Raises ConfigurationError for what cannot be captured."""
    args, adapters = parts.args, parts.adapters
    if parts.backward is not None:
        raise ConfigurationError(
            "capture_step=True cannot be used with a backward pass of your own (accelerator.backward or "
            "accelerator.gradient_accumulation_steps was assigned), whose Python code would run only while it is "
            "recorded; leave one of them out."
        )
    return CapturedLearner(
        trainable,
        adapters.precision,
        adapters.parallelism,
        before,
        after,
        record=adapters.device.capture if adapters.device.capabilities.captures else None,
        compiling=partial(compiled, args=args) if args.torch_compile else None,
    )


def _transformers_trainable(parts: TrainerParts, wrapped: Any, compute: Any) -> TransformersTrainable:
    items, has_function = window_items(parts), parts.compute_loss_func is not None

    def scaled(count: Any) -> bool:
        if parts.loss_is_scaled_for_ga is not None:
            return parts.loss_is_scaled_for_ga
        return has_function or (parts.model_accepts_loss_kwargs and count is not None)

    return TransformersTrainable(wrapped, parts.optimizer, compute, inner=parts.model, items=items, scaled=scaled)


def make_losses(parts: TrainerParts) -> Losses[Any]:
    """Return what sums the losses of steps until they are logged."""
    collectives = parts.adapters.data_collectives
    several = parts.adapters.mesh.data.size > 1
    own = _own_losses(parts, several)
    if isinstance(own, TorchLosses) and parts.loss_tap.components is not None:
        parts.loss_tap.components.receive = own.add_component
    return SharedLosses(own, collectives) if several and parts.rules.own_losses else own


def make_window_values(parts: TrainerParts) -> WindowValues[Any]:
    """Return what collects the loss and the gradient norm of each step until they are read."""
    own, collectives = TorchWindowValues(), parts.adapters.data_collectives
    return own if parts.adapters.mesh.data.size == 1 else SharedWindowValues(own, collectives)


def _own_losses(parts: TrainerParts, averages: bool = False) -> Losses[Any]:
    """Return what sums this process's losses. averages: with `reproduce`, a drain averages over the processes."""
    device, filters = parts.adapters.device.name, parts.args.logging_nan_inf_filter
    if parts.rules.own_losses:
        return TorchLosses(device, filters)
    state, several = parts.state, parts.adapters.data_collectives if averages else None
    return RunningLoss(device, filters, lambda: state.global_step, several)


def undrained(parts: TrainerParts, losses: Losses[Any]) -> float:
    """Return the sum of this process's losses that were not drained yet, and leave it there."""
    own = _own_losses(parts)
    own.load(losses.export())
    return own.drain()


class SummedLoss:
    """The sum of the losses since the last log, as an overridden `_maybe_log_save_evaluate` receives it.

    total: a scalar in float32 on the device, which the method sets to zero in place when it logs. processes: how many
    times a share of this process counts. undrained: the sum of this process's losses so far.
    """

    def __init__(self, parts: TrainerParts, processes: int, undrained: float) -> None:
        self.total = torch.tensor(processes * undrained, dtype=torch.float32, device=parts.adapters.device.name)
        self._processes, self._filters = processes, parts.args.logging_nan_inf_filter

    def add(self, share: Any, steps: int) -> None:
        """Add a share, the last of so many `steps` since the last log."""
        if self._filters:  # a loss that is not finite counts as the mean of the others
            share = torch.where(torch.isfinite(share), share, self.total / (self._processes * steps))
        self.total.add_(share, alpha=self._processes)


def loss_figures(parts: TrainerParts, losses: Losses[Any], steps: int) -> dict[str, float]:
    """Return the mean loss of a run that has ended, if it is not that of all processes."""
    if parts.rules.own_losses:
        return {}
    return {"train_loss": cast(RunningLoss, losses).total / max(steps, 1)}


def _before_optimizer_step(parts: TrainerParts) -> Callable[[], None]:
    """Return what calls the callbacks, and with `torch_empty_cache_steps` also empties the device's cache."""
    every, release = parts.args.torch_empty_cache_steps, parts.adapters.device.release_memory

    call = partial(parts.dispatcher.call, "on_pre_optimizer_step")

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
