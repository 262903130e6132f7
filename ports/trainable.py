"""A model with its loss and its optimizer, in the pieces from which the domain composes a learner's two actions.

The order of the pieces (forward, backward, unscale, clip, step) is the domain's and is written there once; an engine
that cannot be taken apart answers the Learner port whole instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, SupportsFloat, TypeVar

Batch_contra = TypeVar("Batch_contra", contravariant=True)
Loss = TypeVar("Loss")


class Optimizer(Protocol):
    """What the precision and the domain may ask of an optimizer."""

    def step(self) -> object:
        """Change the weights by one step along the gradients."""
        ...


class Trainable(Protocol[Batch_contra, Loss]):
    """The pieces of one training step."""

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer of the model's parameters; a precision adapter of the same framework may know more of it."""
        ...

    def count_items(self, window: Sequence[Batch_contra]) -> object:
        """As `Learner.count_items`."""
        ...

    def loss(self, batch: Batch_contra, window_items: object) -> Loss:
        """The forward pass: this micro-batch's share of the window's loss, ready for backward."""
        ...

    def clip(self, max_norm: float) -> SupportsFloat | None:
        """Scale the gradients down to `max_norm`; the handle is their norm before (None where it was not measured)."""
        ...

    def set_learning_rates(self, rates: Sequence[float]) -> None:
        """As `Learner.set_learning_rates`."""
        ...

    def clear_gradients(self) -> None:
        """Forget the window's gradients."""
        ...

    def detached(self, loss: Loss) -> Loss:
        """The loss as a bare number on the device, holding on to nothing that backward needed."""
        ...
