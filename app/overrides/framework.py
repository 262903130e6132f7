"""torch as the framework of a run, with the user's methods of steps and predictions where there are some."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from hexloop.app.assembly.learner import RunLearner
from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.torch.framework import TorchFramework
from hexloop.app.assembly.torch.learner import make_learner
from hexloop.app.overrides.predictions import evaluator_for
from hexloop.app.overrides.steps import prepared_loss, reduced_precision, run_loss, with_overridden_steps
from hexloop.ports.batches import Evaluator


class TorchWithOverrides(TorchFramework):
    """torch, by the user's `training_step`, `compute_loss`, `prediction_step` and so on."""

    def learner(self, parts: TrainerParts, wrapped: Any, after: Callable[[], None]) -> RunLearner:
        """See `Framework.learner`."""
        loss = prepared_loss(parts, run_loss(parts))
        return with_overridden_steps(parts, make_learner(parts, wrapped, loss, after), wrapped)

    def precision(self, parts: TrainerParts, wrapped: Any) -> AbstractContextManager[Any]:
        """See `Framework.precision`."""
        return reduced_precision(parts, wrapped)

    def evaluator(
        self,
        parts: TrainerParts,
        loader: Any,
        loss_only: bool | None,
        ignore_keys: list[str] | None,
        prefix: str,
        keep: bool,
    ) -> Evaluator[Any]:
        """See `Framework.evaluator`."""
        return evaluator_for(parts, loader, loss_only, ignore_keys, prefix, keep)
