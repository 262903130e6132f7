"""What a run left in its folder to look at: pictures, metrics of splits, and texts such as predictions.

A run has no port for these: callbacks and scripts write files into `output_dir`, and a file's name says what it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from attrs import define, field

from hexloop.domain.json_documents import read_bytes, read_json, read_start
from hexloop.domain.regular_files import chunks_of, open_regular

MOST_FILES = 10_000
"""How many names of a folder are looked at."""

MOST_PICTURES = 12
PICTURE_BYTES = 4 << 20
"""A picture that is larger is not shown."""

MOST_TEXTS = 12
TEXT_BYTES = 256 << 10
TEXT_LINES = 20
"""How many lines of a text are shown."""

RESULT_BYTES = 1 << 20
MOST_METRICS = 200

PICTURES = {".png": (b"\x89PNG\r\n\x1a\n", "image/png"), ".jpg": (b"\xff\xd8\xff", "image/jpeg")}
PICTURES[".jpeg"] = PICTURES[".jpg"]
"""From the end of a name to the first bytes that the file must have, and its media type."""

METRICS = re.compile(r".*_results\.json")
"""The names of the files that `trainer.save_metrics` writes."""

TEXTS = re.compile(r".*(?:predict|generat|sample).*\.(?:txt|jsonl|csv|tsv|md)", re.IGNORECASE)
"""The names of files with predictions, generated text or samples."""


@define
class Results:
    """pictures: media type and bytes by name. metrics: values by file and name. texts: the first lines by name.

    remarks: sentences about files that are not shown.
    """

    pictures: dict[str, tuple[str, bytes]] = field(factory=dict)
    metrics: dict[str, dict[str, float | str]] = field(factory=dict)
    texts: dict[str, list[str]] = field(factory=dict)
    remarks: list[str] = field(factory=list)


def results_in(folder: str | os.PathLike[str]) -> Results:
    """Return the results in a folder itself. Links are not followed, and what cannot be read is named in a remark."""
    found = Results()
    for name in sorted(_names(folder)):
        path, end = Path(folder, name), os.path.splitext(name)[1].lower()
        try:
            if end in PICTURES:
                _add_picture(found, path, *PICTURES[end])
            elif METRICS.fullmatch(name):
                _add_metrics(found, path)
            elif TEXTS.fullmatch(name):
                _add_text(found, path)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            found.remarks.append(f"{name} is not shown: {reason}.")
    return found


def _names(folder: str | os.PathLike[str]) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            for entry in islice(entries, MOST_FILES):
                if not entry.name.startswith("."):
                    yield entry.name
    except OSError:
        return


def _add_picture(found: Results, path: Path, magic: bytes, media_type: str) -> None:
    if len(found.pictures) >= MOST_PICTURES:
        raise ValueError(f"it is not among the first {MOST_PICTURES} pictures")
    data = _data(path, PICTURE_BYTES)
    if not data.startswith(magic):
        raise ValueError(f"it is not a picture of the type {media_type}")
    found.pictures[path.name] = media_type, data


def _add_metrics(found: Results, path: Path) -> None:
    document: Any = read_json(_data(path, RESULT_BYTES), finite=False)
    if not isinstance(document, Mapping):
        raise ValueError("it is not a JSON object")
    kept = [(str(name), value) for name, value in document.items() if isinstance(value, int | float | str)]
    found.metrics[path.name] = dict(kept[:MOST_METRICS])


def _add_text(found: Results, path: Path) -> None:
    if len(found.texts) >= MOST_TEXTS:
        raise ValueError(f"it is not among the first {MOST_TEXTS} texts")
    descriptor = open_regular(path)
    try:
        size = os.fstat(descriptor).st_size
        start = read_start(chunks_of(descriptor), TEXT_BYTES)
    finally:
        os.close(descriptor)
    lines = start.decode(errors="replace").splitlines()
    found.texts[path.name] = lines[:TEXT_LINES]
    if len(lines) > TEXT_LINES or size > TEXT_BYTES:
        found.remarks.append(f"Only the first {TEXT_LINES} lines of {path.name} are shown.")


def _data(path: Path, limit: int) -> bytes:
    descriptor = open_regular(path)
    try:
        return read_bytes(chunks_of(descriptor), limit)
    finally:
        os.close(descriptor)
