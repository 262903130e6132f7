"""The model, its loss and its optimizer as the loop sees them: two indivisible actions.

There are only two so that a user's hook, an engine or a compiler may own a whole action. The loop does not know how
many kernels, processes or machines an action takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, SupportsFloat, TypeVar

Batch_contra = TypeVar("Batch_contra", contravariant=True)
Loss_co = TypeVar("Loss_co", covariant=True)


class Learner(Protocol[Batch_contra, Loss_co]):
    """Learns from windows of micro-batches. Each window ends in one update."""

    def count_items(self, window: Sequence[Batch_contra]) -> object:
        """Return the number of items (label tokens, rows) that the window's loss averages over, on the device.

        None if the learner needs no count, because every micro-batch of the window has the same weight.
        """

    def micro_step(self, batch: Batch_contra, window_items: object, last_of_window: bool) -> Loss_co:
        """Run forward and backward of one micro-batch. Return its share of the window's loss, on the device."""

    def update(self, max_norm: float) -> tuple[SupportsFloat | None, bool]:
        """Clip the gradients to `max_norm` (0: do not clip) and take one optimizer step.

        Return the gradient norm before clipping (None if it was not measured), and whether the step was taken. It is
        skipped after an overflow under loss scaling; weights and moments are unchanged then.
        """
