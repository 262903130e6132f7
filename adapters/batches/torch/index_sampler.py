"""The indices of an epoch, one by one, for whoever builds a sampler of their own on the run's order."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch.utils.data import Sampler

from hexloop.domain.order import Order


class IndexSampler(Sampler[int]):
    """The indices in the order that `make_order(epoch)` gives, of the epoch that `set_epoch` named last."""

    def __init__(self, make_order: Callable[[int], Order]) -> None:
        self._make_order = make_order
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Give the indices of this epoch from now on."""
        self._order = self._make_order(epoch)

    def __len__(self) -> int:
        """How many indices an epoch has."""
        return len(self._order)

    def __iter__(self) -> Iterator[int]:
        return iter(self._order.block(0, len(self._order)))
