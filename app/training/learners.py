"""The wrapped model, its optimizer and schedule, and what takes a training step with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch

from hexloop.adapters.trainable.torch.trainable import TorchTrainable
from hexloop.app.training.hooks import OverriddenBatchSamples, OverriddenTrainingStep, is_overridden
from hexloop.app.training.losses import loss_in_force, preparing
from hexloop.app.training.sharded import layout_of
from hexloop.app.training.worlds import parallelism_of, world_of
from hexloop.domain.step import StandardLearner
from hexloop.ports.learner import Learner
from hexloop.ports.parallelism import OwnUpdate

if TYPE_CHECKING:
    from hexloop.app.trainer import Trainer


def prepare(trainer: Trainer, model: Any, total_steps: int) -> Any:
    """Wrap the model, make the optimizer over what it then holds, compile, make the schedule."""

    def make_optimizer(wrapped: Any) -> Any:
        trainer.model_wrapped = wrapped
        trainer.create_optimizer_and_scheduler(total_steps)
        return trainer.optimizer

    with trainer.making_own_optimizer():
        wrapped, trainer.optimizer = trainer.adapters.parallelism.prepare(model, make_optimizer)
        if trainer.lr_scheduler is None:  # the engine has made the optimizer itself
            trainer.create_scheduler(num_training_steps=total_steps)
    if trainer.args.torch_compile:
        wrapped = torch.compile(
            wrapped, backend=trainer.args.torch_compile_backend or "inductor", mode=trainer.args.torch_compile_mode
        )
    trainer.model_wrapped = wrapped
    wrapped.train()
    return wrapped


class AfterStep:
    """What a learner calls after each optimizer step; `first` is called once, after the first one."""

    def __init__(self, each: Callable[[], None]) -> None:
        self._each = self._call = each

    def __call__(self) -> None:
        """Call what there is to call."""
        self._call()

    def first(self, call: Callable[[], None]) -> None:
        """Let `call` follow the next optimizer step."""

        def call_both() -> None:
            self._call = self._each
            self._each()
            call()

        self._call = call_both


def make_learner(
    trainer: Trainer, wrapped: Any, after: Callable[[], None], restore_modes: Callable[[], None]
) -> tuple[Learner[Any, Any], Learner[Any, Any]]:
    """The standard learner, and the one that the loop gets: the same, unless `training_step` is overridden.

    after: called after each optimizer step. restore_modes: puts modules back in the modes from before an evaluation.
    """
    choice = preparing(trainer, loss_in_force(trainer))
    trainable = TorchTrainable(
        wrapped,
        trainer.optimizer,
        choice.compute,
        normalises=choice.normalises,
        exact=trainer.args.loss_weighting == "exact",
        label_names=trainer.label_names,
        shifted=choice.shifted,
        world=world_of(trainer, choice.normalises),
        layout=layout_of(trainer),
        inner=trainer.model,
        restore_modes=restore_modes,
    )
    before, parallelism = _before_optimizer_step(trainer), trainer.adapters.parallelism
    standard: Learner[Any, Any]
    if parallelism.capabilities.owns_update:
        standard = cast("OwnUpdate[Any]", parallelism).learner(wrapped, trainable, before, after)
    else:
        standard = StandardLearner(trainable, trainer.adapters.precision, parallelism_of(trainer), before, after)
    learner: Any = standard
    if is_overridden(trainer, "training_step"):
        learner = OverriddenTrainingStep(standard, wrapped, trainer.training_step, trainable.enter_training_mode)
    if is_overridden(trainer, "get_batch_samples"):
        learner = OverriddenBatchSamples(learner, trainer.get_batch_samples, trainer.args.device)
    return standard, learner


def _before_optimizer_step(trainer: Trainer) -> Callable[[], None]:
    """Tell the callbacks; every so many steps, where that is asked for, also empty the device's cache."""
    every, release = trainer.args.torch_empty_cache_steps, trainer.adapters.device.release_memory

    def tell() -> None:
        trainer._dispatcher.call("on_pre_optimizer_step")

    def tell_and_release() -> None:
        tell()
        if trainer.state.global_step % (every or 1) == 0:
            release()

    return tell_and_release if every else tell
