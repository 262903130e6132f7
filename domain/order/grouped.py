"""A random order in which samples of like length share a batch, so that little is padded."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import define, field
from attrs.validators import ge

from hexloop.domain.order import Order
from hexloop.domain.order.permutation import KeyedPermutation, random_order

WINDOW_BATCHES = 50


@define(eq=False)
class GroupedByLength(Order):
    """`order`, sorted by length within windows of 50 global batches, the batches of a window in a random order again.

    As with the reference library's sampler, few samples make smaller windows, about four to the epoch, or else the same
    samples would meet in every epoch; and the epoch begins with its first window's longest batch, so that too little
    memory is seen at once. (The reference brings the longest sample of all to the front, which takes reading every
    length.) The epoch's last batch, where it is not whole, stays last and holds its window's shortest samples.

    `length_of(index)` is asked once for each sample of the window in which a position lies; one window is kept, so that
    going through the positions in turn sorts each window once. `global_batch` counts samples over all processes and
    micro-batches of an optimizer step; the order of an epoch depends on it. Raises ValueError where it is below 1.
    """

    order: KeyedPermutation
    global_batch: int = field(validator=ge(1))
    length_of: Callable[[int], int]
    _kept: tuple[int, Sequence[int]] = field(init=False, repr=False, default=(-1, ()))

    def __len__(self) -> int:
        return len(self.order)

    def _index_at(self, position: int) -> int:
        window, offset = divmod(position, self._window_size())
        kept, indices = self._kept
        if kept != window:
            indices = self._sorted_window(window)
            self._kept = (window, indices)
        return indices[offset]

    def _window_size(self) -> int:
        quarter = len(self) // (4 * self.global_batch)
        return self.global_batch * max(1, min(WINDOW_BATCHES, quarter))

    def _sorted_window(self, window: int) -> list[int]:
        start = window * self._window_size()
        samples = self.order.block(start, min(start + self._window_size(), len(self)))
        samples.sort(key=self.length_of, reverse=True)
        whole, rest = divmod(len(samples), self.global_batch)
        ranking = list(random_order(whole, "batches", self.order.seed, self.order.epoch, len(self), window))
        if window == 0:
            ranking.sort(key=bool)  # only 0, the longest batch, moves: to the front
        starts = [place * self.global_batch for place in ranking]
        mixed = [index for first in starts for index in samples[first : first + self.global_batch]]
        return mixed + samples[len(samples) - rest :]
