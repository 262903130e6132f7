"""Files are assigned to ranks evenly by size."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hexloop.domain.ranks import assign_to_ranks


@settings(derandomize=True, deadline=None)
@given(st.lists(st.integers(0, 10_000), max_size=60), st.integers(1, 12))
def test_every_item_is_assigned_to_a_rank_in_order(sizes: list[int], world_size: int) -> None:
    """Owners never decrease, and no rank gets more than an even share and one item."""
    owners = assign_to_ranks(sizes, world_size)
    assert len(owners) == len(sizes)
    assert owners == sorted(owners)
    assert all(0 <= owner < world_size for owner in owners)
    for rank in range(world_size):
        held = sum(size for size, owner in zip(sizes, owners, strict=True) if owner == rank)
        assert held <= sum(sizes) / world_size + max(sizes, default=0)


def test_items_without_a_size_are_assigned_to_rank_0() -> None:
    """If there are no bytes, there is nothing to share."""
    assert assign_to_ranks([0, 0, 0], 4) == [0, 0, 0]
    assert assign_to_ranks([], 4) == []
