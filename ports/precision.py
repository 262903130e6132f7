"""In which number format the arithmetic runs, and whether an update is safe to take.

`wrap` is asked once, not at each step, so that the plain format costs nothing; the other three methods exist for loss
scaling and are the identity everywhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import ParamSpec, Protocol, TypeVar

from hexloop.ports.state import Part
from hexloop.ports.trainable import Optimizer

Loss = TypeVar("Loss")
Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


class Precision(Protocol[Loss]):
    """A number format."""

    @property
    def name(self) -> str:
        """The format's usual name: fp32, tf32, bf16, fp16, ..."""
        ...

    def wrap(self, forward: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        """The same forward pass, computed in this format; whatever context it needs is open within the call only."""
        ...

    def scale(self, loss: Loss) -> Loss:
        """The loss as backward should see it."""
        ...

    def unscale(self, optimizer: Optimizer) -> None:
        """Undo `scale` on the gradients that `optimizer` is about to use."""
        ...

    def step(self, optimizer: Optimizer) -> bool:
        """Take the optimizer's step where its gradients are finite; say whether it was taken."""
        ...

    def export(self) -> Iterator[Part]:
        """The scale and its history, where there is one."""
        ...

    def load(self, parts: Iterable[Part]) -> None:
        """Go on from an exported state."""
        ...
