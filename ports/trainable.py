"""A model with its loss and optimizer, in the pieces that make up a training step.

The domain calls the pieces in the standard order (forward, backward, unscale, clip, step), which is written once, in
`hexloop.domain.loop`. An engine whose step cannot be divided implements the Learner port instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, SupportsFloat, TypeVar

Batch_contra = TypeVar("Batch_contra", contravariant=True)
Loss = TypeVar("Loss")


class Optimizer(Protocol):
    """The part of an optimizer that the domain knows."""

    def step(self) -> object:
        """Update the weights with the gradients."""


class Trainable(Protocol[Batch_contra, Loss]):
    """The pieces of one training step."""

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer of the model's parameters. Precision adapters of the same framework may use more of its API."""

    def count_items(self, window: Sequence[Batch_contra]) -> object:
        """See `Learner.count_items`."""

    def loss(self, batch: Batch_contra, window_items: object) -> Loss:
        """Run the forward pass and return the micro-batch's share of the window's loss, ready for backward."""

    def clip(self, max_norm: float) -> SupportsFloat | None:
        """Clip the gradients to `max_norm` and return their norm before clipping (None if it was not measured)."""

    def clear_gradients(self) -> None:
        """Clear the gradients of the window."""

    def detached(self, loss: Loss) -> Loss:
        """Return the loss as a scalar on the device without its graph, so that activations can be freed."""
