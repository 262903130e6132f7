"""The number format of the computation, and whether an update is safe to apply.

`wrap` is called once, not at each step, so that the plain format has no cost; `scale`, `unscale` and `step` exist for
loss scaling and are trivial otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import ParamSpec, Protocol, TypeVar

from hexloop.ports.state import Part
from hexloop.ports.trainable import Optimizer

Loss = TypeVar("Loss")
Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")

HALF_FORMATS = ("fp16", "bf16")
"""The names of the formats of 16 bits."""


class Precision(Protocol[Loss]):
    """A number format."""

    @property
    def name(self) -> str:
        """Usual name of the format: fp32, tf32, bf16, fp16, ..."""

    def wrap(self, forward: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        """Return the forward pass computed in this format; contexts are open only during the call."""

    def scale(self, loss: Loss) -> Loss:
        """Return the loss to call backward on."""

    def unscale(self, optimizer: Optimizer) -> None:
        """Undo `scale` on the gradients that `optimizer` is about to use, once: again before `step` it is a no-op."""

    def step(self, optimizer: Optimizer) -> bool:
        """Step the optimizer if its gradients are finite; return whether it stepped."""

    def discard_update(self) -> None:
        """Forget an update that was begun with `scale` or `unscale` and not completed; a run calls it at its start."""

    def export(self) -> Iterator[Part]:
        """Yield the loss scale and its history, if there is one."""

    def load(self, parts: Iterable[Part]) -> None:
        """Restore an exported state, without the gradients of an update that was begun and not completed."""
