"""The order of samples in an epoch, as a function of the position: independent of ranks, workers and restarts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from attrs import field, frozen
from attrs.validators import ge


class Order(ABC):
    """A bijection of range(len(order)) that maps a position in an epoch to the index of a sample."""

    __slots__ = ()

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples in an epoch."""

    @abstractmethod
    def _index_at(self, position: int) -> int:
        """Return the index at a position within the epoch."""

    def __getitem__(self, position: int) -> int:
        """Return the index of the sample at `position`, from 0. Raises IndexError outside the epoch."""
        if not 0 <= position < len(self):
            raise IndexError(f"Position {position} is outside an epoch of {len(self)} samples.")
        return self._index_at(position)

    def __iter__(self) -> Iterator[int]:
        """Iterate over the indices of an epoch, in order."""
        return map(self._index_at, range(len(self)))

    def block(self, start: int, stop: int) -> list[int]:
        """Return the indices at the positions `start` to `stop` - 1. Raises IndexError outside the epoch."""
        return [self[position] for position in range(start, stop)]


@frozen
class Sequential(Order):
    """The order of the data set itself: position equals index. Raises ValueError for a negative length."""

    length: int = field(validator=ge(0))

    def __len__(self) -> int:
        return self.length

    def _index_at(self, position: int) -> int:
        return position
