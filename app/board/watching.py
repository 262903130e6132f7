"""The runs of a folder, each read again only when its files have changed."""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock

from attrs import define, field

from hexloop.app.control.files import FOLDER as COMMANDS
from hexloop.app.report.listing import RunIndex, RunListing
from hexloop.app.report.reading import LOG, RunRecord, locate, read_run, with_unique_labels
from hexloop.app.wiring.adapters import JOURNAL
from hexloop.domain.checkpoints.manifest import MANIFEST, step_of
from hexloop.domain.errors import ConfigurationError

MOST_KEPT = 32
"""How many runs are kept in memory, those that were shown last."""

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
    _read: OrderedDict[str, tuple[str, RunRecord]] = field(factory=OrderedDict, init=False)
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

    def records(self, folders: Sequence[str]) -> list[RunRecord]:
        """Return these runs. Raises ConfigurationError, with every problem, if one does not exist or cannot be read."""
        if len(folders) > MOST_COMPARED:
            raise ConfigurationError(
                f"You chose {len(folders)} runs, and at most {MOST_COMPARED} are shown at once; choose fewer."
            )
        problems: list[str] = []
        with self._lock:
            found = [record for each in folders if (record := self._record(each, problems)) is not None]
        if problems:
            raise ConfigurationError(problems)
        return with_unique_labels(found)

    def _record(self, folder: str, problems: list[str]) -> RunRecord | None:
        path = self.path(folder)
        version = _version(path)
        kept = self._read.get(folder)
        if kept is None or kept[0] != version:
            located = locate(str(path), problems)
            record = None if located is None else read_run(located, quick=True, problems=problems)
            if record is None:
                return None
            kept = self._read[folder] = (version, record)
        self._read.move_to_end(folder)
        while len(self._read) > MOST_KEPT:
            self._read.popitem(last=False)
        return kept[1]

    def path(self, folder: str) -> Path:
        """Return the path of a run that was listed. Raises ConfigurationError for anything else."""
        if folder not in self._listed:
            raise ConfigurationError(f"There is no run {folder!r:.200} in {self.root}; go back to the list of runs.")
        return self.root / folder


def _version(path: Path) -> str:
    """Return a digest of the sizes and times of a run's journal and log, and of its checkpoints."""
    states: list[object] = []
    for name in (JOURNAL, LOG):
        try:
            status = os.lstat(path / name)
        except OSError:
            continue
        states.append((name, status.st_ino, status.st_size, status.st_mtime_ns))
    with suppress(OSError):
        states.append((COMMANDS, os.lstat(path / COMMANDS).st_mtime_ns))
    try:
        with os.scandir(path) as entries:
            checkpoints = sorted(entry.name for entry in entries if step_of(entry.name) is not None)
    except OSError:
        checkpoints = []
    states += [(name, os.path.lexists(path / name / MANIFEST)) for name in checkpoints]
    return hashlib.blake2b(repr(states).encode(), digest_size=8).hexdigest()
