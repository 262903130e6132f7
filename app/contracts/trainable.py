"""What a model does in the pieces of a training step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar, cast

import pytest

from hexloop.ports.trainable import Trainable

Batch = TypeVar("Batch")
Loss = TypeVar("Loss")


class TrainableContract(Generic[Batch, Loss]):
    """The suite of the Trainable port."""

    tolerance = 1e-6
    """The relative difference that rounding may make."""

    def make(self) -> Trainable[Batch, Loss]:
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

    def backward(self, loss: Loss) -> None:
        """Add the loss's gradients to those there are."""
        cast(Any, loss).backward()

    @pytest.fixture
    def trainable(self) -> Trainable[Batch, Loss]:
        """The adapter under test."""
        return self.make()

    def learn(self, trainable: Trainable[Batch, Loss], window: Sequence[Batch]) -> float:
        """Forward and backward of a window; gives back its loss."""
        items = trainable.count_items(window)
        total = 0.0
        for batch in window:
            loss = trainable.loss(batch, items)
            self.backward(loss)
            total += float(cast(Any, trainable.detached(loss)))
        return total

    def norm(self, trainable: Trainable[Batch, Loss]) -> float:
        """The norm of the gradients, which stay what they are."""
        norm = trainable.clip(1e30)
        assert norm is not None
        return float(norm)

    def test_the_loss_falls(self, trainable: Trainable[Batch, Loss]) -> None:
        """Each step on the same batch makes its loss smaller."""
        losses = []
        for _ in range(5):
            losses.append(self.learn(trainable, [self.whole()]))
            trainable.optimizer.step()
            trainable.clear_gradients()

        assert losses == sorted(losses, reverse=True)
        assert losses[-1] < losses[0]

    def test_a_window_may_be_cut_anywhere(self, trainable: Trainable[Batch, Loss]) -> None:
        """The batches of a window have between them the loss and the gradients of one batch with all its samples."""
        loss = self.learn(trainable, self.window())
        other = self.make()

        assert self.learn(other, [self.whole()]) == pytest.approx(loss, rel=self.tolerance)
        assert self.norm(other) == pytest.approx(self.norm(trainable), rel=self.tolerance)

    def test_gradients_pile_up_until_they_are_cleared(self, trainable: Trainable[Batch, Loss]) -> None:
        """The same loss twice has twice the gradient; clearing leaves none."""
        self.learn(trainable, [self.whole()])
        once = self.norm(trainable)
        self.learn(trainable, [self.whole()])

        assert self.norm(trainable) == pytest.approx(2 * once, rel=self.tolerance)
        trainable.clear_gradients()
        assert self.norm(trainable) == 0

    def test_clipping_scales_down_to_the_norm(self, trainable: Trainable[Batch, Loss]) -> None:
        """A norm above the limit becomes the limit, and the handle is what it was before."""
        self.learn(trainable, [self.whole()])
        norm = self.norm(trainable)

        assert float(cast(Any, trainable.clip(norm / 4))) == pytest.approx(norm, rel=self.tolerance)
        assert self.norm(trainable) == pytest.approx(norm / 4, rel=max(self.tolerance, 1e-5))

    @pytest.mark.parametrize("factor", [0, 2])
    def test_no_limit_and_a_large_one_leave_the_gradients(
        self, trainable: Trainable[Batch, Loss], factor: float
    ) -> None:
        """Zero means no limit, and a norm below the limit stays what it is."""
        self.learn(trainable, [self.whole()])
        norm = self.norm(trainable)
        trainable.clip(factor * norm)

        assert self.norm(trainable) == norm

    def test_the_rates_in_force_are_those_that_were_set(self, trainable: Trainable[Batch, Loss]) -> None:
        """With a rate of zero a step changes nothing."""
        before = self.learn(trainable, [self.whole()])
        trainable.set_learning_rates([0.0] * self.groups)
        trainable.optimizer.step()

        assert self.learn(trainable, [self.whole()]) == before

    groups = 1
    """How many parameter groups the adapter has."""

    def test_a_detached_loss_is_the_same_number(self, trainable: Trainable[Batch, Loss]) -> None:
        """What is left of a loss without its gradients has its value."""
        loss = trainable.loss(self.whole(), trainable.count_items([self.whole()]))

        assert float(cast(Any, trainable.detached(loss))) == float(cast(Any, loss))
