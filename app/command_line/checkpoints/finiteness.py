"""Weights that are not finite, in checkpoints whose files are what was written."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hexloop.app.wiring.checkpoint_files import CheckpointFiles
from hexloop.domain.checkpoints.reading import read_manifest
from hexloop.domain.errors import CheckpointError, StorageError
from hexloop.ports.state import Part
from hexloop.ports.storage import Storage

EXPONENTS = {
    "F64": ("<u8", 0x7FF0000000000000),
    "F32": ("<u4", 0x7F800000),
    "F16": ("<u2", 0x7C00),
    "BF16": ("<u2", 0x7F80),
}
"""The bits of a number's exponent, all of which are set in NaN and infinity, and the integer with as many bits."""

CHUNK = 1 << 22
"""How many numbers are looked at at a time."""

MOST_NAMED = 3
"""How many tensors are named."""


def finding_of(storage: Storage, name: str) -> str:
    """Return a sentence about the weights of a checkpoint that are NaN or infinite; "" if there are none.

    The checkpoint was verified just now. What cannot be read is left to the verification.
    """
    try:
        files = CheckpointFiles(storage, name, read_manifest(storage, name).files)
        parts = [part for path in files.tensor_files().get("model", ()) for part in files.tensors(path)]
        found = {part.name: count for part in parts if (count := _not_finite(part))}
    except (CheckpointError, StorageError):
        return ""
    if not found:
        return ""
    names = ", ".join(list(found)[:MOST_NAMED]) + (", ..." if len(found) > MOST_NAMED else "")
    return (
        f"its files are intact, but {sum(found.values()):,} of its weights are not finite, in {len(found)} of "
        f"{len(parts)} tensors ({names}): a loss or gradient was not finite before it was saved; resume from an "
        "earlier checkpoint"
    )


def _not_finite(part: Part) -> int:
    """Return how many numbers of a tensor are NaN or infinite."""
    if part.dtype not in EXPONENTS:
        return 0
    kind, exponent = EXPONENTS[part.dtype]
    mask = np.array(exponent, dtype=kind)
    return sum(int(np.count_nonzero(chunk & mask == mask)) for chunk in _chunks(part, kind))


def _chunks(part: Part, kind: str) -> Iterator[np.ndarray[tuple[int], np.dtype[np.unsignedinteger]]]:
    for begin in range(0, part.length, CHUNK):
        yield np.frombuffer(part.run(begin, min(CHUNK, part.length - begin)), dtype=kind)
