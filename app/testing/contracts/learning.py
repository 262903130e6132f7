"""Contract suites of the ports that a training step uses: Learner, Trainable, Losses and Scheduler."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

import pytest

from hexloop.app.testing.contracts.overriding import not_overridden
from hexloop.app.testing.contracts.state import contents, kept
from hexloop.ports.learner import Learner, Losses, Scheduler, Trainable, WindowValues

Batch = TypeVar("Batch")
Loss = TypeVar("Loss")


Model = TypeVar("Model")


class WindowContract(Generic[Model, Batch]):
    """What the suites of Learner and Trainable need of an adapter."""

    tolerance = 1e-6
    """Relative tolerance for rounding."""

    def make(self) -> Model:
        """Return a new adapter under test, always with the same weights, without randomness, with nonzero gradients.

        Its learning rate is small enough for the loss of `whole` to decrease at each of the first steps.
        """
        raise not_overridden(self)

    def window(self) -> Sequence[Batch]:
        """Return at least two batches with different numbers of items."""
        raise not_overridden(self)

    def whole(self) -> Batch:
        """Return one batch with all samples of the window."""
        raise not_overridden(self)


def take_step(
    learner: Learner[Batch, Loss], window: Sequence[Batch], max_norm: float = 0.0
) -> tuple[float, float | None]:
    """Run a complete step that is not skipped; return the window's loss and the gradient norm.

    Args:
        learner: the learner that takes the step.
        window: the micro-batches of the step.
        max_norm: the norm to clip the gradient to; 0 disables clipping.
    """
    items = learner.count_items(window)
    shares = [learner.micro_step(batch, items, index == len(window) - 1) for index, batch in enumerate(window)]
    norm, taken = learner.update(max_norm)
    assert taken
    return sum(float(cast(Any, share)) for share in shares), None if norm is None else float(norm)


class LearnerContract(WindowContract[Learner[Batch, Loss], Batch], Generic[Batch, Loss]):
    """Contract suite of the Learner port."""

    def make_frozen(self) -> Learner[Batch, Loss]:
        """Return what `make` returns, with a learning rate of zero, so that its steps leave the weights as they are."""
        raise not_overridden(self)

    @pytest.fixture
    def learner(self) -> Learner[Batch, Loss]:
        """The adapter under test."""
        return self.make()

    def test_the_loss_falls(self, learner: Learner[Batch, Loss]) -> None:
        """Each step on the same batch decreases its loss."""
        losses = [take_step(learner, [self.whole()])[0] for _ in range(5)]

        assert losses == sorted(losses, reverse=True)
        assert losses[-1] < losses[0]

    def test_a_window_can_be_split_anywhere(self, learner: Learner[Batch, Loss]) -> None:
        """Steps on a window of several batches have the same losses and norms as steps on one batch of all samples."""
        other = self.make()

        for _ in range(4):
            cut = take_step(learner, self.window(), max_norm=1e30)
            assert take_step(other, [self.whole()], max_norm=1e30) == pytest.approx(cut, rel=self.tolerance)

    def test_the_norm_is_measured_before_clipping(self, learner: Learner[Batch, Loss]) -> None:
        """The first step returns the norm before clipping, whatever the limit."""
        loss, norm = take_step(learner, [self.whole()], max_norm=1e30)
        clipped = self.make()
        assert norm is not None
        assert norm > 0
        assert take_step(clipped, [self.whole()], max_norm=norm / 1000) == pytest.approx(
            (loss, norm), rel=self.tolerance
        )

        assert math.isfinite(take_step(clipped, [self.whole()])[0])

    def test_gradients_are_cleared_after_a_step(self) -> None:
        """With a learning rate of zero, every step is the same as the first."""
        learner = self.make_frozen()
        steps = [take_step(learner, self.window(), max_norm=1e30) for _ in range(3)]

        assert steps[0] == steps[1] == steps[2]


class TrainableContract(WindowContract[Trainable[Batch, Loss], Batch], Generic[Batch, Loss]):
    """Contract suite of the Trainable port."""

    def backward(self, loss: Loss) -> None:
        """Accumulate the gradients of the loss.

        Args:
            loss: what the trainable returned.
        """
        cast(Any, loss).backward()

    @pytest.fixture
    def trainable(self) -> Trainable[Batch, Loss]:
        """The adapter under test."""
        return self.make()

    def learn(self, trainable: Trainable[Batch, Loss], window: Sequence[Batch]) -> float:
        """Run forward and backward on a window and return its loss.

        Args:
            trainable: the adapter under test.
            window: the micro-batches of the step.
        """
        items = trainable.count_items(window)
        total = 0.0
        for batch in window:
            loss = trainable.loss(batch, items)
            self.backward(loss)
            total += float(cast(Any, trainable.detached(loss)))
        return total

    def norm(self, trainable: Trainable[Batch, Loss]) -> float:
        """Return the norm of the gradients without changing them.

        Args:
            trainable: the adapter under test.
        """
        norm = trainable.clip(1e30)
        assert norm is not None
        return float(norm)

    def test_the_loss_falls(self, trainable: Trainable[Batch, Loss]) -> None:
        """Each step on the same batch decreases its loss."""
        losses = []
        for _ in range(5):
            losses.append(self.learn(trainable, [self.whole()]))
            trainable.optimizer.step()
            trainable.clear_gradients()

        assert losses == sorted(losses, reverse=True)
        assert losses[-1] < losses[0]

    def test_a_window_can_be_split_anywhere(self, trainable: Trainable[Batch, Loss]) -> None:
        """The batches of a window add up to the loss and the gradients of one batch with all its samples."""
        loss = self.learn(trainable, self.window())
        other = self.make()

        assert self.learn(other, [self.whole()]) == pytest.approx(loss, rel=self.tolerance)
        assert self.norm(other) == pytest.approx(self.norm(trainable), rel=self.tolerance)

    def test_gradients_accumulate_until_they_are_cleared(self, trainable: Trainable[Batch, Loss]) -> None:
        """Backward twice doubles the gradient, and clearing removes it."""
        self.learn(trainable, [self.whole()])
        once = self.norm(trainable)
        self.learn(trainable, [self.whole()])

        assert self.norm(trainable) == pytest.approx(2 * once, rel=self.tolerance)
        trainable.clear_gradients()
        assert self.norm(trainable) == 0

    def test_clipping_scales_down_to_the_norm(self, trainable: Trainable[Batch, Loss]) -> None:
        """A norm above the limit is scaled down to the limit; the norm before clipping is returned."""
        self.learn(trainable, [self.whole()])
        norm = self.norm(trainable)

        assert float(cast(Any, trainable.clip(norm / 4))) == pytest.approx(norm, rel=self.tolerance)
        assert self.norm(trainable) == pytest.approx(norm / 4, rel=max(self.tolerance, 1e-5))

    @pytest.mark.parametrize("factor", [0, 2])
    def test_no_limit_and_a_large_one_change_no_gradients(
        self, trainable: Trainable[Batch, Loss], factor: float
    ) -> None:
        """Zero means no limit, and a norm below the limit is unchanged."""
        self.learn(trainable, [self.whole()])
        norm = self.norm(trainable)
        trainable.clip(factor * norm)

        assert self.norm(trainable) == norm

    def test_a_detached_loss_has_the_same_value(self, trainable: Trainable[Batch, Loss]) -> None:
        """A detached loss has the same value."""
        loss = trainable.loss(self.whole(), trainable.count_items([self.whole()]))

        assert float(cast(Any, trainable.detached(loss))) == float(cast(Any, loss))


class WindowValuesContract(Generic[Loss]):
    """Contract suite of the WindowValues port."""

    def make(self) -> WindowValues[Loss]:
        """Return a new, empty adapter under test."""
        raise not_overridden(self)

    def loss(self, value: float) -> Loss:
        """Return a loss handle with this value, a small integer, NaN or infinity.

        Args:
            value: a small integer, NaN or infinity.
        """
        raise not_overridden(self)

    def norm(self, value: float) -> Any:
        """Return a gradient norm as the adapter's learner returns it.

        Args:
            value: the gradient norm.
        """
        return value

    @pytest.mark.parametrize("windows", [0, 1, 63, 64, 65, 200])
    def test_values_come_back_in_order(self, windows: int) -> None:
        """Each window has the sum of its shares and its own norm, and is forgotten once it was read."""
        values = self.make()
        for number in range(windows):
            shares = [self.loss(float(number)) for _ in range(1 + number % 3)]
            values.add(shares, None if number % 5 == 0 else self.norm(float(number)))

        expected = [(float(n * (1 + n % 3)), None if n % 5 == 0 else float(n)) for n in range(windows)]
        assert list(values.drain()) == expected
        assert list(values.drain()) == []

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_a_share_that_is_not_finite_makes_its_window_so(self, value: float) -> None:
        """And no other window."""
        values = self.make()
        values.add([self.loss(1.0), self.loss(2.0)], self.norm(1.0))
        values.add([self.loss(1.0), self.loss(value)], self.norm(value))
        values.add([self.loss(3.0)], None)

        first, second, third = values.drain()
        assert (first, third) == ((3.0, 1.0), (3.0, None))
        assert second[1] is not None
        assert [math.isfinite(each) for each in (second[0], second[1])] == [False, False]


class LossesContract(Generic[Loss]):
    """Contract suite of the Losses port."""

    def make(self) -> Losses[Loss]:
        """Return a new, empty adapter under test."""
        raise not_overridden(self)

    def loss(self, value: float) -> Loss:
        """Return a loss handle with this value, a small integer, so that sums are exact.

        Args:
            value: a small integer.
        """
        raise not_overridden(self)

    @pytest.fixture
    def losses(self) -> Losses[Loss]:
        """The adapter under test."""
        return self.make()

    @pytest.mark.parametrize("count", [0, 1, 2, 63, 64, 65, 200])
    def test_losses_are_summed(self, losses: Losses[Loss], count: int) -> None:
        """Draining returns the sum of all losses added, and zero if there are none."""
        for value in range(count):
            losses.add(self.loss(float(value)))

        assert losses.drain() == count * (count - 1) / 2

    def test_a_drain_resets_the_sum(self, losses: Losses[Loss]) -> None:
        """A drain resets the sum to zero."""
        losses.add(self.loss(3.0))
        assert losses.drain() == 3
        assert losses.drain() == 0
        losses.add(self.loss(4.0))
        assert losses.drain() == 4

    def test_there_are_no_components_unless_some_are_added(self, losses: Losses[Loss]) -> None:
        """A drain of losses alone finds no scalars beside them."""
        losses.add(self.loss(3.0))
        losses.drain()
        assert dict(losses.drain_components()) == {}

    @pytest.mark.parametrize("added", [0, 1, 70])
    def test_a_sum_can_be_restored(self, losses: Losses[Loss], added: int) -> None:
        """Another adapter that loads the export continues from the same sum, and exports the same."""
        losses.add(self.loss(99.0))
        losses.drain()
        for value in range(added):
            losses.add(self.loss(float(value)))
        exported = kept(losses.export())

        other = self.make()
        other.add(self.loss(1000.0))
        other.load(exported)

        assert contents(other.export()) == contents(exported)
        for each in (losses, other):
            each.add(self.loss(5.0))
        assert losses.drain() == other.drain() == added * (added - 1) / 2 + 5

    def test_an_export_changes_nothing(self, losses: Losses[Loss]) -> None:
        """An export does not change the sum."""
        losses.add(self.loss(3.0))
        kept(losses.export())
        losses.add(self.loss(4.0))

        assert losses.drain() == 7


METRICS: tuple[Mapping[str, float], ...] = tuple({"eval_loss": loss} for loss in (3.0, 2.0, 2.0, 2.0, 2.5, 1.0, 1.0))
"""The evaluation results for a scheduler that follows a metric."""


class SchedulerContract:
    """Contract suite of the Scheduler port. A scheduler that follows a metric must follow "eval_loss"."""

    def make(self) -> Scheduler:
        """Return a new adapter under test, always the same, with its own parameter groups."""
        raise not_overridden(self)

    def rates_in_force(self, scheduler: Scheduler) -> tuple[float, ...]:
        """Return the learning rates of the optimizer that `scheduler` drives.

        Args:
            scheduler: the adapter under test.
        """
        raise not_overridden(self)

    @pytest.fixture
    def scheduler(self) -> Scheduler:
        """The adapter under test, started."""
        scheduler = self.make()
        scheduler.start(0)
        return scheduler

    def test_returned_rates_are_used(self, scheduler: Scheduler) -> None:
        """From the start, and after each update and evaluation, the rates it returns are those of the optimizer."""
        for updates, metrics in enumerate(METRICS, 1):
            assert scheduler.rates() == self.rates_in_force(scheduler)
            assert all(math.isfinite(rate) and rate >= 0 for rate in scheduler.rates())
            scheduler.advance(updates)
            assert scheduler.rates() == self.rates_in_force(scheduler)
            scheduler.observe(metrics)
        assert scheduler.rates() == self.rates_in_force(scheduler)

    def test_there_is_a_rate_per_group(self, scheduler: Scheduler) -> None:
        """It returns at least one rate, and always the same number."""
        first = scheduler.rates()
        scheduler.advance(1)

        assert len(scheduler.rates()) == len(first) >= 1

    @pytest.mark.parametrize("done", range(len(METRICS)))
    def test_it_can_be_restored_at_every_boundary(self, scheduler: Scheduler, done: int) -> None:
        """An adapter that loads the export and starts at the same update has the same rates from then on."""
        for updates, metrics in enumerate(METRICS[:done], 1):
            scheduler.advance(updates)
            scheduler.observe(metrics)

        other = self.make()
        other.load(kept(scheduler.export()))
        other.start(done)

        assert contents(other.export()) == contents(scheduler.export())
        for updates, metrics in enumerate(METRICS[done:], done + 1):
            assert other.rates() == scheduler.rates() == self.rates_in_force(other)
            for each in (scheduler, other):
                each.advance(updates)
                each.observe(metrics)
        assert other.rates() == scheduler.rates() == self.rates_in_force(other)
