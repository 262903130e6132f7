"""The order in which the data set itself stands."""

from __future__ import annotations

from attrs import field, frozen
from attrs.validators import ge

from hexloop.domain.order import Order


@frozen
class Sequential(Order):
    """Every sample at the position that is its index. Raises ValueError for a negative length."""

    length: int = field(validator=ge(0))

    def __len__(self) -> int:
        return self.length

    def _index_at(self, position: int) -> int:
        return position
