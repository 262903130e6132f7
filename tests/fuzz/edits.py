"""Edits of the files in a folder, as JSON, so that a case of a fuzzer can be read and kept.

An edit is an object with a `file` and what is done to it:

| entries | what is done |
|---|---|
| `at`, `set` | set the value at a path of a JSON document, or of the header of a safetensors file |
| `at`, `remove` | remove the value there |
| `at`, `rename` | give the entry there another key |
| `tensor`, `shape`, `dtype`, `fill` | replace a tensor, with its header, by another one |
| `bytes` | replace a slice: its start, its length, and the new bytes in hexadecimal |
| `size` | cut the file, or extend it by a hole |
| `missing`, `copy_of`, `link` | remove it, or put a copy of another file or a link in its place |
| `names` | put so many further files into the folder; those of the manifest have copies of its first entry |

One with `late` is made after the folder has been sealed again, as are those of the manifest.

A value `{"$deep": n}` stands for n nested lists, `{"$long": n}` for a text, `{"$many": n}` for a list, `{"$groups": n}`
for a list of parameter groups, `{"$keys": n}` for an object of many keys, and `{"$alike": n}` and `{"$pairs": n}` for
dictionaries of numbers with equal hashes, as a document and an optimizer write them.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from math import prod
from pathlib import Path
from random import Random
from typing import Any

Edit = dict[str, Any]

NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 3, 4, 7, 8, 16, 623, 624, 625, 10_000, 10**9, -(10**8), 2**31 - 1, 2**31, 2**32, 2**53, 2**53 + 1,
    2**63 - 1, 2**63, 2**64,
    -(2**63),
    10**30, -(10**400), 10**308, 0.0, -0.0, 0.1, 0.5, 1.0, 1.5, -1.5, 1e-320, 1e308, -1e308, 3.4e38, True, False,
)  # fmt: skip

TEXTS: tuple[str, ...] = (
    "", "a", "nan", "inf", "-inf", "1", "true", "null", "cpu", "cuda:0", "meta", "torch.float16", "F32", "F64", "I64",
    "U8", "BOOL",
    "F8_E4M3", "/etc/passwd", "../x", "model.safetensors", "run_state.json", "checkpoint-2", "\x1b[2J\x1b]0;x\x07",
    "a\nb", "\x00",
    "\ud800", "\u202e", "x" * 5000, "AdamW", "save", "steps", "params", "AAAA", "AA=A", "\u00e9", "layers.0.weight",
    "step", "s3://a:b@c/d",
)  # fmt: skip

OBJECTS: tuple[Any, ...] = (
    None, [], {}, [None], [[]], {"a": 1}, {"": {}}, [1, 2, 3], ["a"], {"$number": "nan"}, {"$number": "x"},
    {"$number": []},
    {"$items": [[1, 2]]}, {"$items": [[[1], 2]]}, {"$items": 5}, {"__tuple__": [0.9, 0.999]}, {"__tuple__": 5},
    {"__tuple__": []},
    {"__tensor__": "layers.0.weight.step"}, {"__tensor__": "x"}, {"__tensor__": []}, {"__dtype__": "torch.float32"},
    {"args": {}, "attributes": {}}, {"args": {"x": 1}, "attributes": {}}, {"args": {}, "attributes": {"x": 1}},
    {"size": 0, "digest": ""}, {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}, {"$deep": 90}, {"$deep": 200},
    {"$long": 100_000},
    {"$many": 50_000}, {"$groups": 20_000}, {"$keys": 50_000}, {"$alike": 5_000}, {"$pairs": 5_000},
    float("nan"), float("inf"), float("-inf"),
)  # fmt: skip

SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "C64": 8}

LARGEST = 1 << 26
"""Bytes of a file that is still edited."""

FILLS = ("zeros", "ones", "nan", "inf", "huge", "noise", "minus")


# Applying


def apply(folder: Path, edits: list[Edit], late: bool | None = None) -> None:
    """Apply edits to a folder; those that no longer fit, as what they change is gone, are left out.

    late: only edits that come after the sealing, or only the others.
    """
    for edit in edits:
        is_late = edit.get("file") == "manifest.json" or "late" in edit
        if "file" in edit and (late is None or late == is_late):
            try:
                _apply(folder, edit)
            except (OSError, LookupError, TypeError, ValueError, AttributeError, struct.error):
                continue


def _apply(folder: Path, edit: Edit) -> None:
    path = folder / edit["file"]
    read = folder / str(edit.get("copy_of", edit["file"]))
    if read.stat().st_size > LARGEST and "size" not in edit:
        return  # it was made large by an edit before
    if "at" in edit:
        document, write = _document(path)
        write(changed_document(document, edit))
    elif "tensor" in edit:
        _replace_tensor(path, edit)
    elif "bytes" in edit:
        start, length, given = edit["bytes"]
        data = path.read_bytes()
        path.write_bytes(data[:start] + bytes.fromhex(given) + data[start + length :])
    elif "size" in edit:
        os.truncate(path, edit["size"])
    elif "names" in edit:
        _add_files(folder, path, edit["names"])
    elif "copy_of" in edit:
        path.write_bytes((folder / edit["copy_of"]).read_bytes())
    else:
        path.unlink()
        if "link" in edit:
            path.symlink_to(edit["link"])


def _add_files(folder: Path, path: Path, count: int) -> None:
    """Add files whose names start with that of a file; if it is the manifest, it lists them, but only some exist."""
    added = [f"{path.stem}-rank-{number:05}{path.suffix}" for number in range(1, count + 1)]
    if path.name != "manifest.json":
        for name in added:
            (folder / name).write_bytes(b"{}")
        return
    document, write = _document(path)
    files = document["files"]
    write({**document, "files": {**files, **dict.fromkeys(added, next(iter(files.values())))}})


def changed_document(document: Any, edit: Edit) -> Any:
    """Return a JSON-like value, which may be changed in place, with one edit."""
    *way, last = edit["at"] or [None]
    if last is None:
        return _expanded(edit["set"])
    inner = document
    for key in way:
        inner = inner[key]
    if "remove" in edit:
        del inner[last]
    elif "rename" in edit:
        inner[edit["rename"]] = inner.pop(last)
    elif isinstance(inner, list) and last == len(inner):
        inner.append(_expanded(edit["set"]))
    else:
        inner[last] = _expanded(edit["set"])
    return document


def _expanded(value: Any) -> Any:
    if isinstance(value, dict) and len(value) == 1:
        ((kind, count),) = value.items()
        if kind == "$deep":
            made: Any = []
            for _ in range(count):
                made = [made]
            return made
        if kind == "$groups":
            return [{"params": [f"x{number}"], "lr": 0.1} for number in range(count)]
        if kind == "$keys":
            return {f"key {number}": number for number in range(count)}
        if kind in ("$alike", "$pairs"):
            pairs = [[number * (2**61 - 1), 0] for number in range(1, count + 1)]
            return {"$items" if kind == "$alike" else "__pairs__": pairs}
        if kind in ("$long", "$many"):
            return "x" * count if kind == "$long" else [0] * count
    return value


def _document(path: Path) -> tuple[Any, Any]:
    """Return the JSON document in a file, or in the header of one, and a function that writes it back."""
    data = path.read_bytes()
    if path.suffix == ".safetensors":
        (length,) = struct.unpack("<Q", data[:8])

        def write_header(header: Any) -> None:
            encoded = json.dumps(header).encode()
            path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + data[8 + length :])

        return json.loads(data[8 : 8 + length]), write_header
    if path.suffix == ".jsonl":
        lines = [json.loads(line) for line in data.splitlines()]
        return lines, lambda made: path.write_text("".join(json.dumps(line) + "\n" for line in made))
    document = json.loads(data)
    if path.name == "manifest.json":
        from tests.resealing import write_manifest

        del document["digest"]
        return document, lambda made: write_manifest(path.parent, made)
    return document, lambda made: path.write_text(json.dumps(made))


def _replace_tensor(path: Path, edit: Edit) -> None:
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    further = {key: header.pop(key) for key in ("__metadata__",) if key in header}
    position, body = 0, b""
    for name, entry in sorted(header.items(), key=lambda each: each[1]["data_offsets"]):
        start, end = entry["data_offsets"]
        piece = data[8 + length + start : 8 + length + end]
        if name == edit["tensor"]:
            entry |= {"shape": edit["shape"], "dtype": edit["dtype"]}
            piece = _filled(prod(edit["shape"]), edit["dtype"], edit["fill"])
        entry["data_offsets"] = [position, position + len(piece)]
        position += len(piece)
        body += piece
    encoded = json.dumps({**further, **header}).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + body)


def _filled(count: int, dtype: str, fill: str) -> bytes:
    size = SIZES[dtype]
    kinds = {"F64": "<d", "F32": "<f", "F16": "<e"}
    numbers = {"zeros": 0.0, "ones": 1.0, "nan": float("nan"), "inf": float("inf"), "minus": -1.0, "huge": 6e4}
    if fill in numbers and dtype in kinds:
        return struct.pack(kinds[dtype], numbers[fill]) * count
    return Random(count).randbytes(size * count) if fill == "noise" else bytes([255 * (fill != "zeros")]) * size * count


# Choosing


def random_edits(folder: Path, random: Random) -> list[Edit]:
    """Return one to a few random edits of the files in a folder."""
    files = sorted(path.name for path in folder.iterdir() if path.is_file())
    return [_random_edit(folder, random.choice(files), random) for _ in range(random.choice((1, 1, 1, 1, 2, 3)))]


def _random_edit(folder: Path, file: str, random: Random) -> Edit:
    path, chance = folder / file, random.random()
    size = path.stat().st_size
    if chance < 0.03:
        return {"file": file, **random.choice([{"missing": True}, {"link": "/etc/hostname"}, {"link": "other"}])}
    if chance < 0.05:
        others = sorted(each.name for each in folder.iterdir() if each.is_file())
        return {"file": file, "copy_of": random.choice(others)}
    if chance < 0.06:
        return {"file": random.choice((file, "manifest.json")), "names": random.choice((1, 100, 2000))}
    if chance < 0.09:
        size = random.choice((0, 1, random.randrange(size + 1), size + 1, size + 4096))
        return {
            "file": file,
            **random.choice([{"size": size}, {"size": size, "late": True}, {"size": 1 << 36, "late": True}]),
        }
    is_document = path.suffix in (".json", ".jsonl", ".safetensors")
    if chance < 0.18 or not is_document:
        return _random_bytes(file, size, random)
    if path.suffix == ".safetensors" and chance < 0.75:
        return _random_tensor(path, random)
    document, _ = _document(path)
    return {"file": file, **random_change(document, random)}


def _random_bytes(file: str, size: int, random: Random) -> Edit:
    start = random.randrange(size + 1)
    given = random.choice((b"", b"\x00", b"\xff" * 4, b"{", b'"', random.randbytes(random.choice((1, 2, 8, 64)))))
    return {"file": file, "bytes": [start, random.choice((0, 1, 1, 2, 4, 8, 100)), given.hex()]}


def _random_tensor(path: Path, random: Random) -> Edit:
    header, _ = _document(path)
    name = random.choice(sorted(header.keys() - {"__metadata__"}))
    shape, dtype = list(header[name]["shape"]), header[name]["dtype"]
    kind = random.randrange(4)
    if kind == 0:
        shape = random.choice(
            ([], [0], [1], [2], shape[::-1], [*shape, 1], [1, *shape], shape[:-1], [prod(shape)], [1] * len(shape),
             [0] * len(shape), [*shape[:-1], 2], [1] * 65, [100, 100])
        )  # fmt: skip
    elif kind == 1:
        dtype = random.choice(sorted(SIZES))
    return {"file": path.name, "tensor": name, "shape": shape, "dtype": dtype, "fill": random.choice(FILLS)}


def random_change(document: Any, random: Random) -> Edit:
    """Return an edit, without a file, of a random value in a JSON-like document."""
    paths = list(_paths(document, random))
    at = random.choice(paths)
    last = at[-1] if at else None
    chance = random.random()
    if isinstance(last, str) and chance < 0.15:
        return {"at": at, "remove": True}
    if isinstance(last, int) and chance < 0.1:
        return {"at": at, "remove": True}
    if isinstance(last, str) and chance < 0.2:
        return {"at": at, "rename": random.choice(TEXTS)}
    if chance < 0.3:
        return {"at": [*at[:-1], random.choice(TEXTS)] if isinstance(last, str) else at, "set": random.choice(OBJECTS)}
    value = document
    for key in at:
        value = value[key]
    return {"at": at, "set": _hostile(value, random)}


def _paths(document: Any, random: Random) -> Iterator[list[str | int]]:
    """Yield the paths on a few random ways down a document, so that long lists do not outweigh everything else."""
    for _ in range(3):
        at: list[str | int] = []
        value = document
        while isinstance(value, dict | list) and value and random.random() < 0.93:
            key = random.choice(sorted(value)) if isinstance(value, dict) else random.randrange(len(value))
            at = [*at, key]
            value = value[key]
        yield at


def _hostile(value: Any, random: Random) -> Any:
    """Return a value in place of another, mostly of the same type."""
    chance = random.random()
    if chance < 0.5 and type(value) in (int, float):
        return random.choice((*NUMBERS, value + 1, value - 1, value * 2, -value))
    if chance < 0.5 and isinstance(value, str):
        return random.choice((*TEXTS, value + "x", value[:-1], value * 2))
    if chance < 0.5 and isinstance(value, list) and value:
        return random.choice((value[:-1], value[1:], value * 2, value[::-1], [value], value[0]))
    return random.choice(random.choice((NUMBERS, TEXTS, OBJECTS)))
