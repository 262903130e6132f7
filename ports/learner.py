"""The model, its loss and its optimizer as the loop sees them: two indivisible actions.

So few because nothing else may come between them: a hook, an engine or a compiler may own a whole action, and the loop
neither knows nor cares how many kernels, processes or machines it takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, SupportsFloat, TypeVar

Batch_contra = TypeVar("Batch_contra", contravariant=True)
Loss_co = TypeVar("Loss_co", covariant=True)


class Learner(Protocol[Batch_contra, Loss_co]):
    """Learns from windows of micro-batches; a window ends in one update."""

    def count_items(self, window: Sequence[Batch_contra]) -> object:
        """How many items (label tokens, rows) the window's loss is the mean of, left on the device.

        None where the learner needs no count: then each micro-batch of the window weighs the same.
        """
        ...

    def micro_step(self, batch: Batch_contra, window_items: object, last_of_window: bool) -> Loss_co:
        """Forward and backward of one micro-batch. The handle is its share of the window's loss, left on the device."""
        ...

    def update(self, max_norm: float) -> tuple[SupportsFloat | None, bool]:
        """Clip the gradients to `max_norm` (0: leave them) and take one optimizer step.

        The handle is the gradient norm before clipping (None where it was not measured); False says that the step was
        not safe to take (an overflow under loss scaling) and that weights and moments are unchanged.
        """
        ...

    def set_learning_rates(self, rates: Sequence[float]) -> None:
        """Put these rates in force for the next update, one for each parameter group."""
        ...
