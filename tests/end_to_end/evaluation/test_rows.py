"""Concatenating the rows of many batches into one array."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.adapters.evaluator.torch import arrays as joining
from hexloop.adapters.evaluator.torch.arrays import (
    PADDING,
    Array,
    ArrayStore,
    FileArrays,
    MemoryArrays,
    RowBuffer,
    Shape,
)
from hexloop.domain.errors import DataError, StorageFullError

TYPES = ("float32", "float64", "int64", "int32", "bool", "uint8", "float16")


class Counted(MemoryArrays):
    """Records the memory allocated for results and for intermediate blocks."""

    def __init__(self) -> None:
        self.results: list[Shape] = []
        self.blocks: list[Shape] = []

    def allocate_result(self, shape: Shape, dtype: np.dtype[Any]) -> Array:
        self.results.append(shape)
        return super().allocate_result(shape, dtype)

    def allocate_block(self, shape: Shape, dtype: np.dtype[Any]) -> Array:
        self.blocks.append(shape)
        return super().allocate_block(shape, dtype)


@pytest.fixture(params=["memory", "folder"])
def room(request: pytest.FixtureRequest, tmp_path: Path) -> ArrayStore:
    return MemoryArrays() if request.param == "memory" else FileArrays(str(tmp_path))


def batches_of(shapes: list[tuple[int, int]], kind: str = "float32") -> Iterator[Array]:
    start = 0
    for length, width in shapes:
        yield np.arange(start, start + length * width).reshape(length, width).astype(kind)
        start += length * width


def padded(batches: list[Array]) -> Array:
    """Return the expected array, computed in the simplest way."""
    widest = max(batch.shape[1] for batch in batches)
    filler = np.asarray(PADDING).astype(batches[0].dtype)
    return np.array([[*row, *[filler] * (widest - len(row))] for batch in batches for row in batch], batches[0].dtype)


@given(
    shapes=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), min_size=1, max_size=12),
    expected=st.integers(0, 40),
    kind=st.sampled_from(TYPES),
    least=st.sampled_from([1, 64, 1 << 20]),
)
def test_rows_of_any_widths_are_padded_to_the_widest(
    shapes: list[tuple[int, int]], expected: int, kind: str, least: int
) -> None:
    """The result does not depend on the expected number of rows or on the size of blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joining, "LEAST_BLOCK", least)
        batches = list(batches_of(shapes, kind))
        rows = RowBuffer(MemoryArrays(), expected)
        for batch in batches:
            rows.add(batch)
        joined = rows.joined()

    np.testing.assert_array_equal(joined, padded(batches))
    assert joined.dtype == kind


def test_a_known_number_of_rows_is_written_once() -> None:
    """The result is allocated at the first batch, and nothing is copied later."""
    room = Counted()
    rows = RowBuffer(room, expected=10)
    for batch in batches_of([(4, 3), (4, 3), (2, 3)]):
        rows.add(batch)
    joined = rows.joined()

    assert (room.results, room.blocks) == ([(10, 3)], [])
    assert joined.shape == (10, 3)


def test_fewer_rows_than_expected_are_returned() -> None:
    """A dataset that announced more rows returns those that it had."""
    rows = RowBuffer(MemoryArrays(), expected=1000)
    rows.add(np.ones((2, 3)))

    assert rows.joined().shape == (2, 3)


def test_blocks_are_a_small_part_of_the_whole() -> None:
    """With an unknown number of rows, a block holds at most a sixteenth of the rows before it, or a megabyte."""
    room = Counted()
    rows = RowBuffer(room)
    batch = np.ones((64, 1024), dtype=np.float32)
    for _ in range(400):
        rows.add(batch)

    assert rows.joined().shape == (25600, 1024)
    assert room.results == [(25600, 1024)]
    filled = 0
    for shape in room.blocks:
        assert shape[0] <= max(filled / 16, 64, (1 << 20) / 4096)
        filled += shape[0]


def test_blocks_are_freed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """While blocks are joined, each is freed before the next is copied."""
    monkeypatch.setattr(joining, "LEAST_BLOCK", 1)
    blocks: list[weakref.ref[Any]] = []
    alive: list[int] = []
    copy = joining._pad_into

    class Watched(MemoryArrays):
        def allocate_block(self, shape: Shape, dtype: np.dtype[Any]) -> Array:
            pages = super().allocate_block(shape, dtype)
            blocks.append(weakref.ref(pages.base))
            return pages

    def copied(place: Array, rows: Array) -> None:
        alive.append(sum(block() is not None for block in blocks))
        copy(place, rows)

    rows = RowBuffer(Watched())
    for batch in batches_of([(3, 2)] * 8):
        rows.add(batch)
    monkeypatch.setattr(joining, "_pad_into", copied)
    rows.joined()

    assert alive == [8, 7, 6, 5, 4, 3, 2, 1]


def test_rows_of_a_wider_type_widen_the_result(room: ArrayStore) -> None:
    """Integers after floats, and doubles after singles, lose nothing."""
    rows = RowBuffer(room, expected=4)
    for batch in (np.ones((2, 2), np.float32), np.full((1, 2), 2**30 + 1, np.int64), np.full((1, 2), 0.1)):
        rows.add(batch)
    joined = rows.joined()

    assert joined.dtype == np.float64
    assert joined[2, 0] == 2**30 + 1
    assert joined[3, 1] == 0.1


def test_deeper_rows_are_padded_in_their_second_dimension(room: ArrayStore) -> None:
    """In (rows, width, 2) the width may differ; anything else is refused with the fix."""
    rows = RowBuffer(room, expected=3)
    rows.add(np.ones((1, 2, 2)))
    rows.add(np.ones((1, 3, 2)))
    rows.add(np.ones((1, 1, 2)))
    for other in (np.ones((1, 2, 3)), np.ones((1, 2)), np.ones(1)):
        with pytest.raises(DataError, match="eval_do_concat_batches=False"):
            rows.add(other)
    joined = rows.joined()

    assert joined.shape == (3, 3, 2)
    assert (joined == PADDING).sum() == 2 * (1 + 2)


def test_rows_in_a_folder_are_mapped_and_leave_no_file(tmp_path: Path) -> None:
    """The arrays are on disk, but no file is visible in the folder; empty ones need no file."""
    rows = RowBuffer(FileArrays(str(tmp_path)), expected=4)
    rows.add(np.ones((2, 3)))
    rows.add(np.ones((2, 3)))
    joined = rows.joined()

    assert isinstance(joined, np.memmap)
    assert (joined == 1).all()
    assert list(tmp_path.iterdir()) == []
    assert FileArrays(str(tmp_path)).allocate_result((0, 3), np.dtype("f4")).shape == (0, 3)


def test_a_full_disk_is_reported_before_anything_is_written(tmp_path: Path) -> None:
    """A disk without enough space is reported at once; a write to mapped memory would kill the process later."""
    with pytest.raises(StorageFullError, match="choose a folder on a disk with more space"):
        FileArrays(str(tmp_path)).allocate_result((1 << 45, 1 << 10), np.dtype("f8"))
    assert list(tmp_path.iterdir()) == []


def test_insufficient_memory_is_reported_with_alternatives() -> None:
    """At the first batch if the number of rows is known, not after the last."""
    with pytest.raises(DataError, match=r"need .* GB .*batch_eval_metrics=True.*predictions_folder"):
        RowBuffer(MemoryArrays(), expected=1 << 45).add(np.ones((1, 1 << 10)))


def test_rows_of_width_zero_are_counted(room: ArrayStore) -> None:
    """Rows of width 0 are only counted."""
    rows = RowBuffer(room, expected=3)
    for _ in range(3):
        rows.add(np.ones((1, 0)))

    assert rows.joined().shape == (3, 0)
