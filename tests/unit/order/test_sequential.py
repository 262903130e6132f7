"""The sequential order."""

from __future__ import annotations

import pytest

from hexloop.domain.order import Sequential


def test_each_sample_is_at_its_index() -> None:
    """Position and index are equal, one by one and in blocks."""
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
    """A data set may be empty, but a negative length is refused."""
    assert list(Sequential(0)) == []
    with pytest.raises(ValueError, match="length"):
        Sequential(-1)
