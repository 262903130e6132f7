"""The lines of a run's journal and logs on pages: the last ones first, a part at a time, as text."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from urllib.parse import urlencode

from attrs import evolve, frozen

from hexloop.app.pages.history import number_of
from hexloop.app.pages.page import PageContent, Section
from hexloop.app.pages.sections import moment
from hexloop.app.pages.templates import section
from hexloop.domain.folders import open_in_run
from hexloop.domain.run_folder import JOURNAL, LOG, own_file

TEXTS = re.compile(r"[^.].*\.(?:log|out|err)")
"""Names of files with the output of a program, as schedulers and shells write them."""

MOST_ENTRIES = 10_000
"""How many names of a folder are looked at."""

MOST_TEXTS = 20
"""How many files besides the journal and the log are offered."""

PART = 256 << 10
"""Bytes of a file that are read for a page of lines."""

MOST_LINES = 200
"""Lines on a page."""

LAST_LINES = 15
"""Lines on the page of a run."""

LONGEST_LINE = 1_000
"""Characters of a line that are shown."""


@frozen
class LinesPart:
    """Consecutive lines of a file, and the bytes of it that they are."""

    lines: list[str]
    start: int
    end: int
    size: int


def files_with_lines(folder: Path) -> list[str]:
    """Return the names of the files in a folder whose lines can be read: the journal, the log, and output of programs.

    Raises OSError.
    """
    with os.scandir(folder) as entries:
        names = [entry.name for entry in islice(entries, MOST_ENTRIES) if entry.is_file(follow_symlinks=False)]
    texts = sorted(name for name in names if TEXTS.fullmatch(name))[:MOST_TEXTS]
    journal = own_file(folder, JOURNAL)
    journals = [str(journal.relative_to(folder))] * journal.is_file()
    return [*journals, *(name for name in [LOG] if name in names), *texts]


def last_lines(path: Path, end: int | None = None, most: int = MOST_LINES) -> LinesPart:
    """Return the last lines that end before the byte `end` of a file, by default at its end.

    A line that is longer than what is read at once is given in pieces. Raises OSError.
    """
    descriptor = open_in_run(path)
    try:
        size = os.fstat(descriptor).st_size
        end = size if end is None else min(max(end, 0), size)
        start = max(end - PART, 0)
        os.lseek(descriptor, start, os.SEEK_SET)
        data = os.read(descriptor, end - start)
    finally:
        os.close(descriptor)
    if start > 0 and b"\n" in data[:-1]:  # the first line has lost its start
        cut = data.index(b"\n") + 1
        start, data = start + cut, data[cut:]
    lines = data.splitlines(keepends=True)
    start += sum(map(len, lines[:-most]))
    return LinesPart([_readable(line) for line in lines[-most:]], start, start + sum(map(len, lines[-most:])), size)


def with_last_lines(content: PageContent, folder: str, path: Path) -> PageContent:
    """Return what the page of one run shows, with the last lines of its journal or log as another section."""
    try:
        names = files_with_lines(path)
        part = last_lines(path / names[0], most=LAST_LINES) if names else None
    except OSError:
        return content
    if part is None:
        return content
    links = [(name, f"lines?{_query(folder, name)}") for name in names]
    lines = Section("lines", "Lines", section("last_lines", lines_shown=part.lines, files=links))
    *others, last = content.sections
    return evolve(content, sections=[*others, lines, last])


def lines_content(folder: str, name: str, part: LinesPart) -> PageContent:
    """Return a page of the lines of a file, with links to earlier and later ones."""
    links = []
    if part.start > 0:
        links.append(("Earlier lines", f"lines?{_query(folder, name, part.start)}", "prev"))
    if part.end < part.size:
        later = min(part.end + PART // 4, part.size)
        links.append(("Later lines", f"lines?{_query(folder, name, later)}", "next"))
        links.append(("Last lines", f"lines?{_query(folder, name)}", ""))
    where = f"Bytes {part.start:,} to {part.end:,} of {part.size:,}. Times are in UTC."
    shown = section("lines_of_file", lines_shown=part.lines, links=links, where=where)
    return PageContent(f"{name} of {folder}", [Section("lines", "Lines", shown)], {"runs": [], "charts": []})


def _query(folder: str, name: str, before: int | None = None) -> str:
    given = [("run", folder), ("file", name)]
    return urlencode(given if before is None else [*given, ("before", str(before))], errors="replace")


def _readable(line: bytes) -> str:
    """Return a line as text; a note of a journal or log with its time, its kind, and then its facts."""
    text = line.decode(errors="replace").rstrip("\r\n")
    note: object = None
    if text.startswith("{") and len(text) < PART:
        try:
            note = json.loads(text)
        except (ValueError, RecursionError):
            note = None
    if isinstance(note, Mapping):
        time, kind = number_of(note.get("time")), note.get("kind", note.get("event", ""))
        facts = (f"{name}={json.dumps(value)}" for name, value in note.items() if name not in ("time", "kind", "event"))
        text = " ".join(filter(None, ["" if time is None else moment(time), str(kind), *facts]))
    return text if len(text) <= LONGEST_LINE else f"{text[:LONGEST_LINE]}... ({len(text):,} characters)"
