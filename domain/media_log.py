"""Keeps the media of a live run: encodes them in a thread, writes them to the run's folder, and passes them on."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from attrs import evolve, field, frozen

from hexloop.domain.folders import Folder
from hexloop.domain.json_documents import read_json
from hexloop.domain.media import (
    ENDINGS,
    LARGEST_DOCUMENT,
    LARGEST_FILE,
    LONGEST_LINE,
    MOST_PIXELS,
    KeptMedia,
    Key,
    files_of,
    is_file_name,
    is_sound_content,
    kept_after_resume,
    kept_entry,
    kept_of,
    newest,
    within,
)
from hexloop.domain.regular_files import lines_in
from hexloop.domain.run_folder import MEDIA_INDEX
from hexloop.ports.logger import Fact, Media, MediaKind
from hexloop.ports.process import Clock

MOST_WAITING, WAITING_BYTES = 1_000, 256 << 20
"""How many media wait to be encoded, and how many bytes they may hold. Further ones are left out."""

MOST_INDEX_BYTES = 64 << 20
"""Bytes of an index that are read, the last ones."""

MOST_LINES = 50_000
"""Lines of an index. Once there are as many, steps in the middle are left out, as beyond the limit on the size."""

REDUCED = 0.75
"""The share of the limit that media take after some were left out, so that it does not happen for each new one."""

KIND_OF = {ending: kind for kind, ending in ENDINGS.items()}
"""A kind whose files have an ending."""

STARTS = {"image": b"\x89PNG\r\n\x1a\n", "audio": b"RIFF"}
"""The first bytes of files."""


@frozen
class Encoded:
    """A medium as it is kept: its content as plain values, and the bytes of its file; None for a JSON document."""

    content: Mapping[str, Fact]
    data: bytes | None = None


@frozen
class PendingMedia:
    """A medium that is not encoded yet. encode: does so, in another thread. size: bytes that it holds until then."""

    name: str
    step: int
    epoch: float
    kind: MediaKind
    encode: Callable[[], Encoded] = field(eq=False)
    index: int = 0
    caption: str = ""
    size: int = 0


class MediaLog:
    """Takes media from the loop, and works them off in a daemon thread.

    place: the folder of the index. limit: bytes that it may take. resumed_at: the step at which the run starts or
    resumes; what it logged later is dropped. pass_on: is called with each medium once its file is there. report: is
    called with a sentence for the first problem of each sort, from any thread.

    Nothing here raises in the loop, and the loop waits for nothing but a lock that is held for a few instructions.
    """

    def __init__(
        self,
        place: Folder,
        run: str,
        resumed_at: int,
        limit: int,
        clock: Clock,
        pass_on: Callable[[Media], None],
        report: Callable[[str], None],
    ) -> None:
        self._place, self._run, self._resumed_at, self._limit = place, run, resumed_at, limit
        self._clock, self._pass_on, self._report = clock, pass_on, report
        self._changed = threading.Condition()
        self._waiting: deque[PendingMedia] = deque()
        self._waiting_bytes = 0
        self._is_busy = self._closed = self._is_read = False
        self._reported = set[str]()
        self._lines: list[KeptMedia] = []
        self._files = set[str]()
        self._sizes: dict[Key, int] = {}
        self._total = 0
        self._file: int | None = None
        self._is_cut = False
        self._thread: threading.Thread | None = None

    def put(self, media: PendingMedia) -> None:
        """Add a medium, which is encoded later. It is left out if too much is waiting."""
        with self._changed:
            if self._closed:
                return
            full = len(self._waiting) >= MOST_WAITING or self._waiting_bytes + media.size > WAITING_BYTES
            if not full:
                self._waiting.append(media)
                self._waiting_bytes += media.size
                self._changed.notify_all()
                self._start()
        if full:
            self.tell("full", "Media are logged faster than they are written, and some are left out. Log fewer.")

    def start(self) -> None:
        """Drop what an earlier process of the run logged after the step at which it resumes, in the background."""
        with suppress(OSError):
            self._place.status(MEDIA_INDEX)
            with self._changed:
                self._start()

    def _start(self) -> None:
        """Start the thread, which a run without media does without."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="hexloop keeps media", daemon=True)
            self._thread.start()

    def close(self, seconds: float) -> None:
        """Work off what is waiting, for at most this time; report how much is left out."""
        ends_at = self._clock.monotonic() + seconds
        with self._changed:
            while (self._waiting or self._is_busy) and (left := ends_at - self._clock.monotonic()) > 0:
                self._changed.wait(min(left, 1.0))
            left_out, self._closed = len(self._waiting), True
            self._waiting.clear()
            self._changed.notify_all()
        if self._thread is not None and not self._is_busy:
            self._thread.join(1.0)
        self._pass_on = _drop  # it refers to the run
        if left_out:
            self.tell("late", f"{left_out:,} media were not written within {seconds:g} s, and are left out.")

    def tell(self, sort: str, sentence: str) -> None:
        """Report a problem, once for its sort."""
        with self._changed:
            is_new = sort not in self._reported
            self._reported.add(sort)
        if is_new:
            with suppress(Exception):
                self._report(sentence)

    def _work(self) -> None:
        try:
            try:
                self._ensure_read()
            except OSError as error:
                self._fail(error)
            while (media := self._next()) is not None:
                self._keep(media)
                with self._changed:
                    self._is_busy = False
                    self._changed.notify_all()
        finally:
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()
            if self._file is not None:
                os.close(self._file)

    def _next(self) -> PendingMedia | None:
        with self._changed:
            while not self._waiting:
                if self._closed:
                    return None
                self._changed.wait()
            media = self._waiting.popleft()
            self._waiting_bytes -= media.size
            self._is_busy = True
            return media

    def _keep(self, pending: PendingMedia) -> None:
        """Encode, write and pass on one medium."""
        name, kind = pending.name, pending.kind
        try:
            encoded = pending.encode()
            data = _document(encoded) if encoded.data is None else encoded.data
            most = LARGEST_DOCUMENT if encoded.data is None else LARGEST_FILE
            if len(data) > most:
                raise ValueError(f"it takes {len(data):,} bytes, and the most is {most:,}; log a smaller one")
        except Exception as error:
            self.tell(f"encode {name}", f"The {kind} {name!r} is left out: {error or type(error).__name__}.")
            return
        file = f"{hashlib.blake2b(data, digest_size=16).hexdigest()}.{ENDINGS[kind]}"
        content = {} if encoded.data is None else dict(encoded.content)
        media = Media(name, pending.step, pending.epoch, kind, content, pending.index, pending.caption, file, len(data))
        try:
            self._write(KeptMedia(self._run, round(self._clock.wall(), 3), media), data)
        except OSError as error:
            self._fail(error)
            return
        if self._closed:  # the run did not wait any longer
            return
        try:
            self._pass_on(media)
        except Exception as error:
            self.tell("pass on", f"Media cannot be passed to loggers ({type(error).__name__}: {error}).")

    def _fail(self, error: OSError) -> None:
        self.tell("write", f"Media cannot be kept in {self._place.location()} ({error}). The run continues.")

    def _write(self, kept: KeptMedia, data: bytes) -> None:
        """Write the file and its line in the index, and leave out others if there are too many. Raises OSError."""
        self._ensure_read()
        name = kept.media.file
        if name not in self._files or not self._is_there(name):
            self._place.replace(name, data)
        if self._file is None:
            self._file = self._place.open_lines(MEDIA_INDEX)
        line = b"\n" * self._is_cut + _line(kept)
        self._is_cut = True  # also if the disk is full
        if os.write(self._file, line) == len(line):
            self._is_cut = False
        self._lines.append(kept)
        self._files.add(name)
        self._sizes[kept.key] = kept.media.size + len(line)
        self._total += kept.media.size + len(line)
        if self._total > self._limit or len(self._lines) > MOST_LINES:
            self._reduce()

    def _is_there(self, name: str) -> bool:
        try:
            self._place.status(name)
        except OSError:
            return False
        return True

    def _ensure_read(self) -> None:
        """Read what earlier processes have left, once, and drop what is void. Raises OSError."""
        if self._is_read:
            return
        found: list[KeptMedia] = []
        with suppress(FileNotFoundError):
            found = list(lines_of_index(self._place))
        kept = kept_after_resume(newest(found), self._run, self._resumed_at)
        if len(kept) < len(found):
            self._replace(kept)
        else:
            self._take(kept)
        self._is_read = True
        self._remove_unused()  # a process that was killed may have left such files

    def _take(self, lines: list[KeptMedia]) -> None:
        self._lines, self._files = lines, files_of(lines)
        self._sizes = {each.key: each.media.size + len(_line(each)) for each in lines}
        self._total = sum(self._sizes.values())

    def _reduce(self) -> None:
        """Leave out steps in the middle until the rest takes a part of the limit."""
        lines = newest(self._lines)
        most = int(self._limit * REDUCED)
        if len(lines) > MOST_LINES:
            most = min(most, int(self._total * REDUCED))
        self._replace(within(lines, most, self._sizes))

    def _replace(self, lines: list[KeptMedia]) -> None:
        """Write the index again with these lines, then remove the files that no line refers to."""
        self._place.replace(MEDIA_INDEX, b"".join(map(_line, lines)))
        if self._file is not None:
            os.close(self._file)
            self._file = None
        self._is_cut = False
        before = self._files
        self._take(lines)
        for name in before - self._files:
            with suppress(OSError):
                self._place.remove(name)

    def _remove_unused(self) -> None:
        """Remove the files of media that no line refers to."""
        for each in self._place.entries(most=MOST_LINES):
            kind = KIND_OF.get(each.name.rpartition(".")[2])
            if kind is not None and is_file_name(each.name, kind) and each.name not in self._files:
                with suppress(OSError):
                    self._place.remove(each.name)


def _line(kept: KeptMedia) -> bytes:
    return json.dumps(kept_entry(kept), allow_nan=False).encode() + b"\n"


def _document(encoded: Encoded) -> bytes:
    return json.dumps(dict(encoded.content), allow_nan=False).encode()


def _drop(media: Media) -> None:
    """Pass nothing on: the run has ended."""


def lines_of_index(place: Folder) -> Iterator[KeptMedia]:
    """Yield the sound lines of the index in a folder, at most `MOST_LINES` and some more. Raises OSError."""
    descriptor = place.open(MEDIA_INDEX)
    try:
        start = max(os.fstat(descriptor).st_size - MOST_INDEX_BYTES, 0)
        lines = lines_in(descriptor, place.location(MEDIA_INDEX), start, MOST_INDEX_BYTES)
        for number, data in enumerate(lines):
            if number >= 2 * MOST_LINES:
                return
            if len(data) > LONGEST_LINE:
                continue
            try:
                kept = kept_of(read_json(data))
            except ValueError:
                continue
            if kept is not None:
                yield kept
    finally:
        os.close(descriptor)


def file_of(place: Folder, media: Media) -> bytes:
    """Return the bytes of the file of a medium. Raises OSError if there is none, or it is not of its kind."""
    most = LARGEST_DOCUMENT if ENDINGS[media.kind] == "json" else LARGEST_FILE
    data = place.read(media.file, most)
    if not data.startswith(STARTS.get(media.kind, b"{")) or (media.kind == "image" and not _is_sized(data)):
        raise OSError(f"{media.file} is not the file of {media.kind}")
    return data


def _is_sized(data: bytes) -> bool:
    """Return whether the header of a PNG has a size that an image may have, before anything unpacks it."""
    width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
    return data[12:16] == b"IHDR" and 0 < width * height <= MOST_PIXELS


def content_of(place: Folder, media: Media) -> Mapping[str, Any] | None:
    """Return the content of a medium; None if its file is missing, damaged or out of bounds."""
    if ENDINGS[media.kind] != "json":
        return media.content
    try:
        content = read_json(file_of(place, media))
    except (OSError, ValueError):
        return None
    return content if is_sound_content(media.kind, content) else None


def fetched(place: Folder, media: Media) -> Media | None:
    """Return a medium as a logger takes it, with its content and the path of its file; None if that is gone."""
    try:
        file_of(place, media)
    except OSError:
        return None
    content = content_of(place, media)
    return None if content is None else evolve(media, content=content, file=place.location(media.file))
