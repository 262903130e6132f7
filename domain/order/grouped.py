"""A random order in which batches hold samples of similar length, to reduce padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import define, field
from attrs.validators import ge

from hexloop.domain.order import Order
from hexloop.domain.order.permutation import KeyedPermutation, random_order

WINDOW_BATCHES = 50


@define(eq=False)
class GroupedByLength(Order):
    """`order`, sorted by length within windows of 50 global batches, whose batches are then shuffled.

    As in transformers, a small data set gets smaller windows, about four per epoch, because otherwise the same samples
    would share a batch in every epoch. The epoch starts with the longest batch of the first window, so that a lack of
    memory shows at once. (transformers starts with the longest sample of all, for which every length must be read.) An
    incomplete last batch stays last and holds the shortest samples of its window.

    length_of: returns the length of the sample at an index; called once for each sample of the window that holds a
    position. One window is cached, so iterating over the positions in order sorts each window once.
    global_batch: samples per optimizer step over all processes; the order depends on it. Raises ValueError if below 1.
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
            ranking.sort(key=bool)  # moves only 0, the longest batch, to the front
        starts = [number * self.global_batch for number in ranking]
        mixed = [index for first in starts for index in samples[first : first + self.global_batch]]
        return mixed + samples[len(samples) - rest :]
