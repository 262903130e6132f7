"""Reading and writing of safetensors files."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from attrs import evolve

from hexloop.adapters.contents.safetensors_files import ITEM_BYTES, Stream, join, tensor_file, tensor_parts
from hexloop.domain.errors import CheckpointError
from hexloop.ports.state import Part
from hexloop.ports.storage import PAGE
from tests.contracts.keepers import array_of, assert_equal, part_of, weights


def test_tensors_are_aligned_to_their_item_size() -> None:
    """Large items come first, so that every tensor starts at a multiple of its item size, and the data at one of 8."""
    data = b"".join(tensor_file("a", join(part_of(name, array) for name, array in weights().items())).chunks)
    (length,) = struct.unpack("<Q", data[:8])
    assert length % 8 == 0
    for entry in json.loads(data[8 : 8 + length]).values():
        assert entry["data_offsets"][0] % ITEM_BYTES[entry["dtype"]] == 0


def test_tensors_of_whole_pages_are_aligned_to_pages() -> None:
    """They come first, followed by the largest of the others; the safetensors library accepts the padded header."""
    arrays = {
        "bias": np.arange(5, dtype="<f4"),
        "odd": np.arange(PAGE + 3, dtype="<f4"),
        "half": np.ones((2, PAGE), "<f2"),
        "weight": np.arange(PAGE, dtype="<f4"),
        "larger odd": np.arange(2 * PAGE + 1, dtype="<f4"),
    }
    data = b"".join(tensor_file("a", join(part_of(name, array) for name, array in arrays.items())).chunks)
    (length,) = struct.unpack("<Q", data[:8])
    places = {name: 8 + length + entry["data_offsets"][0] for name, entry in json.loads(data[8 : 8 + length]).items()}
    assert sorted(places, key=places.__getitem__) == ["half", "weight", "larger odd", "odd", "bias"]
    assert [places[name] % PAGE for name in ("half", "weight", "larger odd")] == [0, 0, 0]
    loaded = safetensors.numpy.load(data)
    assert all(np.array_equal(loaded[name], array) for name, array in arrays.items())


def test_one_tensor_at_a_time_is_in_memory() -> None:
    """Parts of a page or more are read one after the other, when the file reaches them, in writing and in reading."""
    order: list[str] = []

    def watched(part: Part) -> Part:
        def read() -> memoryview:
            order.append(part.name)
            return part.read()

        return evolve(part, read=read)

    parts = [watched(part_of(name, np.full(PAGE // 4, index, "<i4"))) for index, name in enumerate("abc")]
    chunks = iter(tensor_file("a", join(parts)).chunks)
    data = bytes(next(chunks))
    assert order == []
    for name in "abc":
        data += bytes(next(chunks))
        assert order[-1] == name
    opened = 0

    def open_file(path: str, begin: int = 0) -> Iterator[memoryview]:
        nonlocal opened
        opened += 1
        yield from (memoryview(data)[start : start + 5] for start in range(begin, len(data), 5))

    read = tensor_parts(Stream(open_file), "a")
    assert [set(array_of(part).tolist()) for part in read] == [{0}, {1}, {2}]
    assert opened == 2  # once more for its end
    assert set(array_of(read[0]).tolist()) == {0}
    assert opened == 3


def test_only_the_requested_elements_are_read() -> None:
    """A range of a tensor's elements is read without the bytes before and after it."""
    array = np.arange(1 << 22, dtype="<i4")
    data = b"".join(tensor_file("a", join([part_of("b", array), part_of("c", array + 1)])).chunks)
    read = 0

    def open_file(path: str, begin: int = 0) -> Iterator[memoryview]:
        nonlocal read
        for start in range(begin, len(data), 1 << 16):
            read += min(1 << 16, len(data) - start)
            yield memoryview(data)[start : start + (1 << 16)]

    (_, part) = tensor_parts(Stream(open_file), "a")
    first = 3_000_000
    assert np.frombuffer(part.run(first, 10), "<i4").tolist() == list(range(first + 1, first + 11))
    assert read <= (2 << 16) + 1  # and the last byte, to check the size


def test_consecutive_slices_of_a_tensor_are_joined() -> None:
    """A tensor that is exported in several consecutive slices is written as one."""
    whole = np.arange(12, dtype="<i4").reshape(3, 4)
    flat = whole.reshape(-1)

    def cut(start: int, stop: int) -> Part:
        return Part("a", "I32", whole.shape, start, stop - start, lambda: memoryview(flat[start:stop].tobytes()))

    data = b"".join(tensor_file("a", join([cut(0, 5), part_of("b", flat), cut(5, 6), cut(6, 12)])).chunks)
    assert_equal(safetensors.numpy.load(data), {"a": whole, "b": flat})
    for slices in ([cut(0, 5), cut(6, 12)], [cut(5, 12), cut(0, 5)], [cut(0, 5)], [cut(0, 5), cut(0, 12)]):
        with pytest.raises(CheckpointError, match="a "):
            join(slices)


def test_unsupported_dtypes_and_short_parts_are_refused() -> None:
    """A dtype without a safetensors name, and a part with too few bytes, are errors that name the tensor."""
    with pytest.raises(CheckpointError, match=r"a cannot be saved: .* of Q4"):
        join([Part("a", "Q4", (2,), 0, 2, lambda: memoryview(b"ab"))])
    short = join([Part("a", "F32", (2,), 0, 2, lambda: memoryview(b"abcd"))])
    with pytest.raises(CheckpointError, match="a returned 4 bytes for 2 elements of F32"):
        b"".join(tensor_file("a", short).chunks)


def header_of(header: Any, data: bytes = b"") -> bytes:
    encoded = json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x08\0\0",
        struct.pack("<Q", 1 << 60) + b"{}",
        struct.pack("<Q", 200) + b"{}",
        struct.pack("<Q", 4) + b"nope",
        struct.pack("<Q", 200_000) + b"[" * 200_000,
        header_of([]),
        header_of({"a": 5}),
        header_of({"a": {"dtype": "F32", "shape": [1]}}),
        header_of({"a": {"dtype": "F33", "shape": [1], "data_offsets": [0, 4]}}),
        header_of({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}),
        header_of({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}),
        header_of({"a": {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}}),
        header_of({"a": {"dtype": "F32", "shape": "1", "data_offsets": None}}),
    ],
)
def test_an_invalid_file_is_refused(data: bytes) -> None:
    """A file in another format is refused by name before anything in it is used."""
    with pytest.raises(CheckpointError):
        tensor_parts(Stream(lambda path, start=0: iter([memoryview(data)[start:]])), "model.safetensors")


@pytest.mark.parametrize(("held", "words"), [(b"abc", "incomplete"), (b"", "incomplete"), (b"abcde", "more bytes")])
def test_a_file_of_another_size_than_its_header_describes_is_refused(held: bytes, words: str) -> None:
    """Before a tensor is read: one that extends beyond the end of the file, and bytes that belong to none."""
    data = header_of({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, held)
    expected = rf"model\.safetensors ends with 'a' at byte {len(data) - len(held) + 4}, .*{words}"
    with pytest.raises(CheckpointError, match=expected):
        tensor_parts(Stream(lambda path, start=0: iter([memoryview(data)[start:]])), "model.safetensors")


def test_a_file_that_is_cut_while_it_is_read_is_refused() -> None:
    """The error names the file, and where it ends."""
    data = header_of({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"abcd")
    held = [data]
    (part,) = tensor_parts(Stream(lambda path, start=0: iter([memoryview(held[0])[start:]])), "model.safetensors")
    held[0] = b""
    assert bytes(part.read()) == b"abcd"  # from the chunk that was read with the header
    with pytest.raises(CheckpointError, match=r"model\.safetensors ends after"):
        part.read()
