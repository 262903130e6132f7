"""Spools in a local folder, and in memory."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from hexloop.domain.json_documents import read_json
from hexloop.domain.limits import limits
from hexloop.domain.regular_files import lines_of, open_lines, read_file
from hexloop.ports.spool import Entry

NUMBER = "number"
"""The member of a line with the number of its entry."""

SEGMENT = 1 << 20
"""Bytes of a file with entries, after which another one is begun."""

HELD = "held"
ENTRIES, FACTS, POSITION = "entries-", ".receiver.json", ".position"


class FileSpool:
    """Spool adapter that appends one JSON object per line to files in `folder`, which is made with the first entry.

    An entry is one system call, so that the death of the process loses none. Files whose entries all receivers have are
    removed; together they are at most the limit `spool_bytes`.
    on_close: is called once at the end, for a lock.
    """

    def __init__(self, folder: str | os.PathLike[str], on_close: Callable[[], None] = lambda: None) -> None:
        self._folder, self._on_close = Path(folder), on_close
        self._lock = threading.RLock()
        self._file: int | None = None
        self._size = 0
        self._positions: dict[str, int] = {}
        self._position_files: dict[str, int] = {}
        self._segments = self._find_segments()
        self._is_closed = False

    def append(self, number: int, entry: Entry) -> bool:
        """Append a line; see `Spool.append`. Raises OSError."""
        line = json.dumps({NUMBER: number, **entry}).encode() + b"\n"
        with self._lock:
            if self._file is None or self._size >= SEGMENT:
                if self._bytes() + len(line) > limits().spool_bytes:
                    return False
                self._begin(number)
            assert self._file is not None
            self._size += len(line)
            while line:
                line = line[os.write(self._file, line) :]
        return True

    def read(self, after: int, most: int) -> Sequence[tuple[int, Entry]]:
        """Read the files from that with the entry after `after` on; incomplete lines are skipped."""
        found: list[tuple[int, Entry]] = []
        with self._lock:
            segments = list(self._segments)
        later = [path for path, following in pairwise(segments) if _first(following) > after + 1]
        for path in [*later, *segments[-1:]]:
            for number, entry in _entries(path):
                if number > after:
                    found.append((number, entry))
                    if len(found) == most:
                        return found
        return found

    def keep(self, wanted: Callable[[Entry], bool]) -> int:
        """Rewrite the files that have other entries."""
        last = max((self.position(name) for name in self.receivers()), default=0)
        with self._lock:
            for path in self._segments:
                entries = list(_entries(path))
                kept = [(number, entry) for number, entry in entries if wanted(entry)]
                last = max([last, *(number for number, _ in entries)])
                if len(kept) < len(entries):
                    lines = (json.dumps({NUMBER: number, **entry}).encode() + b"\n" for number, entry in kept)
                    _replace(path, b"".join(lines))
        return last

    def position(self, receiver: str) -> int:
        """Read the file of the position."""
        with self._lock:
            if receiver not in self._positions:
                text = _text(self._folder / f"{receiver}{POSITION}")
                self._positions[receiver] = int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else 0
            return self._positions[receiver]

    def move(self, receiver: str, number: int) -> None:
        """Write the file of the position, and remove files with entries that all receivers have. Raises OSError."""
        with self._lock:
            if self._is_closed:
                return
            self._positions[receiver] = number
            if receiver not in self._position_files:
                path = self._folder / f"{receiver}{POSITION}"
                self._folder.mkdir(parents=True, exist_ok=True)
                self._position_files[receiver] = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
            # Always 20 digits, so that no reader sees a part of a larger number.
            os.pwrite(self._position_files[receiver], b"%020d" % number, 0)
            if len(self._segments) > 1:
                done = min((self.position(name) for name in self.receivers()), default=0)
                while len(self._segments) > 1 and _first(self._segments[1]) <= done + 1:
                    self._segments.pop(0).unlink(missing_ok=True)

    def facts(self, receiver: str) -> Entry | None:
        """Read the file of a receiver; None if it is damaged."""
        try:
            facts = read_json(read_file(self._folder / f"{receiver}{FACTS}"))
        except (OSError, ValueError):
            return None
        return facts if isinstance(facts, dict) else None

    def describe(self, receiver: str, facts: Entry) -> None:
        """Replace the file of a receiver. Raises OSError."""
        with self._lock:
            if self._is_closed:
                return
            self._folder.mkdir(parents=True, exist_ok=True)
            _replace(self._folder / f"{receiver}{FACTS}", json.dumps(facts, default=str).encode())

    def receivers(self) -> Sequence[str]:
        """List the files of receivers."""
        return sorted(path.name.removesuffix(FACTS) for path in self._listed() if path.name.endswith(FACTS))

    def hold(self, name: str, files: Iterable[tuple[str, str]]) -> str:
        """Make hard links, or copies where the file system has none. Raises OSError."""
        (self._folder / HELD).mkdir(parents=True, exist_ok=True)
        kept = Path(tempfile.mkdtemp(prefix="model-", dir=self._folder / HELD)).name
        folder = self._folder / HELD / kept / name
        folder.mkdir()
        try:
            for path, source in files:
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                try:
                    os.link(source, target)
                except OSError:
                    shutil.copyfile(source, target)
        except OSError:
            self.release(f"{kept}/{name}")
            raise
        return f"{kept}/{name}"

    def location(self, folder: str) -> str | None:
        """Return the path, if the name is one of `hold` and leads nowhere else."""
        kept, _, name = folder.partition("/")
        path = self._folder / HELD / kept / name
        sound = kept.startswith("model-") and name and not set("/\\\0") & set(name) and name not in (".", "..")
        return str(path.resolve()) if sound and path.is_dir() and not path.is_symlink() else None

    def release(self, folder: str) -> None:
        """Remove the folder, if it is one of this spool."""
        if self.location(folder) is not None:
            shutil.rmtree(self._folder / HELD / folder.partition("/")[0], ignore_errors=True)

    def close(self, remove: bool) -> None:
        """Close the files, and remove the folder if `remove`. A logger that moves on later leaves no trace of it."""
        with self._lock:
            for file in [*self._position_files.values(), *([] if self._file is None else [self._file])]:
                os.close(file)
            self._file, self._is_closed = None, True
            self._position_files.clear()
            if remove:
                shutil.rmtree(self._folder, ignore_errors=True)
            self._on_close()

    def _begin(self, number: int) -> None:
        """Open a file for the entries from this one on."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{ENTRIES}{number:020}.jsonl"
        self._file = open_lines(path, 0o600)
        self._segments.append(path)
        self._size = 0

    def _find_segments(self) -> list[Path]:
        found = [path for path in self._listed() if path.name.startswith(ENTRIES) and path.suffix == ".jsonl"]
        return sorted(path for path in found if path.stem.removeprefix(ENTRIES).isdigit())

    def _listed(self) -> list[Path]:
        with suppress(FileNotFoundError, NotADirectoryError):
            return list(self._folder.iterdir())
        return []

    def _bytes(self) -> int:
        return sum(path.stat().st_size for path in self._segments if path.exists())


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


def _first(path: Path) -> int:
    """Return the number of the first entry that a file was begun with."""
    return int(path.stem.removeprefix(ENTRIES))


def _entries(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the entries of a file with their numbers, without lines that are incomplete or damaged."""
    with suppress(OSError):
        for line in lines_of(path):
            try:
                entry = read_json(line, finite=False)
            except ValueError:
                continue
            if isinstance(entry, dict) and type(number := entry.pop(NUMBER, None)) is int:
                yield number, entry


def _text(path: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return read_file(path).decode()
    return ""


def _replace(path: Path, data: bytes) -> None:
    """Replace a file completely or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
    partial.replace(path)
