"""`hexloop checkpoints list`, `verify` and `show`: the checkpoints in a folder, their condition and contents."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from hexloop.app.assembly.checkpoint_files import CheckpointFiles
from hexloop.app.assembly.storage import joined, read_key
from hexloop.app.checkpoint_rows import CheckpointRow, format_bytes, metric_of, read_state, rows_of
from hexloop.app.command_line import ExitCode
from hexloop.app.command_line.checkpoints import (
    CheckpointLocation,
    is_checkpoint,
    open_checkpoints,
    open_folder,
    open_one,
    refuse_missing,
)
from hexloop.app.printing import print_document, print_lines
from hexloop.domain.checkpoints.manifest import Manifest, checkpoint_name
from hexloop.domain.checkpoints.reading import checkpoint_steps, read_manifest
from hexloop.domain.checkpoints.survey import CheckpointFolder, FolderStatus, examine, survey
from hexloop.domain.errors import CheckpointError, StorageError
from hexloop.domain.json_documents import finite_json
from hexloop.ports.state import Part
from hexloop.ports.storage import Signatures, Storage

COLUMNS = ("name", "step", "age", "size", "metric", "run", "state", "")
RIGHT_ALIGNED = (1, 2, 3)

STATE_FIELDS = (
    "step", "epoch", "position", "samples", "tokens", "updates", "learning_rate", "best_metric", "best_step",
    "best_checkpoint", "due", "seed", "data_seed",
)  # fmt: skip
"""The fields of the run state that are shown."""

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


def list_checkpoints(options: Namespace) -> ExitCode:
    """Print a table of the checkpoints in a folder. Return FAILED if one is bad."""
    storage = open_folder(options.folder)
    rows = rows_of(storage, list(survey(storage, options.quick)))
    if options.json:
        print_document({"folder": options.folder, "checkpoints": [row.document() for row in rows]})
    elif rows:
        print_lines(*_table(rows, time.time()))
    else:
        print_lines(f"There is no checkpoint in {options.folder}.")
    return ExitCode.FAILED if any(row.found.status is FolderStatus.BAD for row in rows) else ExitCode.DONE


def verify(options: Namespace) -> ExitCode:
    """Verify checkpoints and print the result of each. Return FAILED if one is bad or none, or none is good.

    A folder that a run is writing to may have unfinished ones, and those that were set aside: they are not counted as
    bad unless they are named. Weights that are not finite are a finding: the checkpoint is good, as it holds what was
    saved.
    """
    refuse_missing(options.paths)
    signatures = read_key(options.key, "--key")
    bad, count_of_good, findings, documents = 0, 0, 0, []
    for given in options.paths:
        for location, found, named, storage in _examined(given, signatures):
            good = found.status is FolderStatus.GOOD
            count_of_good += good
            bad += found.status in (FolderStatus.BAD, FolderStatus.NO_CHECKPOINT) or (named and not good)
            finding = finding_of(storage, found.name) if good else ""
            findings += bool(finding)
            documents.append({"checkpoint": location, "good": good, "reason": found.reason, "finding": finding})
            if not options.json:
                remark = finding or found.reason
                print_lines(f"{location}: {found.status.value}", *[f"  {remark}"] * (not good or bool(finding)))
    all_of = len(documents)
    if options.json:
        print_document({"checkpoints": documents, "bad": bad, "findings": findings})
    elif count_of_good == all_of:
        print_lines(f"Good: all {all_of}.")
    else:
        print_lines(f"Not good: {all_of - count_of_good} of {all_of}.")
    if findings and not options.json:
        print_lines(f"With weights that are not finite: {findings}.")
    return ExitCode.FAILED if bad or not count_of_good else ExitCode.DONE


def show(options: Namespace) -> ExitCode:
    """Print what a checkpoint contains: the one that is named, or the newest in a run's folder."""
    location = open_one(options.checkpoint)
    document = _document(location, read_manifest(location.storage, location.name), options.tensors)
    print_document(document) if options.json else print_lines(*_lines(document))
    return ExitCode.DONE


def _table(rows: Sequence[CheckpointRow], now: float) -> Iterator[str]:
    """Yield the lines of the table, with the reason below each checkpoint that is not good."""
    head, *lines = aligned([COLUMNS, *(row.cells(now) for row in rows)], right=RIGHT_ALIGNED)
    yield head
    for row, line in zip(rows, lines, strict=True):
        yield line
        if row.found.reason:
            yield f"  {row.found.reason}"


def _examined(given: str, signatures: Signatures | None) -> Iterator[tuple[str, CheckpointFolder, bool, Storage]]:
    """Yield the location of each checkpoint, its condition, whether it was named itself, and its storage.

    Raises CheckpointError for a folder without checkpoints.
    """
    if is_checkpoint(given):
        (location,) = open_checkpoints([given], signatures)
        yield given, examine(location.storage, location.name), True, location.storage
        return
    storage = open_folder(given, signatures)
    steps = sorted(checkpoint_steps(storage))
    if not steps:
        raise CheckpointError(f"You chose {given}, but it contains no checkpoint; name another folder or a checkpoint.")
    for name in map(checkpoint_name, steps):
        yield joined(given, name), examine(storage, name), False, storage


def _document(location: CheckpointLocation, manifest: Manifest, tensors: bool) -> dict[str, Any]:
    state = read_state(location.storage, location.name)
    document: dict[str, Any] = {
        "checkpoint": location.given,
        "run": manifest.run,
        "session": manifest.session,
        "ancestors": dict(manifest.ancestors),
        "parent": manifest.parent,
        "step": manifest.step,
        "processes": manifest.world_size,
        "environment": dict(manifest.environment),
        "state": None,
        "files": {path: {"size": each.size, "digest": each.digest} for path, each in sorted(manifest.files.items())},
    }
    if state is not None:
        values = {name: getattr(state, name) for name in STATE_FIELDS}
        metric = metric_of(state)
        document["state"] = finite_json(
            {**values, "log_entries": len(state.history), **dict([metric] if metric else [])}
        )
    if tensors:
        files = CheckpointFiles(location.storage, location.name, manifest.files)
        document["tensors"] = {
            path: [{"name": each.name, "dtype": each.dtype, "shape": list(each.shape)} for each in files.tensors(path)]
            for path in sorted(files.files)
            if path.endswith(".safetensors")
        }
    return document


def _lines(document: dict[str, Any]) -> list[str]:
    lines = list(aligned([(name, str(document[name])) for name in ("checkpoint", "run", "session", "parent", "step")]))
    for session, step in document["ancestors"].items():
        lines.append(f"resumed from session {session} at step {step:,}")
    lines += ["", "Written with", *_indented({"processes": document["processes"], **document["environment"]})]
    if document["state"] is None:
        lines += ["", "Run state: the checkpoint does not contain it, or it cannot be read"]
    else:
        lines += ["", "Run state", *_indented(document["state"])]
    files = [(path, format_bytes(each["size"]), each["digest"]) for path, each in document["files"].items()]
    total = sum(each["size"] for each in document["files"].values())
    lines += ["", f"Files, {format_bytes(total)} (not verified)", *(f"  {line}" for line in aligned(files, right=(1,)))]
    for path, tensors in document.get("tensors", {}).items():
        rows = [(each["name"], each["dtype"], str(each["shape"])) for each in tensors]
        lines += ["", f"Tensors of {path}", *(f"  {line}" for line in aligned(rows))]
    return lines


def _indented(values: dict[str, Any]) -> list[str]:
    return [f"  {line}" for line in aligned([(name, str(value)) for name, value in values.items()])]


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> Iterator[str]:
    """Yield the rows as lines with columns two spaces apart. Columns whose index is in `right` are right-aligned."""
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    for row in rows:
        cells = (
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=False))
        )
        yield "  ".join(cells).rstrip()


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
