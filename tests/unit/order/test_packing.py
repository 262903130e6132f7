"""Packing: each document once, rows that fit, and plans that are functions of seed, epoch and position."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from itertools import islice, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.domain.errors import DataError
from hexloop.domain.order import KeyedPermutation, Sequential
from hexloop.domain.packing import (
    BFD,
    BFD_SPLIT,
    WINDOW,
    WRAPPED,
    Division,
    Packing,
    Piece,
    Planner,
    Row,
    TokenBudget,
    Unit,
    UnitOrder,
    UnitPlace,
    documents_of,
    tokens_of,
)

STRATEGIES = (BFD, BFD_SPLIT, WRAPPED, None)

lengths = st.lists(st.integers(0, 40), max_size=60)


def log_normal(count: int, mean: float = 350, seed: int = 0) -> list[int]:
    """Return lengths of a log-normal distribution of this mean."""
    source = random.Random(seed)
    return [max(1, int(source.lognormvariate(math.log(mean) - 0.5, 1.0))) for _ in range(count)]


def covered(rows: Sequence[Row]) -> dict[int, list[tuple[int, int]]]:
    """Return the tokens of each document that are in rows, as sorted ranges."""
    found: dict[int, list[tuple[int, int]]] = {}
    for row in rows:
        for piece in row:
            found.setdefault(piece.document, []).append((piece.start, piece.stop))
    return {document: sorted(ranges) for document, ranges in found.items()}


# Rows


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(lengths=lengths, most=st.integers(1, 20))
def test_each_document_is_in_rows_once(strategy: str | None, lengths: list[int], most: int) -> None:
    """Every token is in one row, or cut off at the end; no row has more than `most`; each document ends once."""
    rows = Packing(most, strategy).rows(range(100, 100 + len(lengths)), lengths)
    ranges = covered(rows)

    assert ranges.keys() == set(range(100, 100 + len(lengths)))
    for document, found in ranges.items():
        length = lengths[document - 100]
        assert found[0][0] == 0
        assert all(one[1] == other[0] for one, other in pairwise(found))
        assert found[-1][1] == (length if strategy in (BFD_SPLIT, WRAPPED) else min(length, most))
    assert all(tokens_of(row) <= most for row in rows)
    ends = Counter(piece.document for row in rows for piece in row if piece.ends)
    assert all(ends[document] == 1 for document in ranges)
    assert documents_of(tuple(rows)) == len(lengths)


@given(lengths=lengths, most=st.integers(1, 20))
def test_whole_documents_stay_whole(lengths: list[int], most: int) -> None:
    """`bfd` never divides a document; `bfd_split` only those that are longer than a row."""
    for strategy in (BFD, BFD_SPLIT):
        pieces = Counter(
            piece.document for row in Packing(most, strategy).rows(range(len(lengths)), lengths) for piece in row
        )
        for document, length in enumerate(lengths):
            assert pieces[document] == (1 if strategy == BFD else max(1, -(-length // most)))


@given(lengths=st.lists(st.integers(0, 40), min_size=1, max_size=60), most=st.integers(1, 20))
def test_wrapped_rows_are_full(lengths: list[int], most: int) -> None:
    """All rows but the last have `most` tokens, and hold the documents end to end."""
    rows = Packing(most, WRAPPED).rows(range(len(lengths)), lengths)
    assert [tokens_of(row) for row in rows[:-1]] == [most] * (len(rows) - 1)
    assert [piece.document for row in rows for piece in row] == sorted(piece.document for row in rows for piece in row)


@given(lengths=lengths, most=st.integers(1, 20))
def test_a_piece_is_put_where_it_leaves_the_least_room(lengths: list[int], most: int) -> None:
    """`bfd` puts each document, the longest first, into the fullest row that takes it."""
    expected: list[list[int]] = []
    for document in sorted(range(len(lengths)), key=lambda each: -min(lengths[each], most)):
        size = min(lengths[document], most)
        fitting = [row for row in expected if sum(min(lengths[each], most) for each in row) + size <= most]
        if fitting:
            max(fitting, key=lambda row: sum(min(lengths[each], most) for each in row)).append(document)
        else:
            expected.append([document])
    found = Packing(most, BFD).rows(range(len(lengths)), lengths)
    assert [[piece.document for piece in row] for row in found] == expected


def test_rows_are_nearly_full() -> None:
    """On a log-normal mix of lengths of mean 350, rows of 2048 are filled to more than 0.95, in every window."""
    for seed in range(3):
        mix = log_normal(WINDOW, seed=seed)
        assert 330 < sum(mix) / len(mix) < 370
        for strategy in (BFD, BFD_SPLIT, WRAPPED):
            rows = Packing(2048, strategy).rows(range(WINDOW), mix)
            assert sum(map(tokens_of, rows)) / (2048 * len(rows)) > 0.95


def test_cut_off_documents_are_counted() -> None:
    """Only strategies that do not use documents whole cut them off."""
    assert [Packing(4, strategy).cuts_off([3, 4, 5, 9]) for strategy in STRATEGIES] == [2, 0, 0, 2]
    assert Packing(None, None).cuts_off([10**6]) == 0


def test_an_unknown_strategy_is_an_error() -> None:
    """It is not taken for another one."""
    with pytest.raises(ValueError, match="no packing strategy 'ffd'"):
        Packing(4, "ffd").rows([0], [1])


# Budgets


@given(
    lengths=st.lists(st.integers(0, 12), max_size=40),
    tokens=st.integers(12, 40),
    padded=st.booleans(),
    multiple=st.sampled_from([1, 4]),
)
def test_units_fit_the_budget(lengths: list[int], tokens: int, padded: bool, multiple: int) -> None:
    """Rows stay in order; no unit exceeds the budget, and none could take the first row of the next one."""
    rows = Packing().rows(range(len(lengths)), lengths)
    units = TokenBudget(tokens, padded, multiple).units(rows)

    def size(unit: Unit) -> int:
        found = list(map(tokens_of, unit))
        wide = len(found) * -(-max(found) // multiple) if padded else -(-sum(found) // multiple)
        return wide * multiple

    assert [row for unit in units for row in unit] == rows
    assert all(size(unit) <= tokens for unit in units)
    assert all(size((*one, other[0])) > tokens for one, other in pairwise(units))


def test_a_row_beyond_the_budget_is_refused() -> None:
    """The message says how long it is, and what to set."""
    with pytest.raises(DataError, match=r"A sample has 9 tokens, and tokens_per_batch=8 .* set max_length"):
        TokenBudget(8).units(Packing().rows([0, 1], [3, 9]))


# The order of an epoch


def order(
    count: int,
    strategy: str | None = BFD,
    seed: int = 0,
    epoch: int = 0,
    budget: TokenBudget | None = None,
    window: int = 16,
    **options: Any,
) -> UnitOrder:
    """Return the units of documents of mixed lengths, in windows of 16."""
    mix = [1 + document * 7 % 13 for document in range(count)]
    planner = Planner(Packing(12, strategy), budget, window=window, **options)
    documents = KeyedPermutation(seed, epoch, count) if planner.shuffles else Sequential(count)
    return UnitOrder(documents, planner, lambda some: [mix[each] for each in some], seed, epoch)


START = UnitPlace(0, 0)


@given(count=st.integers(0, 70), strategy=st.sampled_from(STRATEGIES), seed=st.integers(0, 5), grouped=st.booleans())
def test_an_epoch_has_each_document_once(count: int, strategy: str | None, seed: int, grouped: bool) -> None:
    """Over all windows, whatever the strategy and the budget are; windows hold neighbors of the order."""
    budget = TokenBudget(24) if grouped else None
    units = order(count, strategy, seed, budget=budget, grouped=grouped and strategy is None)
    found = [
        (place, piece.document)
        for place, unit in units.units_from(START)
        for row in unit
        for piece in row
        if piece.ends
    ]
    assert sorted(document for _, document in found) == list(range(count))
    for window in range(units.windows):
        start = 16 * window
        expected = set(units.order.block(start, min(start + 16, count)))
        assert {document for place, document in found if place.window == window} == expected


@given(count=st.integers(1, 70), strategy=st.sampled_from(STRATEGIES), at=st.integers(0, 200))
def test_units_follow_from_their_place(count: int, strategy: str | None, at: int) -> None:
    """Another object of the same seed and epoch has the same units from any place on, whatever was read before."""
    whole = list(order(count, strategy).units_from(START))
    if at < len(whole):
        assert list(order(count, strategy).units_from(whole[at][0])) == whole[at:]


@given(count=st.integers(1, 70), grouped=st.booleans())
def test_a_position_is_the_place_after_so_many_documents(count: int, grouped: bool) -> None:
    """Where documents are whole, each end of a unit has a position of its own, which leads back to it."""
    options: dict[str, Any] = {"budget": TokenBudget(24), "grouped": True} if grouped else {}
    units, counted = order(count, None if grouped else BFD, **options), 0
    for place, unit in units.units_from(START):
        assert units.place_at(counted) == place
        counted += documents_of(unit)
    assert list(units.units_from(units.place_at(counted))) == []


def test_other_seeds_and_epochs_pack_other_documents_together() -> None:
    """The rows of two epochs differ, and not only their order."""
    rows = [
        {
            frozenset(piece.document for piece in row)
            for _, (row,) in order(64, seed=seed, epoch=epoch).units_from(START)
        }
        for seed, epoch in ((0, 0), (0, 1), (1, 0))
    ]
    assert all(len(one & other) < len(one) / 2 for one, other in pairwise(rows))


def test_only_the_window_of_a_place_is_read() -> None:
    """The lengths of earlier and later windows are not asked for."""
    asked: list[int] = []
    units = order(1600)

    def lengths_of(some: Sequence[int]) -> Sequence[int]:
        asked.append(len(some))
        return units.lengths_of(some)

    watching = UnitOrder(units.order, units.planner, lengths_of, 0, 0)
    next(watching.units_from(watching.place_at(48 * 16)))
    assert asked == [16]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rows_in_the_order_of_the_data(strategy: str | None) -> None:
    """Without shuffling, rows come in the order of their earliest documents."""
    rows = [row for _, (row,) in order(64, strategy, shuffles=False).units_from(START)]
    found = [min(piece.document for piece in row) for row in rows]
    assert found == sorted(found)
    if strategy in (WRAPPED, None):
        pieces = [(piece.document, piece.start) for row in rows for piece in row]
        assert pieces == sorted(pieces)


def test_rows_in_a_random_order_are_not_sorted_by_length() -> None:
    """The long documents, which are packed first, do not come first."""
    first = [max(piece.stop for piece in row) for _, (row,) in islice(order(2048, window=2048).units_from(START), 40)]
    assert first != sorted(first, reverse=True)
    assert len(set(first)) > 2


def test_grouped_rows_pad_little() -> None:
    """Rows of a unit have similar lengths, and the longest unit comes first, so that a lack of memory shows at once."""
    units = [unit for _, unit in order(512, None, budget=TokenBudget(48), grouped=True, window=512).units_from(START)]
    padded = sum(len(unit) * max(map(tokens_of, unit)) for unit in units)
    assert padded < 1.1 * sum(tokens_of(row) for unit in units for row in unit)
    assert max(map(tokens_of, units[0])) == 12


def test_what_units_depend_on() -> None:
    """Other settings have other descriptions."""
    planners = [
        Planner(Packing(12, BFD)),
        Planner(Packing(12, WRAPPED)),
        Planner(Packing(13, BFD)),
        Planner(Packing(12, BFD), TokenBudget(12)),
        Planner(Packing(12, BFD), TokenBudget(12, padded=False)),
        Planner(Packing(12, BFD), shuffles=False),
        Planner(Packing(12, None), grouped=True),
        Planner(Packing(12, BFD), window=4),
    ]
    assert len({each.described for each in planners}) == len(planners)


# Batches of an epoch


@given(units=st.integers(1, 60), size=st.integers(1, 9), more=st.integers(0, 3))
def test_epochs_of_different_units_have_as_many_batches(units: int, size: int, more: int) -> None:
    """Every unit is in one of so many batches, none is larger than `size` or empty, and the whole ones come first."""
    batches = min(units, -(-units // size) + more)
    division, sizes = Division(units, batches, size), list[int]()
    while taken := division.next_size(sum(sizes), len(sizes)):
        sizes.append(taken)
    assert (sum(sizes), len(sizes)) == (units, batches)
    assert max(sizes) <= size
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[: division.whole_batches] == [size] * division.whole_batches
    assert [division.batches_before(sum(sizes[:number])) for number in range(batches + 1)] == list(range(batches + 1))


def test_a_piece_says_what_it_is() -> None:
    """A long document in pieces, of which the last one counts."""
    (first,), (second,) = Packing(4, BFD_SPLIT).rows([7], [6])
    assert (first, second) == (Piece(7, 0, 4, False), Piece(7, 4, 6, True))
