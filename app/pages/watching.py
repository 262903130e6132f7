"""The runs of a folder, each read again only when its files have changed."""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import TypeVar

from attrs import define, field

from hexloop.app.pages.listing import RunIndex, RunListing
from hexloop.app.pages.reading import RunReader, RunRecord, locate, with_unique_labels
from hexloop.domain.checkpoints.manifest import MANIFEST, step_of
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.run_folder import COMMANDS, JOURNAL, LOG, own_file

Shown = TypeVar("Shown")

MOST_KEPT = 32
"""How many runs are kept in memory, those that were shown last."""

MOST_POINTS_KEPT = 6_000_000
"""How many points of curves are kept in memory, of 16 bytes each."""

MOST_COMPARED = 20
"""How many runs are shown on one page."""


@define
class WatchedRuns:
    """The runs below `root`, for any number of threads.

    Only runs that the list of the folder has are read, so nothing outside of the folder is.
    """

    root: Path
    _index: RunIndex = field(init=False)
    _listed: dict[str, RunListing] = field(factory=dict, init=False)
    _readers: OrderedDict[str, RunReader] = field(factory=OrderedDict, init=False)
    _lock: Lock = field(factory=Lock, init=False)

    def __attrs_post_init__(self) -> None:
        self._index = RunIndex(self.root)

    def listing(self) -> tuple[list[RunListing], bool]:
        """Return the runs, the one that reported last first, and whether there are more. Raises OSError."""
        with self._lock:
            runs = self._index.runs()
            self._listed = {each.folder: each for each in runs}
            return runs, self._index.cut

    def version(self, folders: Sequence[str]) -> str:
        """Return a text that differs once a file of one of these runs has changed. Raises ConfigurationError."""
        return ".".join(_version(self.path(each)) for each in folders)

    def show(self, folders: Sequence[str], build: Callable[[list[RunRecord]], Shown]) -> Shown:
        """Return what `build` makes of these runs, which must not be kept: their curves grow with the next call.

        Raises ConfigurationError, with every problem, if one does not exist or cannot be read.
        """
        if len(folders) > MOST_COMPARED:
            raise ConfigurationError(
                f"You chose {len(folders)} runs, and at most {MOST_COMPARED} are shown at once; choose fewer."
            )
        problems: list[str] = []
        with self._lock:
            found = [record for each in folders if (record := self._record(each, problems)) is not None]
            if problems:
                raise ConfigurationError(problems)
            self._forget(len(folders))
            return build(with_unique_labels(found))

    def _record(self, folder: str, problems: list[str]) -> RunRecord | None:
        path = self.path(folder)
        reader = self._readers.get(folder)
        if reader is None:
            located = locate(str(path), problems)
            if located is None:
                return None
            reader = self._readers[folder] = RunReader(located)
        self._readers.move_to_end(folder)
        record = reader.read(True, problems, _checkpoints_of(path))
        if record is None:
            del self._readers[folder]
        return record

    def _forget(self, needed: int) -> None:
        """Drop the runs that were shown longest ago, beyond those that are needed, until few enough points are kept."""
        points = [reader.points for reader in self._readers.values()]
        while len(self._readers) > needed and (sum(points) > MOST_POINTS_KEPT or len(points) > MOST_KEPT):
            self._readers.popitem(last=False)
            points.pop(0)

    def path(self, folder: str) -> Path:
        """Return the path of a run that was listed. Raises ConfigurationError for anything else."""
        if folder not in self._listed:
            raise ConfigurationError(f"There is no run {folder!r:.200} in {self.root}; go back to the list of runs.")
        return self.root / folder


def _version(path: Path) -> str:
    """Return a digest of the sizes and times of a run's journal and log, and of its checkpoints."""
    states: list[object] = []
    for name in (own_file(path, JOURNAL), path / LOG):
        try:
            status = os.lstat(name)
        except OSError:
            continue
        states.append((name.name, status.st_ino, status.st_size, status.st_mtime_ns))
    with suppress(OSError):
        states.append((COMMANDS, os.lstat(path / COMMANDS).st_mtime_ns))
    states.append(_checkpoints_of(path))
    return hashlib.blake2b(repr(states).encode(), digest_size=8).hexdigest()


def _checkpoints_of(path: Path) -> list[tuple[str, bool]]:
    """Return the names of the checkpoints in a folder, and whether each is complete."""
    try:
        with os.scandir(path) as entries:
            names = sorted(entry.name for entry in entries if step_of(entry.name) is not None)
    except OSError:
        return []
    return [(name, os.path.lexists(path / name / MANIFEST)) for name in names]
