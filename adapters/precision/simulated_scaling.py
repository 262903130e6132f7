"""Dynamic loss scaling on floats, with overflows where a test wants them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import ParamSpec, Protocol, TypeVar, cast

from hexloop.domain.json_documents import json_part
from hexloop.domain.ranges import Count, Positive
from hexloop.domain.schemas import read_part
from hexloop.ports.learner import Optimizer
from hexloop.ports.state import Part

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


class Scalable(Protocol):
    """A loss that can be multiplied by a number."""

    def __mul__(self, factor: float) -> Scalable:
        """Return the loss times a number, with its gradients scaled likewise."""


Loss = TypeVar("Loss", bound=Scalable)


class WithGradients(Protocol):
    """An optimizer whose gradients are accessible."""

    gradients: list[float]


class SimulatedScaling:
    """Precision adapter that behaves like fp16 with a loss scale.

    The scale is halved at an update with a non-finite gradient, which is skipped, and doubled after `growth_interval`
    good updates in a row.

    Args:
        overflows: the updates, counted from 1, whose gradients become infinite.
        initial_scale: the first loss scale.
        growth_interval: good updates in a row after which the scale is doubled.
    """

    name = "fp16"

    def __init__(
        self, overflows: Collection[int] = (), initial_scale: float = 2.0**16, growth_interval: int = 2000
    ) -> None:
        self.loss_scale = initial_scale
        self._overflows = overflows
        self._growth_interval = growth_interval
        self._updates = 0
        self._good_updates = 0
        self._finite = True
        self._unscaled = False

    def wrap(self, forward: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        """Return the forward pass unchanged."""
        return forward

    def convert(self, model: object) -> None:
        """No-op: no layer is replaced."""

    def scale(self, loss: Loss) -> Loss:
        """Return the loss times the loss scale."""
        return cast(Loss, loss * self.loss_scale)

    def unscale(self, optimizer: Optimizer) -> None:
        """Divide the gradients by the loss scale and record whether all are finite."""
        if self._unscaled:
            return
        self._unscaled = True
        self._updates += 1
        gradients = cast(WithGradients, optimizer).gradients
        if self._updates in self._overflows:
            gradients[0] = math.inf
        self._finite = all(map(math.isfinite, gradients))
        gradients[:] = [gradient / self.loss_scale for gradient in gradients]

    def step(self, optimizer: Optimizer) -> bool:
        """Step the optimizer if every gradient is finite, then adapt the scale."""
        self._unscaled = False
        if not self._finite:
            self.loss_scale /= 2
            self._good_updates = 0
            return False
        optimizer.step()
        self._good_updates += 1
        if self._good_updates == self._growth_interval:
            self.loss_scale *= 2
            self._good_updates = 0
        return True

    def discard_update(self) -> None:
        """Forget gradients that were unscaled and not stepped."""
        self._unscaled = False

    def export(self) -> Iterator[Part]:
        """Yield the loss scale, the good updates since it last changed, and the number of updates."""
        yield json_part("scaler", [self.loss_scale, self._good_updates, self._updates])

    def load(self, parts: Iterable[Part]) -> None:
        """Restore an export.

        Raises:
            ValueError: if it is not one.
        """
        saved = read_part(parts, "scaler", tuple[Positive, Count, Count])
        self.loss_scale, self._good_updates, self._updates = saved
        self.discard_update()
