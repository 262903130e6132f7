"""The loss and the gradient norm of each window of micro-batches, kept on the device until they are read together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, SupportsFloat, TypeVar

Loss_contra = TypeVar("Loss_contra", contravariant=True)


class WindowValues(Protocol[Loss_contra]):
    """Collects what each optimizer step computed. `add` does not wait for the device; `drain` does."""

    def add(self, shares: Sequence[Loss_contra], gradient_norm: SupportsFloat | None) -> None:
        """Add a window: the shares of its micro-batches, whose sum is its loss, and its norm (None: not measured)."""

    def drain(self) -> Sequence[tuple[float, float | None]]:
        """Return the loss and the gradient norm of each window since the last drain, in order, and forget them."""
