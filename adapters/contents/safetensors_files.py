"""Tensors in safetensors files, written and read as streams: never more than one tensor is in memory.

The format: the header's length as 8 bytes, little-endian; the header, a JSON object with the dtype, shape and offsets
of each tensor, padded with spaces to a multiple of 8 bytes; the tensors' bytes without gaps
(https://huggingface.co/docs/safetensors). Here tensors of whole pages come first, and the header is padded to a page if
any tensor is as large as one: each of those tensors is then aligned to a disk block, and can be written directly and
memory-mapped.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import re
import reprlib
import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby, islice
from json.encoder import encode_basestring_ascii
from math import prod
from operator import itemgetter
from typing import Any

from attrs import frozen

from hexloop.adapters.contents import documents
from hexloop.domain.errors import CheckpointError
from hexloop.domain.json_documents import read_json
from hexloop.domain.limits import limits
from hexloop.domain.ranks import assign_to_ranks
from hexloop.ports.state import Part
from hexloop.ports.storage import PAGE, File, OpenFile

MODEL = "model"

TENSORS = ".safetensors"
"""The end of the name of each file with tensors."""

WEIGHTS = "model.safetensors"

INDEX = "model.safetensors.index.json"

_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")

_METADATA = {"format": "pt"}

ITEM_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "C64": 8,
    "F32": 4, "I32": 4, "U32": 4,
    "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E4M3FNUZ": 1, "F8_E5M2": 1, "F8_E5M2FNUZ": 1, "F8_E8M0": 1,
}  # fmt: skip

BLOCK = 1 << 20
"""Bytes of small tensors that are joined in one chunk."""

NEAR = 1 << 22
"""Bytes that are read and skipped rather than reopening the file behind them."""


def is_weights(path: str) -> bool:
    """Return whether a file of this name holds the model's weights or their index."""
    return path in (WEIGHTS, INDEX) or bool(_SHARD.fullmatch(path))


def tensor_files(
    component: str, tensors: list[Tensor], largest: int, rank: int = 0, writers: int = 1
) -> Iterator[File]:
    """Yield those files of a component that one process writes; tensors are assigned to processes by `assign_to_ranks`.

    A file has tensors of one process, of at most `largest` bytes unless a single tensor is larger. Rank 0 also writes
    the index of the model's files if there are several; a model has at least one.
    """
    owners = assign_to_ranks([tensor.size for tensor in tensors], writers)
    shards = [
        (owner, shard)
        for owner, its in groupby(zip(owners, tensors, strict=True), key=itemgetter(0))
        for shard in _shards((tensor for _, tensor in its), largest)
    ]
    if component == MODEL and not shards:
        shards = [(0, [])]
    names = [f"{component}-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    if len(shards) == 1:
        names = [f"{component}.safetensors"]
    metadata = _METADATA if component == MODEL else None
    for name, (owner, shard) in zip(names, shards, strict=True):
        if owner == rank:
            yield tensor_file(name, shard, metadata)
    if component == MODEL and rank == 0 and len(shards) > 1:
        yield _index(names, [shard for _, shard in shards])


def component_of(path: str) -> str:
    """Return the component whose tensors a file of this name holds, in full or in part."""
    return re.sub(r"(-\d{5}-of-\d{5})?\.safetensors$", "", path)


def tensor_paths(component: str, names: Collection[str]) -> list[str]:
    """Return the files of a checkpoint that hold the tensors of a component other than the model."""
    pattern = re.compile(re.escape(component) + r"(-\d{5}-of-\d{5})?\.safetensors")
    return sorted(name for name in names if pattern.fullmatch(name))


def weight_paths(names: Collection[str], open_file: OpenFile) -> list[str]:
    """Return the files of a checkpoint that hold the weights. Raises CheckpointError if some are missing."""
    if WEIGHTS in names:
        return [WEIGHTS]
    if INDEX not in names:
        raise CheckpointError(f"The checkpoint has no weights: neither {WEIGHTS} nor {INDEX} exists.")
    index = documents.read(open_file(INDEX), INDEX)
    try:
        return documents.shard_names(index, names)
    except ValueError as error:
        raise CheckpointError(f"{INDEX} is invalid: {error}.") from error


def _index(names: list[str], shards: list[list[Tensor]]) -> File:
    index = {
        "metadata": {"total_size": sum(tensor.size for shard in shards for tensor in shard)},
        "weight_map": {tensor.name: name for name, shard in zip(names, shards, strict=True) for tensor in shard},
    }
    return File(INDEX, [(json.dumps(index, indent=2) + "\n").encode()])


def _shards(tensors: Iterable[Tensor], largest: int) -> list[list[Tensor]]:
    """Group the tensors, in order, into shards of at most `largest` bytes; at least one shard."""
    shards: list[list[Tensor]] = [[]]
    filled = 0
    for tensor in tensors:
        if shards[-1] and filled + tensor.size > largest:
            shards.append([])
            filled = 0
        shards[-1].append(tensor)
        filled += tensor.size
    return shards


@frozen
class Tensor:
    """A whole tensor, in consecutive slices. size: in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    slices: tuple[Part, ...]
    size: int

    def chunks(self) -> Iterator[memoryview]:
        """Yield the bytes, a slice at a time."""
        for part in self.slices:
            chunk = part.read().cast("B")
            if len(chunk) != part.length * ITEM_BYTES[part.dtype]:
                raise CheckpointError(
                    f"{self.name} returned {len(chunk)} bytes for {part.length} elements of {self.dtype}."
                )
            yield chunk


def tensor_of_part(part: Part) -> Tensor:
    """Return the tensor that a part covers alone, or holds nothing of. Raises CheckpointError for other parts."""
    if part.length:
        return _joined(part.name, [part])
    return Tensor(part.name, part.dtype, part.shape, (part,), prod(part.shape) * ITEM_BYTES[part.dtype])


def join(parts: Iterable[Part]) -> list[Tensor]:
    """Return the tensors whose slices the parts are, in order; the slices of a tensor must be in order too.

    Raises CheckpointError if slices are missing or the format does not support the dtype.
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
                f"The slices of {name} are not consecutive: there is a gap or a change at element {position}."
            )
        position += part.length
    count = prod(first.shape)
    if position != count or first.dtype not in ITEM_BYTES:
        raise CheckpointError(f"{name} cannot be saved: {position} elements of {first.dtype} for shape {first.shape}.")
    return Tensor(name, first.dtype, first.shape, tuple(slices), count * ITEM_BYTES[first.dtype])


def tensor_file(path: str, tensors: Sequence[Tensor], metadata: dict[str, str] | None = None) -> File:
    """Return the tensors as a safetensors file.

    Tensors of whole pages come first, then the others by decreasing item size, so that each is aligned to its page or
    item; of equal item size the largest comes first, because it is aligned to a page too.
    """
    return File(path, _file_chunks(sorted(tensors, key=_sort_key), metadata))


def _sort_key(tensor: Tensor) -> tuple[int, int]:
    return (-ITEM_BYTES[tensor.dtype], -tensor.size) if tensor.size % PAGE else (-PAGE, 0)


def _file_chunks(tensors: Sequence[Tensor], metadata: dict[str, str] | None) -> Iterator[bytes | memoryview]:
    entries = [f'"__metadata__":{json.dumps(metadata, separators=(",", ":"))}'] if metadata else []
    kinds: dict[tuple[str, tuple[int, ...]], str] = {}
    start = 0
    for tensor in tensors:
        kind = kinds.get((tensor.dtype, tensor.shape))
        if kind is None:
            shape = json.dumps(tensor.shape, separators=(",", ":"))
            kind = kinds[tensor.dtype, tensor.shape] = f'{{"dtype":"{tensor.dtype}","shape":{shape}'
        name, end = encode_basestring_ascii(tensor.name), start + tensor.size
        entries.append(f'{name}:{kind},"data_offsets":[{start},{end}]}}')
        start = end
    encoded = f"{{{','.join(entries)}}}".encode()
    unit = PAGE if any(tensor.size >= PAGE for tensor in tensors) else 8
    encoded += b" " * (-(8 + len(encoded)) % unit)
    yield struct.pack("<Q", len(encoded)) + encoded
    yield from _blocks(tensors)


def size_by_header(start: bytes | memoryview) -> int:
    """Return the bytes of a whole file. start: its header, which is the first chunk of a file to be written."""
    header = json.loads(bytes(start[8:]))
    return len(start) + max((each["data_offsets"][1] for name, each in header.items() if name[:2] != "__"), default=0)


def _blocks(tensors: Iterable[Tensor]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of the tensors; those of less than a page are joined, because each chunk takes some time."""
    small: list[memoryview] = []
    size = 0
    for tensor in tensors:
        if tensor.size < PAGE:
            small += tensor.chunks()
            size += tensor.size
        if small and (size >= BLOCK or tensor.size >= PAGE):
            yield b"".join(small)
            small, size = [], 0
        if tensor.size >= PAGE:
            yield from tensor.chunks()
    if small:
        yield b"".join(small)


def tensor_parts(stream: Stream, path: str) -> list[Part]:
    """Return the tensors of a safetensors file as parts that are read later, in file order.

    Raises CheckpointError if the file is not a safetensors file.
    """
    try:
        (length,) = struct.unpack("<Q", stream.read(path, 0, 8))
        if length > limits().tensor_header_bytes:
            raise ValueError(
                f"its header has {length} bytes, more than {limits().tensor_header_bytes}; tensor_header_bytes raises "
                "this limit"
            )
        header = read_json(bytes(stream.read(path, 8, length)))
        if not isinstance(header, dict):
            raise ValueError("its header is not a JSON object")
        header.pop("__metadata__", None)
        entries = [_entry(name, value) for name, value in header.items()]
        entries.sort(key=lambda entry: entry.offsets)
        parts = list(_parts_at(stream, path, entries, 8 + length))
    except ValueError as error:
        raise CheckpointError(f"{path} is not a safetensors file: {error}.") from error
    end, last = (entries[-1].offsets[1], repr(entries[-1].name[:80])) if entries else (0, "its header")
    stream.check_end(path, 8 + length + end, last)
    return parts


@frozen
class HeaderEntry:
    """The description of a tensor in the header of a safetensors file. offsets: its first byte and the one after it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offsets: tuple[int, int]


def _entry(name: str, value: Any) -> HeaderEntry:
    """Return an entry of a header. Raises ValueError, naming tensor and field, for one that is invalid."""
    label = f"{name[:80]!r} in its header"
    shown = reprlib.repr
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{label} does not have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise ValueError(f"{label} has the dtype {shown(dtype)}, which hexloop does not know")
    if not isinstance(shape, list) or not all(map(_is_size, shape)):
        raise ValueError(f"{label} has the shape {shown(shape)}, which is not a list of whole numbers from 0 on")
    if len(shape) > limits().tensor_dimensions:
        raise ValueError(
            f"{label} has {len(shape)} dimensions, more than {limits().tensor_dimensions}; tensor_dimensions raises "
            "this limit"
        )
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        raise ValueError(f"{label} has the data_offsets {shown(offsets)}, which are not two whole numbers from 0 on")
    return HeaderEntry(name, dtype, tuple(shape), (offsets[0], offsets[1]))


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _parts_at(stream: Stream, path: str, entries: list[HeaderEntry], data: int) -> Iterator[Part]:
    """Yield the part of each entry of a header; the data start at byte `data`."""
    position = 0
    for entry in entries:
        count, item = prod(entry.shape), ITEM_BYTES[entry.dtype]
        end = position + count * item
        if entry.offsets != (position, end):
            raise ValueError(
                f"{entry.name[:80]!r} of {entry.dtype} and shape {list(entry.shape)} has the data_offsets "
                f"{list(entry.offsets)}, after {position} bytes of other tensors"
            )
        read_run = partial(_read_run, stream, path, data + position, item)
        yield Part(
            entry.name, entry.dtype, entry.shape, 0, count, partial(read_run, 0, count), read_run=read_run, fresh=True
        )
        position = end


def _read_run(stream: Stream, path: str, start: int, item: int, begin: int, length: int) -> memoryview:
    """Read `length` elements of `item` bytes from element `begin` on, of the tensor that starts at byte `start`."""
    return stream.read(path, start + begin * item, length * item)


LINE = 64
"""Bytes of a cache line."""

LARGE = 1 << 20
"""Bytes from which on a buffer has pages of its own, which the system provides as they are written."""


def _aligned(size: int) -> memoryview:
    """Return a new writable buffer."""
    if size >= LARGE:
        private = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
        return memoryview(mmap.mmap(-1, size, flags=private) if private else mmap.mmap(-1, size))
    memory = bytearray(size + LINE)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % LINE
    return memoryview(memory)[start : start + size]


class Stream:
    """Random reads from the files of a checkpoint. One file is open at a time and one chunk in memory.

    A file is reopened only for a read before the current position, far behind it, or in another file.
    """

    def __init__(self, open_file: OpenFile) -> None:
        self._open = open_file
        self._path: str | None = None
        self._chunks: Iterator[memoryview] = iter(())
        self._rest = memoryview(b"")
        self._position = 0

    def read(self, path: str, start: int, size: int) -> memoryview:
        """Return a new buffer with `size` bytes from byte `start`. Raises CheckpointError if the file is shorter.

        The buffer is aligned to a cache line, so that a tensor can use it as its memory.
        """
        if path != self._path or not 0 <= start - self._position <= max(NEAR, len(self._rest)):
            self._chunks, self._rest, self._position = self._open(path, start), memoryview(b""), start
            self._path = path
        while self._position < start:
            self._take(start - self._position)
        data, filled = _aligned(size), 0
        while filled < size:
            piece = self._take(size - filled)
            data[filled : filled + len(piece)] = piece
            filled += len(piece)
        return data

    def check_end(self, path: str, end: int, last: str) -> None:
        """Raise CheckpointError if a file does not have exactly `end` bytes; only its end is read.

        last: what is there.
        """
        found = sum(map(len, islice(self._open(path, end - 1), 2)))
        if found != 1:
            differs = "has more bytes than that" if found else "is incomplete"
            raise CheckpointError(f"According to its header, {path} ends with {last} at byte {end}, but it {differs}.")

    def _take(self, most: int) -> memoryview:
        """Return the next bytes, at least one and at most `most`."""
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                raise CheckpointError(f"{self._path} ends after {self._position} bytes and is incomplete.")
            self._rest = chunk
        piece, self._rest = self._rest[:most], self._rest[most:]
        self._position += len(piece)
        return piece
