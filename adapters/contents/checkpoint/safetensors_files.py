"""Reading here and there in files whose bytes come in order, from anywhere on."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from math import prod
from operator import itemgetter
from typing import Any

from attrs import frozen

from hexloop.adapters.contents.checkpoint import documents
from hexloop.domain.errors import CheckpointError
from hexloop.domain.json_documents import read_json
from hexloop.domain.ranks import assign_to_ranks
from hexloop.ports.contents import OpenFile
from hexloop.ports.files import File
from hexloop.ports.state import Part
from hexloop.ports.storage import PAGE

MODEL = "model"

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

LONGEST_HEADER = 100_000_000
"""The safetensors library reads no longer header, in bytes."""

NEAR = 1 << 22
"""Bytes that are read in passing rather than to open the file anew behind them."""


def is_weights(path: str) -> bool:
    """Whether a file of this name holds weights, or says where they are."""
    return path in (WEIGHTS, INDEX) or bool(_SHARD.fullmatch(path))


def weight_files(tensors: list[Tensor], largest: int) -> Iterator[File]:
    """The files of a model, none above `largest` bytes of tensors, unless a single tensor is."""
    shards = _shards(tensors, largest)
    names = shard_names(MODEL, len(shards))
    for name, shard in zip(names, shards, strict=True):
        yield tensor_file(name, shard, _METADATA)
    if len(shards) > 1:
        yield _index(names, shards)


def dealt_files(keeper: str, tensors: list[Tensor], largest: int, rank: int, writers: int) -> Iterator[File]:
    """Those files of a keeper that a process writes, of several that each hold the tensors that fall to it by `deal`.

    Each file is of tensors of one process. The first also writes the index of the model's, where these are several.
    """
    owners = assign_to_ranks([tensor.size for tensor in tensors], writers)
    shards = [
        (owner, shard)
        for owner, its in groupby(zip(owners, tensors, strict=True), key=itemgetter(0))
        for shard in _shards((tensor for _, tensor in its), largest)
    ]
    names = shard_names(keeper, len(shards))
    metadata = _METADATA if keeper == MODEL else None
    for name, (owner, shard) in zip(names, shards, strict=True):
        if owner == rank:
            yield tensor_file(name, shard, metadata)
    if keeper == MODEL and rank == 0 and len(shards) != 1:
        yield _index(names, [shard for _, shard in shards])


def shard_names(keeper: str, count: int) -> list[str]:
    """The usual names of the parts of a file; a single one is the file."""
    if count == 1:
        return [f"{keeper}.safetensors"]
    return [f"{keeper}-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]


def keeper_of(path: str) -> str:
    """Whose tensors a file of this name holds, all of them or some."""
    return re.sub(r"(-\d{5}-of-\d{5})?\.safetensors$", "", path)


def tensor_paths(keeper: str, names: Collection[str]) -> list[str]:
    """Which of a checkpoint's files hold the tensors of a keeper other than the model."""
    pattern = re.compile(re.escape(keeper) + r"(-\d{5}-of-\d{5})?\.safetensors")
    return sorted(name for name in names if pattern.fullmatch(name))


def weight_paths(names: Collection[str], open_file: OpenFile) -> list[str]:
    """Which of a checkpoint's files hold the weights. Raises CheckpointError where they are not all there."""
    if WEIGHTS in names:
        return [WEIGHTS]
    if INDEX not in names:
        raise CheckpointError(f"The checkpoint holds no weights: it has neither {WEIGHTS} nor {INDEX}.")
    index = documents.read(open_file(INDEX))
    try:
        paths = sorted(set(index["weight_map"].values()))
    except (TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{INDEX} is not an index of shards: {error!r}.") from error
    missing = [path for path in paths if path not in names]
    if missing:
        raise CheckpointError(
            f"{INDEX} names shards that the checkpoint does not hold: {', '.join(map(str, missing))}."
        )
    return paths


def _index(names: list[str], shards: list[list[Tensor]]) -> File:
    index = {
        "metadata": {"total_size": sum(tensor.size for shard in shards for tensor in shard)},
        "weight_map": {tensor.name: name for name, shard in zip(names, shards, strict=True) for tensor in shard},
    }
    return File(INDEX, [(json.dumps(index, indent=2) + "\n").encode()])


def _shards(tensors: Iterable[Tensor], largest: int) -> list[list[Tensor]]:
    """The tensors in order, in groups of at most `largest` bytes; at least one group."""
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


class Stream:
    """The files of a checkpoint, of which one is open at a time: however many there are, one chunk is in memory.

    A file is opened anew only where a read lies before the end of the last one, far behind it, or in another file.
    """

    def __init__(self, open_file: OpenFile) -> None:
        self._open = open_file
        self._path: str | None = None
        self._chunks: Iterator[memoryview] = iter(())
        self._rest = memoryview(b"")
        self._position = 0

    def read(self, path: str, start: int, size: int) -> memoryview:
        """The `size` bytes from byte `start` on, the reader's own. Raises CheckpointError where the file is shorter.

        Memory is taken as the bytes come: a file that promises more than it has costs what it has.
        """
        if path != self._path or not 0 <= start - self._position <= max(NEAR, len(self._rest)):
            self._chunks, self._rest, self._position = self._open(path, start), memoryview(b""), start
            self._path = path
        while self._position < start:
            self._take(start - self._position)
        data = bytearray()
        while len(data) < size:
            data += self._take(size - len(data))
        return memoryview(data)

    def _take(self, most: int) -> memoryview:
        """The next bytes, at least one and at most `most`."""
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                raise CheckpointError(f"The file ends after {self._position} bytes, before what it should hold.")
            self._rest = chunk
        piece, self._rest = self._rest[:most], self._rest[most:]
        self._position += len(piece)
        return piece
