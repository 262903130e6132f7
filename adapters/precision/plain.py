"""The precision of the weights themselves, without casting or loss scaling."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, ParamSpec, TypeVar

from attrs import frozen

from hexloop.ports.learner import Optimizer, Precision
from hexloop.ports.state import Part

Loss = TypeVar("Loss")
Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


@frozen
class PlainPrecision:
    """Precision adapter that changes nothing. `name` is "fp32", or "tf32" if matrix products are rounded.

    Args:
        name: "fp32", or "tf32" if matrix products are rounded.
    """

    name: str = "fp32"

    def wrap(self, forward: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        """Return the forward pass unchanged."""
        return forward

    def convert(self, model: object) -> None:
        """No-op: no layer is replaced."""

    def scale(self, loss: Loss) -> Loss:
        """Return the loss unchanged."""
        return loss

    def unscale(self, optimizer: Optimizer) -> None:
        """No-op: gradients are not scaled."""

    def step(self, optimizer: Optimizer) -> bool:
        """Step the optimizer and return True."""
        optimizer.step()
        return True

    def discard_update(self) -> None:
        """No-op: nothing is scaled."""

    def export(self) -> Iterator[Part]:
        """Return no parts: there is no state."""
        return iter(())

    def load(self, parts: Iterable[Part]) -> None:
        """No-op: there is no state."""


class ForwardAlone(Generic[Loss]):
    """Precision adapter that leaves the loss as it is, because the model's forward applies the precision itself.

    Args:
        precision: the precision that the forward pass applies.
    """

    def __init__(self, precision: Precision[Loss]) -> None:
        self.name, self.precision = precision.name, precision
        self.convert = precision.convert
        self.scale, self.unscale, self.step = precision.scale, precision.unscale, precision.step
        self.discard_update, self.export, self.load = precision.discard_update, precision.export, precision.load

    def wrap(self, forward: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        """Return the forward pass unchanged."""
        return forward
