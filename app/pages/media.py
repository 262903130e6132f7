"""The media that a run has logged, read as plain values within bounds."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence

from attrs import evolve, frozen

from hexloop.domain.folders import Folder
from hexloop.domain.json_documents import read_json
from hexloop.domain.media import LONGEST_LINE, KeptMedia, is_file_name, kept_of, newest
from hexloop.domain.regular_files import lines_in
from hexloop.domain.run_folder import MEDIA, MEDIA_INDEX

MOST_BYTES = 64 << 20
"""Bytes of an index that are read, the last ones."""

MOST_LINES = 20_000
"""Lines of an index that are read."""

MOST_NAMES = 100
"""Names of media that are shown."""

LARGEST_FILE = 64 << 20
"""Bytes of a file that is shown."""


@frozen
class LoggedMedia:
    """The media of a run, in the order in which they were logged. remarks: sentences about what could not be read."""

    entries: Sequence[KeptMedia] = ()
    remarks: Sequence[str] = ()


def media_in(folder: str | os.PathLike[str], run: str) -> LoggedMedia:
    """Return the media of a run. folder: its output folder on this machine. run: its name in the journal."""
    place, remarks = Folder(folder, MEDIA), list[str]()
    found = list[KeptMedia]()
    try:
        found += (each for each in lines_of_index(place) if each.run == run)
    except FileNotFoundError:
        return LoggedMedia()
    except OSError as error:
        remarks.append(f"{MEDIA_INDEX} cannot be read to its end: {error.strerror or error}.")
    found = newest(found)
    names = list(dict.fromkeys(each.media.name for each in found))
    if len(names) > MOST_NAMES:
        remarks.append(f"The media of {len(names) - MOST_NAMES:,} names are left out.")
        shown = set(names[:MOST_NAMES])
        found = [each for each in found if each.media.name in shown]
    return LoggedMedia(found, remarks)


def lines_of_index(place: Folder) -> Iterator[KeptMedia]:
    """Yield the lines of an index; those that are not sound are left out. place: its folder. Raises OSError."""
    descriptor = place.open(MEDIA_INDEX)
    try:
        start = max(os.fstat(descriptor).st_size - MOST_BYTES, 0)
        for number, data in enumerate(lines_in(descriptor, place.location(MEDIA_INDEX), start, MOST_BYTES)):
            if number >= MOST_LINES:
                raise OSError(errno.EFBIG, f"it has more than {MOST_LINES:,} lines")
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


def file_of(folder: str | os.PathLike[str], name: str, kind: str) -> bytes:
    """Return the bytes of the file of a medium.

    Raises OSError if there is none, or it is not a regular file, too large, or not of its kind.
    """
    if not is_file_name(name, kind):
        raise FileNotFoundError(errno.ENOENT, "it is not the name of a file of media", name)
    data = Folder(folder, MEDIA).read(name, LARGEST_FILE)
    if not data.startswith(_STARTS[kind]):
        raise OSError(errno.EINVAL, f"it is not {_WORDS[kind]}", name)
    return data


_STARTS = {"image": b"\x89PNG\r\n\x1a\n", "audio": b"RIFF"}
_WORDS = {"image": "an image in PNG", "audio": "audio in WAV"}


def without_missing(shown: LoggedMedia, folder: str | os.PathLike[str]) -> LoggedMedia:
    """Return the media whose files exist. A crash may leave a line without its file."""
    have = {each.name for each in Folder(folder, MEDIA).entries(most=10 * MOST_LINES) if each.size is not None}
    return evolve(shown, entries=[each for each in shown.entries if not each.media.file or each.media.file in have])
