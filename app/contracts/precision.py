"""What a number format does."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, cast

import pytest

from hexloop.app.contracts.parts import contents, kept
from hexloop.ports.precision import Precision
from hexloop.ports.trainable import Trainable

Batch = TypeVar("Batch")
Loss = TypeVar("Loss")


class PrecisionContract(Generic[Batch, Loss]):
    """The suite of the Precision port."""

    tolerance = 1e-6
    """The relative difference that the format's rounding may make."""

    def make(self) -> Precision[Loss]:
        """A new adapter under test, under which the first updates of `trainable` are safe to take."""
        raise NotImplementedError

    def trainable(self) -> Trainable[Batch, Loss]:
        """A new model with the same weights each time, no randomness, and gradients that are not zero."""
        raise NotImplementedError

    def batch(self) -> Batch:
        """A batch for the model."""
        raise NotImplementedError

    @pytest.fixture
    def precision(self) -> Precision[Loss]:
        """The adapter under test."""
        return self.make()

    def learn(self, precision: Precision[Loss], trainable: Trainable[Batch, Loss]) -> float:
        """Forward, backward and unscale of a batch; gives back the loss."""
        loss = precision.wrap(trainable.loss)(self.batch(), trainable.count_items([self.batch()]))
        cast(Any, precision.scale(loss)).backward()
        precision.unscale(trainable.optimizer)
        return float(cast(Any, loss))

    def test_it_has_a_name(self, precision: Precision[Loss]) -> None:
        """It tells its name, in small letters."""
        assert precision.name
        assert precision.name == precision.name.lower()

    def test_a_wrapped_function_is_called_with_its_arguments(self, precision: Precision[Loss]) -> None:
        """Arguments, results and errors pass through the wrapping."""

        def forward(first: int, *, second: int) -> list[int]:
            return [first // second]

        wrapped = precision.wrap(forward)

        assert wrapped(6, second=3) == [2]
        with pytest.raises(ZeroDivisionError):
            wrapped(6, second=0)

    def test_gradients_are_those_without_it(self, precision: Precision[Loss]) -> None:
        """Scaling and unscaling cancel out, so that the gradients have the norm that they would have without."""
        trainable, plain = self.trainable(), self.trainable()
        loss = plain.loss(self.batch(), plain.count_items([self.batch()]))
        cast(Any, loss).backward()

        assert self.learn(precision, trainable) == pytest.approx(float(cast(Any, loss)), rel=self.tolerance)
        norms = [float(cast(Any, each.clip(1e30))) for each in (trainable, plain)]
        assert norms[0] > 0
        assert norms[0] == pytest.approx(norms[1], rel=self.tolerance)

    def test_a_safe_step_is_taken(self, precision: Precision[Loss]) -> None:
        """Where every gradient is finite the optimizer steps, which changes the loss."""
        trainable = self.trainable()
        loss = self.learn(precision, trainable)

        assert precision.step(trainable.optimizer)
        trainable.clear_gradients()
        assert self.learn(precision, trainable) != loss

    @pytest.mark.parametrize("updates", range(4))
    def test_it_can_be_rebuilt_at_every_boundary(self, precision: Precision[Loss], updates: int) -> None:
        """Another object that loads the export goes on alike."""
        trainable = self.trainable()
        for _ in range(updates):
            self.learn(precision, trainable)
            precision.step(trainable.optimizer)
            trainable.clear_gradients()

        other = self.make()
        other.load(kept(precision.export()))

        for each in (precision, other):
            model = self.trainable()
            for _ in range(3):
                self.learn(each, model)
                each.step(model.optimizer)
                model.clear_gradients()
        assert contents(other.export()) == contents(precision.export())
