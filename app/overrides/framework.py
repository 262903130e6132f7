"""torch as the framework of a run, with the user's methods of steps and predictions where there are some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hexloop.app.assembly.framework import METHODS
from hexloop.app.assembly.learner import RunLearner
from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.torch.framework import TorchFramework
from hexloop.app.assembly.torch.learner import make_learner
from hexloop.app.overrides.predictions import evaluator_for
from hexloop.app.overrides.steps import prepared_loss, reduced_precision, run_loss, with_overridden_steps


class TorchWithOverrides(TorchFramework):
    """torch, by the user's `training_step`, `compute_loss`, `prediction_step` and so on."""

    calls = frozenset(METHODS)

    def learner(self, parts: TrainerParts, wrapped: Any, after: Callable[[], None]) -> RunLearner:
        """See `Framework.learner`."""
        loss = prepared_loss(parts, run_loss(parts))
        return with_overridden_steps(parts, make_learner(parts, wrapped, loss, after), wrapped)

    precision = staticmethod(reduced_precision)
    evaluator = staticmethod(evaluator_for)
