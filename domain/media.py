"""The media of a run: what a line of their index may hold, and which of them are kept under a limit on their size.

The index has one JSON object a line: the fields of `hexloop.ports.logger.Media`, the name of the `run`, and the `time`
in seconds since the epoch. The file is in the folder of the index, and named by a digest of what it holds. The content
of texts, tables and histograms is in their files only. A line replaces an earlier one of the same run, name, step and
index.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from attrs import asdict, fields, frozen

from hexloop.ports.logger import Entry, Fact, Media, MediaKind

KINDS: tuple[MediaKind, ...] = ("text", "table", "image", "histogram", "audio")

ENDINGS: Mapping[str, str] = {
    "text": "json", "table": "json", "image": "png", "histogram": "json", "audio": "wav",
}  # fmt: skip
"""How the names of files end."""

LONGEST_NAME = 200
"""Characters of a name."""

LONGEST_CAPTION = 1_000
"""Characters of a caption, and of the name of a run."""

LONGEST_TEXT = 100_000
"""Characters of a text."""

LONGEST_CELL = 2_000
"""Characters of a text in a table."""

MOST_COLUMNS, MOST_ROWS = 50, 500
"""The size of a table."""

MOST_BINS = 512
"""Bins of a histogram."""

MOST_TOGETHER = 100
"""Media that are logged together under a name."""

MOST_PIXELS = 1 << 24
"""Pixels of an image."""

LONGEST_LINE = 16 << 10
"""Bytes of a line of the index."""

LARGEST_DOCUMENT = 4 << 20
"""Bytes of the content of a text, a table or a histogram, as JSON."""

LARGEST_FILE = 64 << 20
"""Bytes of a file."""

LARGEST_STEP = 1 << 53
LARGEST_RATE = 1 << 20

_FILE = re.compile(r"[0-9a-f]{32}\.(json|png|wav)")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")

Key: TypeAlias = tuple[str, str, int, int]
"""The run, name, step and index of a medium."""


@frozen
class KeptMedia:
    """A medium as the index has it. time: in seconds since the epoch."""

    run: str
    time: float
    media: Media

    @property
    def key(self) -> Key:
        """What a later one with the same replaces."""
        return self.run, self.media.name, self.media.step, self.media.index


def media_entry(media: Media) -> Entry:
    """Return a medium as a JSON object."""
    return asdict(media, recurse=False)


def media_of(entry: Mapping[str, Any]) -> Media | None:
    """Return the medium that a JSON object describes; None if it is not one, as in a file that was changed by hand."""
    known = {each.name for each in fields(Media)}
    try:
        media = Media(**{name: value for name, value in entry.items() if name in known})
    except TypeError:
        return None
    return media if _is_sound(media) else None


def kept_entry(kept: KeptMedia) -> Entry:
    """Return a line of the index as a JSON object."""
    return {"run": kept.run, "time": kept.time, **media_entry(kept.media)}


def kept_of(entry: object) -> KeptMedia | None:
    """Return the medium that a line of the index describes; None if it is not one."""
    if not isinstance(entry, Mapping):
        return None
    media, run, time = media_of(entry), entry.get("run"), entry.get("time")
    if media is None or not is_line(run, LONGEST_CAPTION) or not _is_number(time):
        return None
    return KeptMedia(str(run), float(time or 0), media)


def newest(lines: Iterable[KeptMedia]) -> list[KeptMedia]:
    """Return what is valid of the lines of an index: of those with the same key the last, at its place."""
    found: dict[Key, KeptMedia] = {}
    for each in lines:
        found.pop(each.key, None)
        found[each.key] = each
    return list(found.values())


def kept_after_resume(lines: Iterable[KeptMedia], run: str, step: int) -> list[KeptMedia]:
    """Return what remains if a run resumes at a step: it logs what was later again."""
    return [each for each in lines if each.run != run or each.media.step <= step]


def within(lines: Sequence[KeptMedia], most: int, sizes: Mapping[Key, int]) -> list[KeptMedia]:
    """Return what to keep so that the sizes add up to at most `most` bytes.

    Of the run and name that take the most, steps are left out so that the rest is spread evenly over the run, with the
    first and the last; once all have two steps or fewer, the oldest is.
    """
    total, steps = sum(sizes[each.key] for each in lines), _by_step(lines, sizes)
    dropped = set[tuple[str, str, int]]()
    while total > most and steps:
        largest = max(steps, key=lambda each: (len(steps[each]) > 2, sum(steps[each].values())))
        known = steps[largest]
        staying = set(_spread(list(known)) if len(known) > 2 else list(known)[1:])
        for step in [each for each in known if each not in staying]:
            total -= known.pop(step)
            dropped.add((*largest, step))
        if not known:
            del steps[largest]
    return [each for each in lines if (each.run, each.media.name, each.media.step) not in dropped]


def _spread(steps: Sequence[int]) -> Iterator[int]:
    """Yield about three quarters of ascending steps, of few half, at even distances, with the first and the last."""
    count = max(len(steps) * 3 // 4 if len(steps) > 8 else len(steps) // 2, 2)
    distance = (steps[-1] - steps[0]) / (count - 1)
    kept = -math.inf
    for step in steps[:-1]:
        if step - kept >= distance and (kept == -math.inf or steps[-1] - step >= distance / 2):
            kept = step
            yield step
    yield steps[-1]


def _by_step(lines: Iterable[KeptMedia], sizes: Mapping[Key, int]) -> dict[tuple[str, str], dict[int, int]]:
    """Return the bytes of each step, by run and name; the steps in ascending order."""
    found: dict[tuple[str, str], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for each in sorted(lines, key=lambda line: line.media.step):
        found[each.run, each.media.name][each.media.step] += sizes[each.key]
    return dict(found)


def is_line(value: object, longest: int) -> bool:
    """Return whether a value is a text of one line, without control characters."""
    return isinstance(value, str) and len(value) <= longest and not _CONTROL.search(value)


def is_file_name(name: object, kind: str) -> bool:
    """Return whether a name is that of a file of media of a kind, and leads nowhere else."""
    return isinstance(name, str) and bool(_FILE.fullmatch(name)) and name.endswith(f".{ENDINGS.get(kind)}")


def _is_sound(media: Media) -> bool:
    counts = media.step, media.index, media.size
    return (
        is_line(media.name, LONGEST_NAME)
        and bool(media.name)
        and is_line(media.caption, LONGEST_CAPTION)
        and all(type(each) is int and 0 <= each < LARGEST_STEP for each in counts)
        and media.index < MOST_TOGETHER
        and _is_number(media.epoch)
        and media.kind in KINDS
        and isinstance(media.content, Mapping)
        and media.size <= LARGEST_FILE
        and is_file_name(media.file, media.kind)
        and (is_sound_content(media.kind, media.content) if ENDINGS[media.kind] != "json" else not media.content)
    )


def is_sound_content(kind: MediaKind, content: object) -> bool:
    """Return whether something is the content of a medium of a kind, within its bounds."""
    return isinstance(content, Mapping) and _CHECKS[kind](content)


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and abs(value) < LARGEST_STEP and math.isfinite(value)  # type: ignore[arg-type,operator]


def _counts_up_to(content: Mapping[str, Fact], **most: int) -> bool:
    return all(type(content.get(name)) is int and 0 < content[name] <= each for name, each in most.items())  # type: ignore[operator]


def _is_cell(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= LONGEST_CELL
    return value is None or isinstance(value, bool) or _is_number(value)


def _is_text(content: Mapping[str, Fact]) -> bool:
    text = content.get("text")
    return isinstance(text, str) and len(text) <= LONGEST_TEXT


def _is_table(content: Mapping[str, Fact]) -> bool:
    columns, rows = content.get("columns"), content.get("rows")
    if not isinstance(columns, list) or not isinstance(rows, list):
        return False
    names = len(columns) <= MOST_COLUMNS and all(is_line(each, LONGEST_NAME) for each in columns)
    return (
        names
        and len(rows) <= MOST_ROWS
        and all(isinstance(row, list) and len(row) == len(columns) and all(map(_is_cell, row)) for row in rows)
    )


def _is_image(content: Mapping[str, Fact]) -> bool:
    sized = _counts_up_to(content, width=MOST_PIXELS, height=MOST_PIXELS)
    return sized and content["width"] * content["height"] <= MOST_PIXELS  # type: ignore[operator]


def _is_histogram(content: Mapping[str, Fact]) -> bool:
    edges, counts = content.get("edges"), content.get("counts")
    if not isinstance(edges, list) or not isinstance(counts, list):
        return False
    fit = 0 < len(counts) <= MOST_BINS and len(edges) == len(counts) + 1
    numbers = fit and all(type(each) in (int, float) and math.isfinite(each) for each in edges)
    ascending = numbers and all(one < other for one, other in zip(edges, edges[1:], strict=False))
    return ascending and all(_is_number(each) and each >= 0 for each in counts)


def _is_audio(content: Mapping[str, Fact]) -> bool:
    seconds = content.get("seconds")
    return _counts_up_to(content, rate=LARGEST_RATE, channels=16) and _is_number(seconds) and seconds >= 0  # type: ignore[operator]


_CHECKS = {
    "text": _is_text,
    "table": _is_table,
    "image": _is_image,
    "histogram": _is_histogram,
    "audio": _is_audio,
}


def files_of(lines: Iterable[KeptMedia]) -> set[str]:
    """Return the names of the files that lines of an index refer to."""
    return {each.media.file for each in lines if each.media.file}
