"""Parts of a value, as read from and written to files."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from hexloop.ports.state import Part

NUMBERS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=20)


def part_of(numbers: list[int]) -> Part:
    """Return a row of 32-bit numbers."""
    data = memoryview(struct.pack(f"<{len(numbers)}i", *numbers))
    return Part("row", "I32", (len(numbers),), 0, len(numbers), lambda: data)


@given(NUMBERS, st.data())
def test_a_run_is_a_range_of_elements(numbers: list[int], data: st.DataObject) -> None:
    """A run has a first element and a number of elements, which may be 0."""
    begin = data.draw(st.integers(0, len(numbers)))
    length = data.draw(st.integers(0, len(numbers) - begin))
    run = part_of(numbers).run(begin, length)
    assert list(struct.unpack(f"<{length}i", run)) == numbers[begin : begin + length]


@given(st.integers(0, 5), st.integers(0, 5))
def test_a_part_that_can_read_ranges_reads_only_the_run(begin: int, length: int) -> None:
    """Nothing else of the part is read."""
    ranges: list[tuple[int, int]] = []

    def read_run(begin: int, length: int) -> memoryview:
        ranges.append((begin, length))
        return memoryview(bytes(4 * length))

    part = Part("row", "I32", (10,), 0, 10, lambda: memoryview(b""), read_run=read_run)
    assert len(part.run(begin, length)) == 4 * length
    assert ranges == [(begin, length)]
