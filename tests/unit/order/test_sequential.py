"""The order in which the data set stands."""

from __future__ import annotations

import pytest

from hexloop.domain.order import Sequential


def test_each_sample_stands_at_its_index() -> None:
    """Position and index are the same, by one and by the block."""
    order = Sequential(5)
    assert len(order) == 5
    assert list(order) == [0, 1, 2, 3, 4]
    assert order.block(1, 4) == [1, 2, 3]


@pytest.mark.parametrize("position", [-1, 5])
def test_positions_outside_the_epoch_are_refused(position: int) -> None:
    """A position before the first or after the last is an error that names both it and the length."""
    with pytest.raises(IndexError, match=rf"Position {position} is outside an epoch of 5 samples"):
        Sequential(5)[position]


def test_a_length_is_at_least_0() -> None:
    """A data set may hold no samples, but not fewer."""
    assert list(Sequential(0)) == []
    with pytest.raises(ValueError, match="length"):
        Sequential(-1)
