"""What spreads a model over processes."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, cast

import pytest

from hexloop.ports.parallelism import Parallelism
from hexloop.ports.trainable import Trainable

Batch = TypeVar("Batch")
Loss = TypeVar("Loss")
Model = TypeVar("Model")


class ParallelismContract(Generic[Model, Batch, Loss]):
    """The suite of the Parallelism port, as a world of one process has to pass it, and each rank of a larger one."""

    tolerance = 1e-6
    """The relative difference that rounding may make."""

    def make(self) -> Parallelism[Loss]:
        """A new adapter under test."""
        raise NotImplementedError

    def model(self) -> Model:
        """A new model with the same weights each time."""
        raise NotImplementedError

    def optimizer(self, model: Model) -> Any:
        """An optimizer of a model's parameters."""
        raise NotImplementedError

    def trainable(self, model: Model, optimizer: Any) -> Trainable[Batch, Loss]:
        """A model with its optimizer."""
        raise NotImplementedError

    def batch(self) -> Batch:
        """A batch for the model; its gradients are not zero."""
        raise NotImplementedError

    @pytest.fixture
    def parallelism(self) -> Parallelism[Loss]:
        """The adapter under test."""
        return self.make()

    def prepared(self, parallelism: Parallelism[Loss]) -> Trainable[Batch, Loss]:
        """A new model, spread."""
        return self.trainable(*parallelism.prepare(self.model(), self.optimizer))

    def test_the_optimizer_is_made_of_the_wrapped_model(self, parallelism: Parallelism[Loss]) -> None:
        """The factory is called once, with the model that comes back, and what it made comes back with it."""
        made: list[tuple[Model, Any]] = []

        def make_optimizer(model: Model) -> Any:
            made.append((model, self.optimizer(model)))
            return made[-1][1]

        model, optimizer = parallelism.prepare(self.model(), make_optimizer)

        assert len(made) == 1
        assert made[0][0] is model
        assert made[0][1] is optimizer

    def test_the_users_model_can_be_had_back(self, parallelism: Parallelism[Loss]) -> None:
        """Unwrapping what was prepared gives the very model that was passed in."""
        model = self.model()
        wrapped, _ = parallelism.prepare(model, self.optimizer)

        assert parallelism.unwrap(wrapped) is model

    def test_gradients_pile_up_over_a_window(self, parallelism: Parallelism[Loss]) -> None:
        """After the window's last micro-batch the gradients are the sum of those of all its micro-batches."""
        norms = []
        for count in (1, 3):
            trainable = self.prepared(parallelism)
            for index in range(count):
                parallelism.synchronise(index == count - 1)
                parallelism.backward(trainable.loss(self.batch(), trainable.count_items([self.batch()])))
            norms.append(float(cast(Any, trainable.clip(1e30))))

        assert norms[0] > 0
        assert norms[1] == pytest.approx(3 * norms[0], rel=self.tolerance)

    def test_it_says_what_it_is(self, parallelism: Parallelism[Loss]) -> None:
        """It has a name, and only what spans processes spreads the weights over them."""
        capabilities = parallelism.capabilities

        assert capabilities.name
        assert capabilities.processes or not capabilities.sharded
