"""The keyed permutation is a bijection that depends only on its four arguments."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexloop.domain.errors import ConfigurationError
from hexloop.domain.order import (
    MAX_LENGTH,
    MAX_TABLE_LENGTH,
    FeistelNetwork,
    KeyedPermutation,
    make_network,
    round_value,
)

KEYS = st.one_of(st.integers(-3, 3), st.integers(-(2**80), 2**80))

fixed = settings(derandomize=True, deadline=None)


def inverse(order: KeyedPermutation, index: int) -> int:
    """Return the position of the sample `index`: the network in reverse, with as many cycle-walking rounds."""
    assert isinstance(order.bijection, FeistelNetwork)
    position = backwards(order.bijection, index)
    while position >= order.length:
        position = backwards(order.bijection, position)
    return position


def backwards(network: FeistelNetwork, cell: int) -> int:
    row, column = divmod(cell, network.columns)
    keys = network.round_keys
    for row_key, column_key in zip(keys[-2::-2], keys[::-2], strict=True):
        column = (column - round_value(row, column_key, network.columns)) % network.columns
        row = (row - round_value(column, row_key, network.rows)) % network.rows
    return row * network.columns + column


@fixed
@given(KEYS, KEYS, st.integers(0, 3000))
def test_each_sample_occurs_once(seed: int, epoch: int, length: int) -> None:
    """An epoch of any length up to a few thousand holds every sample exactly once."""
    assert sorted(KeyedPermutation(seed, epoch, length)) == list(range(length))


@pytest.mark.parametrize("side", [1, 2, 3, 7, 33])
@pytest.mark.parametrize("more", [0, 1])
def test_each_sample_occurs_once_at_the_edges_of_the_grid(side: int, more: int) -> None:
    """A network on a full square, on a full rectangle and on one cell more is a bijection of its grid."""
    for cells in (side * side + more, side * (side + 1) + more):
        network = make_network(cells, "order", 5)
        grid = network.rows * network.columns
        assert cells <= grid < cells + network.rows
        assert abs(network.rows - network.columns) <= 1
        assert sorted(network[cell] for cell in range(grid)) == list(range(grid))


@pytest.mark.parametrize(
    "length", [MAX_TABLE_LENGTH - 1, MAX_TABLE_LENGTH, MAX_TABLE_LENGTH + 1, 1056, 1057, 1089, 1090]
)
def test_each_sample_occurs_once_where_the_method_changes(length: int) -> None:
    """An epoch is complete on either side of the longest table and of a full grid."""
    assert sorted(KeyedPermutation(1, 2, length)) == list(range(length))


def test_the_longest_table_has_1024_samples() -> None:
    """An order is a table of its indices up to 1024 samples, and uses constant memory above."""
    assert KeyedPermutation(1, 2, 1024).bijection == tuple(KeyedPermutation(1, 2, 1024))
    assert isinstance(KeyedPermutation(1, 2, 1025).bijection, FeistelNetwork)


@fixed
@given(KEYS, KEYS, st.data())
def test_a_long_order_has_an_inverse(seed: int, epoch: int, data: st.DataObject) -> None:
    """At any length up to 2**62 each position maps to a valid index that maps back to it, so no two share one."""
    bits = data.draw(st.integers(11, 62))
    length = data.draw(st.integers(max(MAX_TABLE_LENGTH + 1, 2 ** (bits - 1)), 2**bits))
    position = data.draw(st.integers(0, length - 1))
    order = KeyedPermutation(seed, epoch, length)
    index = order[position]
    assert 0 <= index < length
    assert inverse(order, index) == position


@fixed
@given(KEYS, KEYS, st.integers(40, 2**62), st.data())
def test_a_position_does_not_depend_on_earlier_accesses(
    seed: int, epoch: int, length: int, data: st.DataObject
) -> None:
    """A position has the same index alone, in a block and in another object."""
    start = data.draw(st.integers(0, length - 40))
    order = KeyedPermutation(seed, epoch, length)
    block = order.block(start, start + 40)
    assert [KeyedPermutation(seed, epoch, length)[start + at] for at in reversed(range(40))] == block[::-1]


@pytest.mark.parametrize("length", [100, 10**8])
def test_seed_epoch_and_length_each_change_the_order(length: int) -> None:
    """Neighbouring, negative and overlong seeds and epochs, and neighbouring lengths, have different orders."""
    keys = [-(2**64), -2, -1, 0, 1, 2, 2**32, 2**64 - 1, 2**64, 2**64 + 1, 2**100]
    orders = [KeyedPermutation(seed, epoch, length) for seed in keys for epoch in keys]
    orders += [KeyedPermutation(0, 0, length + more) for more in (1, 2, 3)]
    assert len({tuple(order.block(0, 30)) for order in orders}) == len(orders)


def test_equal_arguments_make_equal_orders() -> None:
    """Two orders are equal if seed, epoch and length are, and their repr shows only these."""
    assert KeyedPermutation(1, 2, 2000) == KeyedPermutation(1, 2, 2000)
    assert KeyedPermutation(1, 2, 2000) != KeyedPermutation(1, 3, 2000)
    assert repr(KeyedPermutation(1, 2, 2000)) == "KeyedPermutation(seed=1, epoch=2, length=2000)"


def test_orders_are_stable() -> None:
    """Orders equal those used by runs of earlier versions."""
    assert KeyedPermutation(0, 0, 10).block(0, 10) == [4, 5, 2, 7, 0, 3, 1, 6, 8, 9]
    assert KeyedPermutation(0, 0, 1025).block(0, 6) == [185, 995, 1008, 574, 572, 217]
    assert KeyedPermutation(42, 3, 10**8).block(10**7, 10**7 + 4) == [69206136, 87425955, 97273320, 59749571]
    assert KeyedPermutation(-1, 2**64, 2**62).block(2**61, 2**61 + 3) == [
        2814056075477357862,
        4400210161062399915,
        1013885534320151969,
    ]


@pytest.mark.parametrize("length", [-1, MAX_LENGTH + 1])
def test_an_unsupported_length_is_refused(length: int) -> None:
    """A negative length and one beyond 2**62 are refused with the supported range."""
    with pytest.raises(
        ConfigurationError, match=rf"order of {length} samples is not supported: it can hold 0 to 2\*\*62"
    ):
        KeyedPermutation(0, 0, length)


@pytest.mark.parametrize(("length", "position"), [(0, 0), (10, -1), (10, 10), (MAX_LENGTH, MAX_LENGTH)])
def test_positions_outside_the_epoch_are_refused(length: int, position: int) -> None:
    """A position before the first or after the last is an error, also in a block."""
    order = KeyedPermutation(0, 0, length)
    with pytest.raises(IndexError, match=rf"Position {position} is outside an epoch of {length} samples"):
        order[position]
    with pytest.raises(IndexError):
        order.block(position, position + 1)


def test_the_longest_order_has_a_length() -> None:
    """len() of the longest order is its number of samples."""
    assert len(KeyedPermutation(0, 0, MAX_LENGTH)) == MAX_LENGTH
