"""The order of samples: which one comes at which position of an epoch, whatever ran before and on how many ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from attrs import field, frozen
from attrs.validators import ge


class Order(ABC):
    """A bijection of range(len(order)): a position in an epoch -> the index of the sample that comes there."""

    __slots__ = ()

    @abstractmethod
    def __len__(self) -> int:
        """How many samples an epoch has."""

    @abstractmethod
    def _index_at(self, position: int) -> int:
        """The index at a position that is known to be in the epoch."""

    def __getitem__(self, position: int) -> int:
        """The index of the sample at `position`, counted from 0. Raises IndexError outside the epoch."""
        if not 0 <= position < len(self):
            raise IndexError(f"Position {position} is outside an epoch of {len(self)} samples.")
        return self._index_at(position)

    def __iter__(self) -> Iterator[int]:
        """The indices of an epoch from its first position on."""
        return map(self._index_at, range(len(self)))

    def block(self, start: int, stop: int) -> list[int]:
        """The indices at the positions `start` to `stop` - 1. Raises IndexError where one is outside the epoch."""
        return [self[position] for position in range(start, stop)]


@frozen
class Sequential(Order):
    """Every sample at the position that is its index. Raises ValueError for a negative length."""

    length: int = field(validator=ge(0))

    def __len__(self) -> int:
        return self.length

    def _index_at(self, position: int) -> int:
        return position
