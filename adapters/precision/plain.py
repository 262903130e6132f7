"""The format that the weights are in: nothing to wrap, to scale or to check."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import ParamSpec, TypeVar

from attrs import frozen

from hexloop.ports.state import Part
from hexloop.ports.trainable import Optimizer

Loss = TypeVar("Loss")
Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


@frozen
class PlainPrecision:
    """Answers the Precision port by leaving everything as it is. `name` is "fp32", or "tf32" where products round."""

    name: str = "fp32"

    def wrap(self, forward: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        """The forward pass itself."""
        return forward

    def scale(self, loss: Loss) -> Loss:
        """The loss itself."""
        return loss

    def unscale(self, optimizer: Optimizer) -> None:
        """The gradients are not scaled."""

    def step(self, optimizer: Optimizer) -> bool:
        """Every update is taken."""
        optimizer.step()
        return True

    def export(self) -> Iterator[Part]:
        """Nothing is kept between steps."""
        return iter(())

    def load(self, parts: Iterable[Part]) -> None:
        """Nothing is kept between steps."""
