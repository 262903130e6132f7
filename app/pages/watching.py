"""The runs below a folder: what each is doing, and those that are shown, read again only when their files change."""

from __future__ import annotations

import hashlib
import math
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import TypeVar

from attrs import define, field, frozen

from hexloop.app.pages.history import RunHistory
from hexloop.app.pages.journal_lines import RunLines, journal_note, log_note
from hexloop.app.pages.reading import RunReader, RunRecord, locate, with_unique_labels
from hexloop.app.pages.system import states_of_system_files
from hexloop.app.pages.trials import ShownSearch, shown_search
from hexloop.domain.checkpoints.manifest import MANIFEST, step_of
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.run_folder import COMMANDS, EARLIER, JOURNAL, LOG, MEDIA, MEDIA_INDEX, OWN, own_file
from hexloop.domain.search.records import DEFINITION, LINES

Shown = TypeVar("Shown")

DEEPEST = 4
"""How many levels of folders below the first one may hold runs."""

MOST_FOLDERS = 20_000
"""How many folders are looked at."""

MOST_LISTED = 2_000
"""How many runs are listed."""

MOST_SEARCHES = 200
"""How many searches are listed, and kept in memory: their record is read as a whole."""

LARGEST_SEARCH = 16 << 20
"""Bytes of the record of a search up to which the list counts its trials."""

MOST_KEPT = 32
"""How many runs are kept in memory, those that were shown last."""

MOST_POINTS_KEPT = 6_000_000
"""How many points of curves are kept in memory, of 16 bytes each."""

SYSTEM_INTERVAL = 10 * 10**9
"""Nanoseconds after which new system metrics alone are shown, such as of a step that hangs."""

MOST_COMPARED = 20
"""How many runs are shown on one page."""


@frozen
class RunListing:
    """What the ends of a run's files tell. folder: relative to the folder of all runs. times: seconds since the epoch.

    history: the newest run in the folder, without most of its curves and sessions. problem: why it cannot be read.
    """

    folder: str
    history: RunHistory
    problem: str = ""

    @property
    def last_loss(self) -> float | None:
        """The loss that was logged last, if it is at the end of the file; NaN if it is not finite."""
        series = self.history.series.get("loss")
        if series is not None and series.ends_in_gap:
            return math.nan
        return series.values[-1] if series is not None and len(series) else None


@frozen
class SearchListing:
    """A search below the folder of all runs. folder: relative to it. search: None if its record is too long to list."""

    folder: str
    search: ShownSearch | None
    changed: float


@define
class RunIndex:
    """The runs below `root`, and the searches. What has not changed is not read again; links are not followed.

    cut: whether there are more folders or runs than are listed. searches: those that the last call of `runs` found.
    """

    root: Path
    cut: bool = False
    searches: list[SearchListing] = field(factory=list)
    _known_searches: dict[str, tuple[object, SearchListing]] = field(factory=dict)
    _found_searches: list[str] = field(factory=list)
    _known: dict[str, tuple[tuple[int, int, int], RunListing]] = field(factory=dict)

    def runs(self) -> list[RunListing]:
        """Return the runs, the one that reported last first. Raises OSError if `root` cannot be listed."""
        self.cut, self._found_searches = False, []
        found: dict[str, tuple[tuple[int, int, int], RunListing]] = {}
        for folder, name in self._folders():
            if len(found) >= MOST_LISTED:
                self.cut = True
                break
            path = self.root / folder / name
            try:
                status = os.lstat(path)
            except OSError:
                continue  # it was removed meanwhile
            version = (status.st_ino, status.st_size, status.st_mtime_ns)
            known = self._known.get(folder)
            found[folder] = known if known is not None and known[0] == version else (version, _listing(folder, path))
        self._known = found
        self._list_searches()
        return sorted((listing for _, listing in found.values()), key=lambda each: -(each.history.seen or 0.0))

    def _list_searches(self) -> None:
        """Read the searches that were found, unless they are known and have not changed; the newest first."""
        self.cut |= len(self._found_searches) > MOST_SEARCHES
        found: dict[str, tuple[object, SearchListing]] = {}
        for folder in self._found_searches[:MOST_SEARCHES]:
            states = _search_states(self.root / folder)
            known = self._known_searches.get(folder)
            if known is None or known[0] != states:
                size, changed = sum(each[2] for each in states), max((each[3] for each in states), default=0) / 1e9
                search = shown_search(self.root / folder) if size <= LARGEST_SEARCH else None
                known = states, SearchListing(folder, search, changed)
            found[folder] = known
        self._known_searches = found
        self.searches = sorted((listing for _, listing in found.values()), key=lambda each: -each.changed)

    def _folders(self) -> Iterator[tuple[str, str]]:
        """Yield the folders that hold a run, relative to the root, each with the name of its journal or log."""
        pending, looked_at = [("", 0)], 0
        while pending:
            folder, depth = pending.pop()
            looked_at += 1
            if looked_at > MOST_FOLDERS:
                self.cut = True
                return
            try:
                with os.scandir(self.root / folder) as entries:
                    listed = list(entries)
            except OSError:
                if not folder:
                    raise
                continue
            names = {entry.name for entry in listed}
            name = JOURNAL if OWN in names and os.path.lexists(self.root / folder / JOURNAL) else None
            if name := name or next((each for each in (EARLIER[JOURNAL], LOG) if each in names), None):
                yield folder or ".", name
            if DEFINITION in names and not os.path.islink(self.root / folder / DEFINITION):
                self._found_searches.append(folder or ".")
            if depth < DEEPEST:
                below = [entry.name for entry in listed if _may_hold_runs(entry)]
                pending += [(os.path.join(folder, name), depth + 1) for name in sorted(below, reverse=True)]


@define
class WatchedRuns:
    """The runs below `root`, for any number of threads.

    Only runs that the list of the folder has are read, so nothing outside of the folder is.
    """

    root: Path
    _index: RunIndex = field(init=False)
    _listed: dict[str, RunListing] = field(factory=dict, init=False)
    _searches: set[str] = field(factory=set, init=False)
    _readers: OrderedDict[str, RunReader] = field(factory=OrderedDict, init=False)
    _lock: Lock = field(factory=Lock, init=False)

    def __attrs_post_init__(self) -> None:
        self._index = RunIndex(self.root)

    def listing(self) -> tuple[list[RunListing], list[SearchListing], bool]:
        """Return the runs and the searches, those that reported last first, and whether there are more.

        Raises OSError.
        """
        with self._lock:
            runs = self._index.runs()
            self._listed = {each.folder: each for each in runs}
            self._searches = {each.folder for each in self._index.searches}
            return runs, self._index.searches, self._index.cut

    def search(self, folder: str) -> ShownSearch:
        """Return a search that was listed. Raises ConfigurationError for anything else."""
        return shown_search(self._search_path(folder))

    def search_version(self, folder: str) -> str:
        """Return a text that differs once a file of a search has changed. Raises ConfigurationError."""
        states = _search_states(self._search_path(folder))
        return hashlib.blake2b(repr(states).encode(), digest_size=8).hexdigest()

    def is_listed(self, folder: str) -> bool:
        """Return whether a run was listed."""
        return folder in self._listed

    def _search_path(self, folder: str) -> Path:
        if folder not in self._searches:
            raise ConfigurationError(f"There is no search {folder!r:.200} in {self.root}; go back to the list of runs.")
        return self.root / folder

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


def _may_hold_runs(entry: os.DirEntry[str]) -> bool:
    return not entry.name.startswith(".") and step_of(entry.name) is None and entry.is_dir(follow_symlinks=False)


def _listing(folder: str, path: Path) -> RunListing:
    lines = RunLines(path, log_note if path.name == LOG else journal_note)
    try:
        lines.read_edges()
    except OSError as error:
        return RunListing(folder, RunHistory(""), f"{path.name} cannot be read: {error.strerror or error}")
    newest = next(reversed(lines.runs.values()), None)
    return RunListing(folder, newest or RunHistory(""), "" if newest else f"{path.name} has no notes of a run")


def _version(path: Path) -> str:
    """Return a digest of the sizes and times of a run's files of lines, of its media, and of its checkpoints."""
    states: list[object] = []
    for name in (own_file(path, JOURNAL), path / LOG):
        try:
            status = os.lstat(name)
        except OSError:
            continue
        states.append((name.name, status.st_ino, status.st_size, status.st_mtime_ns))
    with suppress(OSError):
        index = os.lstat(path / MEDIA / MEDIA_INDEX)
        states.append((MEDIA_INDEX, index.st_ino, index.st_size, index.st_mtime_ns))
    with suppress(OSError):
        states.append((COMMANDS, os.lstat(path / COMMANDS).st_mtime_ns))
    states += [(name, changed // SYSTEM_INTERVAL) for name, _, changed in states_of_system_files(path)]
    states.append(_checkpoints_of(path))
    return hashlib.blake2b(repr(states).encode(), digest_size=8).hexdigest()


def _search_states(path: Path) -> list[tuple[str, int, int, int]]:
    """Return the name, inode, size and time of change, in ns, of each file of a search that exists."""
    states = []
    for name in (DEFINITION, LINES):
        with suppress(OSError):
            status = os.lstat(path / name)
            states.append((name, status.st_ino, status.st_size, status.st_mtime_ns))
    return states


def _checkpoints_of(path: Path) -> list[tuple[str, bool]]:
    """Return the names of the checkpoints in a folder, and whether each is complete."""
    try:
        with os.scandir(path) as entries:
            names = sorted(entry.name for entry in entries if step_of(entry.name) is not None)
    except OSError:
        return []
    return [(name, os.path.lexists(path / name / MANIFEST)) for name in names]
