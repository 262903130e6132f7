"""Tensors as a safetensors file, a stream in both directions: never more than one tensor is in memory.

The format: the header's length as 8 bytes, little-endian; the header, a JSON object with each tensor's dtype, shape and
place, padded with spaces to a multiple of 8 bytes; the tensors' bytes without gaps
(https://huggingface.co/docs/safetensors). Here tensors of whole pages come first, and the padding goes on to the end of
a page where a tensor is as large as one: each of those then begins where one of a disk's blocks does, and can be
written from where it lies, and mapped.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from math import prod
from typing import Any

from attrs import frozen

from hexloop.adapters.contents.checkpoint.stream import Stream
from hexloop.domain.errors import CheckpointError
from hexloop.domain.strict_json import read_json
from hexloop.ports.files import File
from hexloop.ports.state import Part
from hexloop.ports.storage import PAGE

ITEM_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "C64": 8,
    "F32": 4, "I32": 4, "U32": 4,
    "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E4M3FNUZ": 1, "F8_E5M2": 1, "F8_E5M2FNUZ": 1, "F8_E8M0": 1,
}  # fmt: skip

LONGEST_HEADER = 100_000_000
"""The safetensors library reads no longer header, in bytes."""


@frozen
class Tensor:
    """A whole tensor, in slices that follow one another."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    slices: tuple[Part, ...]

    @property
    def size(self) -> int:
        """In bytes."""
        return prod(self.shape) * ITEM_BYTES[self.dtype]

    def chunks(self) -> Iterator[memoryview]:
        """The bytes, a slice at a time."""
        for part in self.slices:
            chunk = part.read().cast("B")
            if len(chunk) != part.length * ITEM_BYTES[part.dtype]:
                raise CheckpointError(
                    f"{self.name} gave {len(chunk)} bytes for {part.length} elements of {self.dtype}."
                )
            yield chunk


def tensor_of_part(part: Part) -> Tensor:
    """The tensor that a part alone is, or of which it holds nothing. Raises CheckpointError for other parts."""
    return _joined(part.name, [part]) if part.length else Tensor(part.name, part.dtype, part.shape, (part,))


def join(parts: Iterable[Part]) -> list[Tensor]:
    """The tensors that parts are slices of, in order; a tensor's slices come in order, too.

    Raises CheckpointError where slices are missing, or of a dtype that the format lacks.
    """
    slices: dict[str, list[Part]] = {}
    for part in parts:
        slices.setdefault(part.name, []).append(part)
    return [_joined(name, held) for name, held in slices.items()]


def _joined(name: str, slices: list[Part]) -> Tensor:
    first, position = slices[0], 0
    for part in slices:
        if part.offset != position or (part.dtype, part.shape) != (first.dtype, first.shape):
            raise CheckpointError(
                f"The slices of {name} do not follow one another: there is a gap or a change at element {position}."
            )
        position += part.length
    if position != prod(first.shape) or first.dtype not in ITEM_BYTES:
        raise CheckpointError(f"{name} cannot be saved: {position} elements of {first.dtype} for shape {first.shape}.")
    return Tensor(name, first.dtype, first.shape, tuple(slices))


def tensor_file(path: str, tensors: Sequence[Tensor], metadata: dict[str, str] | None = None) -> File:
    """The tensors as a safetensors file.

    Those of whole pages come first, then those with the larger items, so that each is aligned to its page or item; of
    the latter the largest first, as one of them begins with a page, too.
    """
    return File(path, _file_chunks(sorted(tensors, key=_rank), metadata))


def _rank(tensor: Tensor) -> tuple[int, int]:
    return (-ITEM_BYTES[tensor.dtype], -tensor.size) if tensor.size % PAGE else (-PAGE, 0)


def _file_chunks(tensors: Sequence[Tensor], metadata: dict[str, str] | None) -> Iterator[bytes | memoryview]:
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    start = 0
    for tensor in tensors:
        place = [start, start := start + tensor.size]
        header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": place}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    unit = PAGE if any(tensor.size >= PAGE for tensor in tensors) else 8
    encoded += b" " * (-(8 + len(encoded)) % unit)
    yield struct.pack("<Q", len(encoded)) + encoded
    for tensor in tensors:
        yield from tensor.chunks()


def tensor_parts(stream: Stream, path: str) -> list[Part]:
    """The tensors of a safetensors file, in the order of their bytes, none of which is read yet.

    Raises CheckpointError where the file is none.
    """
    try:
        (length,) = struct.unpack("<Q", stream.read(path, 0, 8))
        if length > LONGEST_HEADER:
            raise ValueError(f"a header of {length} bytes")
        header = read_json(bytes(stream.read(path, 8, length)))
        header.pop("__metadata__", None)
        entries = sorted(header.items(), key=lambda item: tuple(item[1]["data_offsets"]))
        return list(_placed(stream, path, entries, 8 + length))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} is not a safetensors file: {error!r}.") from error


def _placed(stream: Stream, path: str, entries: list[tuple[str, Any]], data: int) -> Iterator[Part]:
    """The part for each entry of a header whose data begin at byte `data`."""
    position = 0
    for name, entry in entries:
        dtype, shape = entry["dtype"], tuple(entry["shape"])
        if not all(type(length) is int and length >= 0 for length in shape):
            raise ValueError(f"{name} of shape {entry['shape']}")
        size = prod(shape) * ITEM_BYTES[dtype]
        if entry["data_offsets"] != [position, position + size]:
            raise ValueError(f"{name} of {dtype}{list(shape)} at {entry['data_offsets']}, after {position} bytes")
        yield _placed_part(name, dtype, shape, partial(stream.read, path), data + position)
        position += size


def _placed_part(
    name: str, dtype: str, shape: tuple[int, ...], read: Callable[[int, int], memoryview], start: int
) -> Part:
    """The tensor whose bytes begin at byte `start` of what is read, and that need not be read whole."""
    count, item = prod(shape), ITEM_BYTES[dtype]

    def run(begin: int, length: int) -> memoryview:
        return read(start + begin * item, length * item)

    return Part(name, dtype, shape, 0, count, lambda: run(0, count), read_run=run)
