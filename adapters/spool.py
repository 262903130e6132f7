"""Spools in a local folder, and in memory."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

from hexloop.domain.folders import Folder, is_private
from hexloop.domain.json_documents import read_json
from hexloop.domain.limits import limits
from hexloop.ports.logger import Entry

NUMBER = "number"
"""The member of a line with the number of its entry."""

SEGMENT = 1 << 20
"""Bytes of a file with entries, after which another one is begun."""

HELD = "held"
ENTRIES, FACTS, POSITION = "entries-", ".receiver.json", ".position"

LARGEST_NUMBER = 10**18
"""A number beyond it is not one of an entry: it leaves no room for further ones."""

MOST_RECEIVERS = 50
"""How many receivers are looked at."""

BATCH = 1 << 20
"""Bytes of lines that are read at once."""

MARKS = 100
"""How many places are remembered from which reading continues."""

QUICK = 4096
"""Bytes of a line that holds too little to need the checks of a document."""

_SEGMENT_NAME = re.compile(rf"{ENTRIES}([0-9]{{20}})\.jsonl")
_RECEIVER_NAME = re.compile(rf"([A-Za-z0-9_-][A-Za-z0-9_.-]{{0,119}}){re.escape(FACTS)}")
_HELD_NAME = re.compile(r"(model-[A-Za-z0-9_]{1,40})/[A-Za-z0-9_-][A-Za-z0-9_.-]{0,254}")

logger = logging.getLogger("hexloop.outbox")


class FileSpool:
    """Spool adapter that appends one JSON object per line to files in `folder`, which is made with the first entry.

    An entry is one system call, so that the death of the process loses none. Files whose entries all receivers have are
    removed; together they are at most the limit `spool_bytes`, and an entry at most `entry_bytes`.
    on_close: is called once at the end, for a lock.

    Other users may have written to the folder. What is not as this class writes it is left out, with a warning in the
    log `hexloop.outbox` that names it; links are not followed. Raises OSError if the folder is behind a link.
    """

    def __init__(self, folder: Folder | str | os.PathLike[str], on_close: Callable[[], None] = lambda: None) -> None:
        self._folder = folder if isinstance(folder, Folder) else Folder(*os.path.split(os.path.abspath(folder)))
        self._on_close = on_close
        self._lock = threading.RLock()
        self._file: int | None = None
        self._size = 0
        self._positions: dict[str, int] = {}
        self._position_files: dict[str, int] = {}
        self._marks: dict[int, tuple[str, int]] = {}
        self._own_models: set[str] = set()
        self._reported: set[str] = set()
        self._segments = self._find_segments()
        self._is_closed = False

    def append(self, number: int, entry: Entry) -> bool:
        """Append a line; see `Spool.append`. Raises OSError."""
        line = json.dumps({NUMBER: number, **entry}).encode() + b"\n"
        if len(line) > limits().entry_bytes:
            return False
        with self._lock:
            if self._file is None or self._size >= SEGMENT:
                if sum(self._sizes().values()) + len(line) > limits().spool_bytes:
                    return False
                self._begin(number)
            assert self._file is not None
            self._size += len(line)
            while line:
                line = line[os.write(self._file, line) :]
        return True

    def read(self, after: int, most: int) -> Sequence[tuple[int, Entry]]:
        """Read the files from that with the entry after `after` on, at most about a MiB; damaged lines are skipped."""
        with self._lock:
            segments = list(self._segments)
            mark = max((number for number in self._marks if number <= after), default=None)
            place = None if mark is None else self._marks[mark]
        later = [name for name, following in pairwise(segments) if _first(following) > after + 1]
        found: list[tuple[int, Entry]] = []
        taken = 0
        for name in [*later, *segments[-1:]]:
            start = place[1] if place is not None and place[0] == name else 0
            for number, entry, end in self._entries(name, start):
                if number <= after:
                    continue
                found.append((number, entry))
                taken += end - start
                start = end
                if len(found) == most or taken >= BATCH:
                    self._mark(number, name, end)
                    return found
        return found

    def keep(self, wanted: Callable[[Entry], bool]) -> int:
        """Rewrite the files that have other entries."""
        last = max((self.position(name) for name in self.receivers()), default=0)
        with self._lock:
            self._marks.clear()
            for name in self._segments:
                entries = [(number, entry) for number, entry, _ in self._entries(name)]
                kept = [(number, entry) for number, entry in entries if wanted(entry)]
                last = max([last, *(number for number, _ in entries)])
                if len(kept) < len(entries):
                    lines = (json.dumps({NUMBER: number, **entry}).encode() + b"\n" for number, entry in kept)
                    self._folder.replace(name, b"".join(lines), 0o600)
        return last

    def position(self, receiver: str) -> int:
        """Read the file of the position."""
        with self._lock:
            if receiver not in self._positions:
                text = self._read(f"{receiver}{POSITION}", 20)
                self._positions[receiver] = int(text) if text.isascii() and text.isdigit() else 0
            return self._positions[receiver]

    def move(self, receiver: str, number: int) -> None:
        """Write the file of the position, and remove files with entries that all receivers have. Raises OSError."""
        with self._lock:
            if self._is_closed:
                return
            self._positions[receiver] = number
            # Always 20 digits, so that no reader sees a part of a larger number.
            os.pwrite(self._position_file(receiver), b"%020d" % number, 0)
            if len(self._segments) > 1:
                done = min((self.position(name) for name in self.receivers()), default=0)
                while len(self._segments) > 1 and _first(self._segments[1]) <= done + 1:
                    self._folder.remove(self._segments.pop(0))

    def facts(self, receiver: str) -> Entry | None:
        """Read the file of a receiver; None if it is damaged."""
        try:
            facts = read_json(self._read(f"{receiver}{FACTS}", limits().entry_bytes).encode())
        except ValueError:
            return None
        return facts if isinstance(facts, dict) else None

    def describe(self, receiver: str, facts: Entry) -> None:
        """Replace the file of a receiver. Raises OSError."""
        with self._lock:
            if not self._is_closed:
                self._folder.replace(f"{receiver}{FACTS}", json.dumps(facts, default=str).encode(), 0o600)

    def receivers(self) -> Sequence[str]:
        """List the files of receivers."""
        found = [match[1] for each in self._folder.entries() if (match := _RECEIVER_NAME.fullmatch(each.name))]
        if len(found) > MOST_RECEIVERS:
            self._report("", f"it describes more than {MOST_RECEIVERS} loggers, and further ones are left out")
        return found[:MOST_RECEIVERS]

    def hold(self, name: str, files: Iterable[tuple[str, str]]) -> str:
        """Make hard links, or copies where the file system has none. Raises OSError."""
        kept = f"model-{secrets.token_hex(8)}"
        self._folder.make(f"{HELD}/{kept}/{name}", 0o700)
        self._own_models.add(kept)
        try:
            for path, source in files:
                self._folder.link(source, f"{HELD}/{kept}/{name}/{path}")
        except OSError:
            self.release(f"{kept}/{name}")
            raise
        return f"{kept}/{name}"

    def location(self, folder: str) -> str | None:
        """Return the path, if the name is one of `hold`.

        A folder that another process made is handed out only if it belongs to this user, no other one can write to it,
        and it has only regular files: a logger's library would follow links.
        """
        match = _HELD_NAME.fullmatch(folder)
        if match is None:
            return None
        path = f"{HELD}/{folder}"
        try:
            if match[1] not in self._own_models:
                if not is_private(self._folder.status(path)):
                    raise PermissionError(errno.EPERM, "another user made it, or can write to it")
                for _ in self._folder.files(path):
                    pass
            return self._folder.location(path) if self._folder.exists(path) else None
        except FileNotFoundError:
            return None
        except OSError as error:
            self._report(path, error.strerror or str(error))
            return None

    def release(self, folder: str) -> None:
        """Remove the folder, if it is one of this spool."""
        match = _HELD_NAME.fullmatch(folder)
        if match is not None and self._folder.exists(f"{HELD}/{folder}"):
            with suppress(OSError):
                self._folder.remove(f"{HELD}/{match[1]}")

    def close(self, remove: bool) -> None:
        """Close the files, and remove the folder if `remove`. A logger that moves on later leaves no trace of it."""
        with self._lock:
            for file in [*self._position_files.values(), *([] if self._file is None else [self._file])]:
                os.close(file)
            self._file, self._is_closed = None, True
            self._position_files.clear()
            if remove:
                with suppress(OSError):
                    self._folder.remove("")
            self._on_close()

    def size(self) -> int:
        """Return the bytes of all entries."""
        with self._lock:
            return sum(self._sizes().values())

    def _begin(self, number: int) -> None:
        """Open a file for the entries from this one on."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        name = f"{ENTRIES}{number:020}.jsonl"
        self._file = self._folder.open_lines(name, 0o600)
        if name not in self._segments:
            self._segments.append(name)
        self._size = 0

    def _position_file(self, receiver: str) -> int:
        """Return the open file of a position, which this process made: another name of any file is replaced."""
        if receiver not in self._position_files:
            name = f"{receiver}{POSITION}"
            self._folder.replace(name, b"", 0o600)
            self._position_files[receiver] = self._folder.open_own(name)
        return self._position_files[receiver]

    def _find_segments(self) -> list[str]:
        """Return the names of the files with entries, in order, as far as this class may have written them."""
        found, left = list[str](), limits().spool_bytes + SEGMENT + limits().entry_bytes
        for each in self._folder.entries():
            if not _SEGMENT_NAME.fullmatch(each.name) or each.size is None:
                continue
            left -= each.size
            if each.size > SEGMENT + limits().entry_bytes:
                self._report(each.name, f"it has {each.size:,} bytes, more than a file of entries ever gets")
                left += each.size
            elif left < 0:
                self._report(each.name, "the files before it hold as much as the limit spool_bytes allows")
                break
            else:
                found.append(each.name)
        return found

    def _sizes(self) -> dict[str, int]:
        known = set(self._segments)
        return {each.name: each.size or 0 for each in self._folder.entries() if each.name in known}

    def _entries(self, name: str, start: int = 0) -> Iterator[tuple[int, dict[str, Any], int]]:
        """Yield the entries of a file with their numbers and where they end; lines that are damaged are skipped."""
        end, before = start, 0
        try:
            for line in self._folder.lines(name, start, limits().entry_bytes):
                end += len(line) + 1
                entry = _entry_of(line)
                number = None if entry is None else entry.pop(NUMBER, None)
                if entry is not None and type(number) is int and before < number < LARGEST_NUMBER:
                    before = number
                    yield number, entry, end
        except FileNotFoundError:
            return
        except OSError as error:
            self._report(name, error.strerror or str(error))

    def _mark(self, number: int, name: str, end: int) -> None:
        """Remember where an entry ends, so that its file is not read again from its start."""
        with self._lock:
            self._marks[number] = name, end
            while len(self._marks) > MARKS:
                del self._marks[next(iter(self._marks))]

    def _read(self, name: str, most: int) -> str:
        """Return a small file; "" if there is none that can be used."""
        try:
            return self._folder.read(name, most).decode()
        except FileNotFoundError:
            return ""
        except (OSError, UnicodeDecodeError) as error:
            self._report(name, getattr(error, "strerror", None) or "it is not text")
            return ""

    def _report(self, name: str, problem: str) -> None:
        """Warn once that a file is left out."""
        place = self._folder.location(name)
        if place not in self._reported:
            self._reported.add(place)
            logger.warning("%s in the outbox is not used: %s.", place, problem)


class MemorySpool:
    """Spool adapter for runs without a folder that can be written to: it has room for nothing.

    Loggers in the background receive what fits into their memory. `described` holds the facts.
    """

    def __init__(self) -> None:
        self.described: dict[str, Entry] = {}
        self._positions: dict[str, int] = {}

    def append(self, number: int, entry: Entry) -> bool:
        """Return False."""
        return False

    def read(self, after: int, most: int) -> Sequence[tuple[int, Entry]]:
        """Return nothing."""
        return ()

    def keep(self, wanted: Callable[[Entry], bool]) -> int:
        """Return 0."""
        return 0

    def position(self, receiver: str) -> int:
        """Return the position in memory."""
        return self._positions.get(receiver, 0)

    def move(self, receiver: str, number: int) -> None:
        """Keep the position in memory."""
        self._positions[receiver] = number

    def facts(self, receiver: str) -> Entry | None:
        """Return the facts in memory."""
        return self.described.get(receiver)

    def describe(self, receiver: str, facts: Entry) -> None:
        """Keep the facts in memory."""
        self.described[receiver] = facts

    def receivers(self) -> Sequence[str]:
        """Return the names in `described`."""
        return sorted(self.described)

    def hold(self, name: str, files: Iterable[tuple[str, str]]) -> str:
        """Raise OSError."""
        raise OSError("there is no folder to keep models in")

    def location(self, folder: str) -> str | None:
        """Return None."""
        return None

    def release(self, folder: str) -> None:
        """No-op."""

    def close(self, remove: bool) -> None:
        """No-op."""


def _first(name: str) -> int:
    """Return the number of the first entry that a file was begun with."""
    match = _SEGMENT_NAME.fullmatch(name)
    assert match is not None
    return int(match[1])


def _entry_of(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object in a line; None if there is none. NaN and infinity are kept."""
    try:
        if len(line) <= QUICK and line.count(b"[") + line.count(b"{") < 50 and b"\\u" not in line:
            entry = json.loads(line)
        else:
            entry = read_json(line, finite=False)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None
