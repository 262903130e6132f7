"""What learns in two actions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Generic, TypeVar, cast

import pytest

from hexloop.ports.learner import Learner

Batch = TypeVar("Batch")
Loss = TypeVar("Loss")


class LearnerContract(Generic[Batch, Loss]):
    """The suite of the Learner port."""

    tolerance = 1e-6
    """The relative difference that rounding may make."""
    groups = 1
    """How many parameter groups the adapter has."""

    def make(self) -> Learner[Batch, Loss]:
        """A new adapter under test with the same weights each time, no randomness, and gradients that are not zero.

        Its learning rate is small enough for the loss of `whole` to fall at every one of the first steps.
        """
        raise NotImplementedError

    def window(self) -> Sequence[Batch]:
        """Two batches or more, with different numbers of items."""
        raise NotImplementedError

    def whole(self) -> Batch:
        """One batch of all samples of the window."""
        raise NotImplementedError

    @pytest.fixture
    def learner(self) -> Learner[Batch, Loss]:
        """The adapter under test."""
        return self.make()

    def step(
        self, learner: Learner[Batch, Loss], window: Sequence[Batch], max_norm: float = 0.0
    ) -> tuple[float, float | None]:
        """A whole step, which is taken; gives back the window's loss and the gradient norm."""
        items = learner.count_items(window)
        shares = [learner.micro_step(batch, items, index == len(window) - 1) for index, batch in enumerate(window)]
        norm, taken = learner.update(max_norm)
        assert taken
        return sum(float(cast(Any, share)) for share in shares), None if norm is None else float(norm)

    def test_the_loss_falls(self, learner: Learner[Batch, Loss]) -> None:
        """Each step on the same batch makes its loss smaller."""
        losses = [self.step(learner, [self.whole()])[0] for _ in range(5)]

        assert losses == sorted(losses, reverse=True)
        assert losses[-1] < losses[0]

    def test_a_window_may_be_cut_anywhere(self, learner: Learner[Batch, Loss]) -> None:
        """Steps on a window in batches have the losses and norms of those on one batch with all its samples."""
        other = self.make()

        for _ in range(4):
            cut = self.step(learner, self.window(), max_norm=1e30)
            assert self.step(other, [self.whole()], max_norm=1e30) == pytest.approx(cut, rel=self.tolerance)

    def test_the_norm_is_that_before_clipping(self, learner: Learner[Batch, Loss]) -> None:
        """However hard the gradients are clipped, the first step tells the same norm; a clipped step changes less."""
        loss, norm = self.step(learner, [self.whole()], max_norm=1e30)
        clipped = self.make()
        assert norm is not None
        assert norm > 0
        assert self.step(clipped, [self.whole()], max_norm=norm / 1000) == pytest.approx(
            (loss, norm), rel=self.tolerance
        )

        assert math.isfinite(self.step(clipped, [self.whole()])[0])

    def test_gradients_are_forgotten_after_a_step(self, learner: Learner[Batch, Loss]) -> None:
        """With a rate of zero every step is like the first."""
        learner.set_learning_rates([0.0] * self.groups)
        steps = [self.step(learner, self.window(), max_norm=1e30) for _ in range(3)]

        assert steps[0] == steps[1] == steps[2]
