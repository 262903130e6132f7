"""The media that a run has logged, read as plain values within bounds."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from hexloop.domain.folders import Folder
from hexloop.domain.media import KeptMedia, newest
from hexloop.domain.media_log import content_of, file_of, lines_of_index
from hexloop.domain.run_folder import MEDIA, MEDIA_INDEX
from hexloop.ports.logger import Media

MOST_NAMES = 100
"""Names of media that are shown."""


@frozen
class LoggedMedia:
    """The media of a run, in the order in which they were logged. remarks: sentences about what could not be read."""

    folder: str = ""
    entries: Sequence[KeptMedia] = ()
    remarks: Sequence[str] = ()

    def content(self, media: Media) -> Mapping[str, Any] | None:
        """Return the content of a medium; None if its file is missing or damaged."""
        return content_of(Folder(self.folder, MEDIA), media)

    def file(self, media: Media) -> bytes:
        """Return the bytes of the file of an image or audio. Raises OSError if there is none, or it is another kind."""
        return file_of(Folder(self.folder, MEDIA), media)


def media_in(folder: str | os.PathLike[str], run: str) -> LoggedMedia:
    """Return the media of a run. folder: its output folder on this machine. run: its name in the journal."""
    place, found, remarks = Folder(folder, MEDIA), list[KeptMedia](), list[str]()
    try:
        for each in lines_of_index(place):
            if each.run == run:
                found.append(each)
    except (FileNotFoundError, NotADirectoryError):
        return LoggedMedia()
    except OSError as error:
        remarks.append(f"{MEDIA_INDEX} cannot be read to its end: {error.strerror or error}.")
    found = newest(found)
    names = list(dict.fromkeys(each.media.name for each in found))
    if len(names) > MOST_NAMES:
        remarks.append(f"The media of {len(names) - MOST_NAMES:,} names are left out.")
        shown = set(names[:MOST_NAMES])
        found = [each for each in found if each.media.name in shown]
    return LoggedMedia(os.fspath(folder), found, remarks)
