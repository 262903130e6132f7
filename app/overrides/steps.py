"""The user's methods of a step: the loss, its context and inputs, `training_step`, `get_batch_samples` and clipping."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import wraps
from itertools import chain, islice
from typing import Any

from attrs import evolve

from hexloop.app.assembly.learner import RunLearner, SynchronisingLearner, Windows, WindowState
from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.torch.losses import (
    LossChoice,
    in_chunks,
    in_full_precision,
    is_only_forward_in_half,
    resolved_count,
    standard_loss,
    with_forward_in_half,
)
from hexloop.app.assembly.torch.transfer import shallow_copy
from hexloop.app.calling import accepts, fitted
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.learner import MIXED_FORMATS, Learner


def with_overridden_steps(parts: TrainerParts, made: RunLearner, model: Any) -> RunLearner:
    """Return a learner that calls the user's `training_step`, `get_batch_samples` and clipping, if there are some."""
    learner, group = made.learner, made.windows
    if parts.hooks.clips:
        _clip_by_override(parts, made.trainable, model)
    if parts.hooks.training_step.overridden:
        learner = _with_training_step(parts, made, model)
    if parts.hooks.provides_windows:
        learner, group = _with_batch_samples(parts, learner, made.window)
    return evolve(made, learner=learner, windows=group)


def _clip_by_override(parts: TrainerParts, trainable: Any, model: Any) -> None:
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
    precision, asked = parts.adapters.precision, not parts.rules.own_precision or parts.hooks.training_step.overridden
    if not asked or precision.name not in MIXED_FORMATS:
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


def _with_training_step(parts: TrainerParts, made: RunLearner, model: Any) -> LearnerMethods:
    """Return a learner whose micro-step is the user's `training_step(model, inputs[, num_items_in_batch])`.

    If the user's method calls the one that it overrides, that is the micro-step of `standard`.
    """
    standard, trainable, place = made.standard, made.trainable, made.window
    averages_each = isinstance(standard, SynchronisingLearner)
    learner = LearnerMethods(standard)
    training_step = fitted(parts.hooks.training_step.method, ("model", "inputs", "num_items_in_batch"))
    # In transformers the standard training_step does it: what an override does before is in the mode of an evaluation.
    enter_training_mode = trainable.enter_training_mode if parts.rules.run_sets_training_mode else (lambda: None)
    synchronise = parts.adapters.parallelism.synchronise

    def count_items(window: Sequence[Any]) -> object:
        place.length = len(window)
        return resolved_count(standard.count_items(window))

    def micro_step(batch: Any, window_items: object, last_of_window: bool) -> Any:
        inputs = shallow_copy(batch)  # the user's step may remove entries
        synchronise(last_of_window or averages_each)
        enter_training_mode()
        return training_step(model, inputs, window_items).detach()

    learner.count_items, learner.micro_step = count_items, micro_step
    return learner


def _with_batch_samples(
    parts: TrainerParts, inner: Learner[Any, Any], place: WindowState
) -> tuple[LearnerMethods, Windows]:
    """Return a learner and its windows, each of which, with its item count, comes from the user's `get_batch_samples`.

    The last window of an epoch is asked for as many micro-batches as are left. If the method returns no count, `inner`
    counts.
    """
    learner, device = LearnerMethods(inner), parts.args.device
    get = fitted(parts.hooks.get_batch_samples.method, ("epoch_iterator", "num_batches", "device"))
    count: object = None

    def windows_of_user(batches: Generator[Any, None, None], accumulation: int) -> Generator[list[Any], None, None]:
        nonlocal count
        rest: Iterator[Any] = batches
        with closing(batches):
            while True:
                left = place.batches_left
                if left == 0:
                    further = list(islice(batches, 1))
                    if not further:
                        return
                    rest = chain(further, batches)  # the data are longer than they say
                samples, count = get(rest, min(accumulation, left) if left else accumulation, device)
                if not samples:
                    return
                yield list(samples)

    def count_items(window: Sequence[Any]) -> object:
        place.length = len(window)
        return inner.count_items(window) if count is None else count

    learner.count_items = count_items
    return learner, windows_of_user


def run_loss(parts: TrainerParts) -> LossChoice:
    """Return the loss that `compute_loss` computes, overridden or not, in the context that an override provides."""
    hooks, choice = parts.hooks, standard_loss(parts)
    if hooks.computes_loss:
        choice = in_chunks(parts, _overridden_loss(parts, choice))
    if is_only_forward_in_half(parts):
        choice = evolve(choice, compute=with_forward_in_half(parts, choice.compute))
    if not hooks.computes_in_context:
        return choice

    def compute(*values: Any, **named: Any) -> Any:
        with hooks.compute_loss_context_manager():
            return choice.compute(*values, **named)

    return evolve(choice, compute=compute)


def _overridden_loss(parts: TrainerParts, standard: LossChoice) -> LossChoice:
    """Return the loss of an overridden `compute_loss`, which gets a copy of the batch and may remove entries of it.

    It is assumed to divide by the item count if the model's own loss does and it takes the count, unless
    `loss_is_scaled_for_ga` says otherwise. Under mixed precision the model returns float32 to it.
    """
    compute_loss, in_half = parts.hooks.compute_loss.method, parts.adapters.precision.name in MIXED_FORMATS
    takes_count, scaled = accepts(compute_loss, "num_items_in_batch"), parts.loss_is_scaled_for_ga

    def compute(model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        keywords: dict[str, Any] = {"return_outputs": True} if return_outputs else {}
        if takes_count:
            keywords["num_items_in_batch"] = num_items_in_batch
        with model.register_forward_hook(_full_precision_output) if in_half else nullcontext():
            return compute_loss(model, shallow_copy(inputs), **keywords)

    return LossChoice(compute, standard.normalises and takes_count if scaled is None else scaled, standard.shifted)


def _full_precision_output(_model: Any, _inputs: Any, outputs: Any) -> Any:
    return in_full_precision(outputs)


def prepared_loss(parts: TrainerParts, choice: LossChoice) -> LossChoice:
    """Return the loss of the inputs that an overridden `_prepare_inputs` returns."""
    if not parts.hooks.prepares_inputs:
        return choice

    def compute(model: Any, inputs: Any, *values: Any, **named: Any) -> Any:
        return choice.compute(model, parts.hooks.prepare_inputs(shallow_copy(inputs)), *values, **named)

    return evolve(choice, compute=compute)
