"""The wrapped model, its optimizer and schedule, and what takes a training step with them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, cast

from attrs import frozen

from hexloop.adapters.trainable.torch.trainable import TorchTrainable
from hexloop.app.training.hooks import OverriddenBatchSamples, OverriddenTrainingStep, WindowState
from hexloop.app.training.losses import loss_in_force, preparing
from hexloop.app.training.sharded import layout_of
from hexloop.app.training.worlds import parallelism_of, world_of
from hexloop.app.wiring.parts import TrainerParts
from hexloop.domain.run import windows
from hexloop.domain.step import StandardLearner
from hexloop.ports.learner import Learner
from hexloop.ports.parallelism import OwnUpdate

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
