"""In-memory batches beyond their contract."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.domain.json_documents import json_part
from hexloop.domain.order import KeyedPermutation
from hexloop.testing import InMemoryBatches


@given(length=st.integers(0, 20), size=st.integers(1, 7), position=st.integers(0, 22), drop_last=st.booleans())
def test_batches_are_consecutive_rows_from_any_position(length: int, size: int, position: int, drop_last: bool) -> None:
    """From a position that was reached with another batch size, batches continue with the next row."""
    rows = list(range(length))
    rest = rows[position:]
    expected = [rest[start : start + size] for start in range(0, len(rest), size)]
    if drop_last:
        expected = [batch for batch in expected if len(batch) == size]

    batches = InMemoryBatches(rows, size, drop_last=drop_last)

    assert list(batches.epoch(3, position)) == expected
    if position == 0:
        assert batches.batches_per_epoch() == len(expected)


@given(length=st.integers(1, 20), size=st.integers(1, 7), epoch=st.integers(0, 3), data=st.data())
def test_an_order_maps_positions_to_rows(length: int, size: int, epoch: int, data: st.DataObject) -> None:
    """With an order per epoch, position p of the epoch has the row with the index at p."""
    position = data.draw(st.integers(0, length))
    order = KeyedPermutation(1, epoch, length)

    rows = [f"row {index}" for index in range(length)]
    batches = InMemoryBatches(rows, size, lambda each: KeyedPermutation(1, each, length))

    read = [row for batch in batches.epoch(epoch, position) for row in batch]
    assert read == [f"row {order[at]}" for at in range(position, length)]


def test_foreign_parts_are_refused() -> None:
    """Batches without state refuse parts instead of ignoring them."""
    with pytest.raises(ValueError, match="cursor"):
        InMemoryBatches([1], 1).load([json_part("cursor", 3)])
