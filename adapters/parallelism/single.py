"""One process that holds the whole model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from hexloop.ports.parallelism import ParallelismCapabilities

Model = TypeVar("Model")
Optimizer = TypeVar("Optimizer")


class Differentiable(Protocol):
    """A loss that can send gradients back."""

    def backward(self) -> object:
        """Add this loss's gradients to those there are."""
        ...


class SingleProcess:
    """Answers the Parallelism port where there is nothing to spread and nobody to meet."""

    capabilities = ParallelismCapabilities("single")

    def prepare(self, model: Model, make_optimizer: Callable[[Model], Optimizer]) -> tuple[Model, Optimizer]:
        """The model itself, and its optimizer."""
        return model, make_optimizer(model)

    def synchronise(self, last_of_window: bool) -> None:
        """Gradients meet by being there."""

    def backward(self, loss: Differentiable) -> None:
        """The loss's own backward."""
        loss.backward()

    def unwrap(self, model: Model) -> Model:
        """The model itself."""
        return model
