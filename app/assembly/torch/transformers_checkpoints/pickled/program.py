"""The program of the process that reads pickled files. It imports nothing but the standard library and its own package.

The request is a line of JSON on stdin: `{"files": [[name, file descriptor or path], ...], "limits": {...}, "memory":
bytes, "seconds": seconds}`. A line is printed for each file as soon as it is read: `[name, "value", value]` or `[name,
"refused", reason]`.
"""

from __future__ import annotations

import base64
import io
import json
import math
import struct
import sys
import zipfile
from collections.abc import Iterator
from typing import Any, BinaryIO

from hexloop.app.assembly.torch.transformers_checkpoints.pickled.descriptions import (
    MOST_DIGITS_BYTES,
    SIZES,
    STORAGES,
    Described,
    Name,
    RefusedPickleError,
    StoredBytes,
    refuse,
)
from hexloop.app.assembly.torch.transformers_checkpoints.pickled.interpreter import Interpreter

LEGACY = 0x1950A86A20F9469CFC6C
"""The number at the start of files of torch before 1.6."""

# Files


def read_file(file: BinaryIO, limits: dict[str, int]) -> Any:
    """Return the value in a file that torch wrote. Raises RefusedPickleError."""
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    value = _read_archive(file, size, limits) if file.read(2) == b"PK" else _read_legacy(file, size, limits)
    return encoded(value, size, limits)


def _read_archive(file: BinaryIO, size: int, limits: dict[str, int]) -> Any:
    """Return the value in an archive: data.pkl, and a record for each storage."""
    try:
        entries = zipfile.ZipFile(file).infolist()
    except (zipfile.BadZipFile, struct.error, ValueError, OSError, NotImplementedError, UnicodeError) as error:
        refuse(f"it is not an archive of torch ({str(error)[:80]})")
    records: dict[str, tuple[int, int]] = {}
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size or entry.flag_bits & 1:
            refuse(f"its record {entry.filename[:80]!r} is compressed or encrypted")
        name = entry.filename.partition("/")[2]
        if name in records:
            refuse(f"its record {entry.filename[:80]!r} exists twice")
        records[name] = (_data_start(file, entry.header_offset), entry.file_size)
    if sum(length for _, length in records.values()) > size or any(
        start + length > size for start, length in records.values()
    ):
        refuse("its records are larger than the file")
    if "data.pkl" not in records:
        refuse("it has no data.pkl, so it is not an archive of torch.save")
    order = _record(file, records.get("byteorder", (0, 0)), 16)
    if order not in (b"", b"little"):
        refuse(f"its tensors have the byte order {order[:16]!r}")
    read_keys: dict[Any, StoredBytes] = {}

    def persistent(key: Any) -> StoredBytes:
        dtype, name, count = _storage_key(key)
        start, length = records.get(f"data/{name}") or refuse(f"it has no record of the storage {name[:40]!r}")
        if count * SIZES[dtype] > length:
            refuse(f"its storage {name[:40]!r} has {length} bytes and should have {count * SIZES[dtype]}")
        return read_keys.setdefault((name, dtype), StoredBytes(start, count * SIZES[dtype], dtype))

    pickled = io.BytesIO(_record(file, records["data.pkl"], limits["document_bytes"]))
    return Interpreter(pickled, limits["document_values"], persistent).run()


def _data_start(file: BinaryIO, header: int) -> int:
    """Return the first byte of a record's data, which comes after a header of 30 bytes, a name and further fields."""
    if header < 0:
        refuse("a record of its archive is damaged")
    file.seek(header)
    found = file.read(30)
    if len(found) != 30 or found[:4] != b"PK\x03\x04":
        refuse("a record of its archive is damaged")
    name, extra = struct.unpack("<HH", found[26:30])
    return header + 30 + int(name) + int(extra)


def _record(file: BinaryIO, place: tuple[int, int], most: int) -> bytes:
    start, length = place
    if length > most:
        refuse(f"its pickle has {length} bytes, more than {most}; document_bytes raises this limit")
    file.seek(start)
    return file.read(length)


def _storage_key(key: Any) -> tuple[str, str, int]:
    """Return the type, the name and the number of elements of the storage that a persistent id describes."""
    if not isinstance(key, tuple) or len(key) not in (5, 6) or key[0] != "storage" or not isinstance(key[1], Name):
        refuse("a storage is not described as torch does")
    name, count = key[2], key[4]
    if key[1].name not in STORAGES or not isinstance(name, str) or type(count) is not int or not 0 <= count < 2**60:
        refuse("a storage is not described as torch does")
    return STORAGES[key[1].name], name, count


def _read_legacy(file: BinaryIO, size: int, limits: dict[str, int]) -> Any:
    """Return the value in a file of torch before 1.6: five pickles, and then each storage with its length before it."""
    pending: dict[str, tuple[str, int]] = {}
    views: list[tuple[str, StoredBytes]] = []

    def persistent(key: Any) -> StoredBytes:
        dtype, name, count = _storage_key(key)
        if len(key) == 6 and key[5] is not None:
            refuse("a storage is a view of another, as in files of torch before 0.4")
        if pending.setdefault(name, (dtype, count)) != (dtype, count) or count * SIZES[dtype] > size:
            refuse(f"its storage {name[:40]!r} is described twice, or is larger than the file")
        views.append((name, StoredBytes(len(views), count * SIZES[dtype], dtype)))
        return views[-1][1]

    def next_pickle() -> Any:
        return Interpreter(file, limits["document_values"], persistent).run()

    file.seek(0)
    if next_pickle() != LEGACY:
        refuse("it is not a file of torch.save")
    next_pickle()  # the version of the format
    information = next_pickle()
    if not isinstance(information, dict) or information.get("little_endian") is not True:
        refuse("its tensors have another byte order")
    value, names = next_pickle(), next_pickle()
    starts: dict[str, int] = {}
    for name in names if isinstance(names, list) else refuse("its list of storages is damaged"):
        dtype, count = pending.get(name) or refuse("its list of storages is damaged")
        if file.read(8) != struct.pack("<q", count):
            refuse(f"its storage {str(name)[:40]!r} has another length than its description")
        starts[name] = file.tell()
        if file.seek(count * SIZES[dtype], io.SEEK_CUR) > size:
            refuse("it ends early")
    places = {number: starts.get(name) for number, (name, _) in enumerate(views)}
    _place(value, places)
    return value


def _place(value: Any, places: dict[int, int | None]) -> None:
    """Set the first byte of the storage of every tensor, which until now has a number in its place."""
    seen, pending = set[int](), [value]
    while pending:
        each = pending.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, Described) and each.kind == "tensor":
            start = places[each.values["start"]]
            each.values["start"] = refuse("a storage is missing") if start is None else start
        elif isinstance(each, dict):
            pending += each.values()
        elif isinstance(each, list | tuple):
            pending += each


# The result


def encoded(value: Any, size: int, limits: dict[str, int]) -> Any:
    """Return a value as JSON: scalars as they are, and everything else as a list of its kind and its contents.

    Shared containers are written each time, so what shares them many times over is refused like what is too long.
    """
    left, tensors, bytes_of_tensors = limits["document_values"], dict[str, None](), 0

    def one(each: Any, depth: int) -> Any:
        nonlocal left, bytes_of_tensors
        left -= 1
        if left < 0:
            refuse(f"it holds more than {limits['document_values']} values; document_values raises this limit")
        if depth > limits["document_depth"]:
            refuse(f"it is nested in more than {limits['document_depth']} levels; document_depth raises this limit")
        if each is None or isinstance(each, bool | str):
            return each
        if isinstance(each, int):
            return each if abs(each) < 2 ** (8 * MOST_DIGITS_BYTES) else refuse("it holds an integer of many digits")
        if isinstance(each, float):
            return each if math.isfinite(each) else ["number", repr(each)]
        if isinstance(each, bytes):
            return ["bytes", base64.b64encode(each).decode()]
        if isinstance(each, dict):
            return ["dict", [[one(key, depth + 1), one(inner, depth + 1)] for key, inner in each.items()]]
        if isinstance(each, list | tuple):
            kind = "list" if isinstance(each, list) else "tuple"
            return [kind, [one(inner, depth + 1) for inner in each]]
        if not isinstance(each, Described) or each.kind == "type":
            refuse("it holds a type, a storage or a function by itself")
        if each.kind == "tensor":
            key = repr(each.values)
            if key not in tensors:
                tensors[key] = None
                bytes_of_tensors += math.prod(each.values["shape"]) * SIZES[each.values["dtype"]]
            if bytes_of_tensors > 2 * size:
                refuse("its tensors are larger than the file, as they share storages")
            return ["tensor", each.values]
        if each.kind in ("array", "scalar"):
            if "data" not in each.values:
                refuse("it holds an array without numbers")
            return [each.kind, {**each.values, "data": base64.b64encode(each.values["data"]).decode()}]
        return [each.kind, each.values["name"]]

    return one(value, 0)


def answers(request: dict[str, Any]) -> Iterator[list[Any]]:
    """Yield the result for each file."""
    for name, source in request["files"]:
        try:
            with open(source, "rb") as file:
                yield [name, "value", read_file(file, request["limits"])]
        except RefusedPickleError as refusal:
            yield [name, "refused", str(refusal)]
        except MemoryError:
            yield [name, "refused", "reading it takes too much memory; the limit import_memory_bytes raises this"]
        except (OSError, RecursionError, OverflowError) as error:
            yield [name, "refused", f"it cannot be read ({type(error).__name__})"]


def main() -> None:
    """Read the request from stdin and print the result for each file."""
    request = json.loads(sys.stdin.readline())
    try:
        import resource  # not on Windows

        for kind, most in ((resource.RLIMIT_AS, request["memory"]), (resource.RLIMIT_CPU, request["seconds"])):
            _, hard = resource.getrlimit(kind)
            resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    except (ImportError, ValueError, OSError):
        pass
    for answer in answers(request):
        print(json.dumps(answer), flush=True)
