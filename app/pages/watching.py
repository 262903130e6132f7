"""The runs below a folder: what each is doing, and those that are shown, read again only when their files change."""

from __future__ import annotations

import hashlib
import math
import os
import stat
import sys
import time
from collections import ChainMap, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from attrs import define, evolve, field, frozen

from hexloop.app.pages.history import RunHistory
from hexloop.app.pages.journal_lines import RunLines, journal_note, log_note
from hexloop.app.pages.labels import Labels, read_labels
from hexloop.app.pages.progress import seconds_per_step
from hexloop.app.pages.reading import RunReader, RunRecord, locate, with_unique_labels
from hexloop.app.pages.system import states_of_system_files
from hexloop.app.pages.trials import ShownSearch, shown_search
from hexloop.app.series import Series
from hexloop.domain.checkpoints.manifest import MANIFEST, step_of
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.run_folder import (
    COMMANDS,
    EARLIER,
    JOURNAL,
    LABELS,
    LOG,
    MEDIA,
    MEDIA_INDEX,
    OWN,
    own_file,
)
from hexloop.domain.search.records import DEFINITION, LINES

Shown = TypeVar("Shown")

DEEPEST = 4
"""How many levels of folders below the first one may hold runs."""

MOST_FOLDERS = 100_000
"""How many folders are looked at."""

MOST_LISTED = 20_000
"""How many runs are listed."""

SHOWN_AT_ONCE = 40
"""How many runs are read as soon as they are found, so that a page has rows before all folders were looked at."""

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

    history: the newest run in the folder, with the last points of its curves, and without most of its sessions.
    problem: why it cannot be read. pace: seconds of an optimizer step over the last logs, None if it is not known.
    """

    folder: str
    history: RunHistory
    problem: str = ""
    labels: Labels = field(factory=Labels)
    pace: float | None = None

    @property
    def last_loss(self) -> float | None:
        """The loss that was logged last, if it is at the end of the file; NaN if it is not finite."""
        return self.last_value("loss")

    def last_value(self, name: str) -> float | None:
        """Return a value as it was logged last, if it is at the end of the file; NaN if it is not finite."""
        series = self.history.series.get(name)
        if series is not None and series.ends_in_gap:
            return math.nan
        return series.values[-1] if series is not None and len(series) else None


@frozen
class SearchListing:
    """A search below the folder of all runs. folder: relative to it. search: None if its record is too long to list."""

    folder: str
    search: ShownSearch | None
    changed: float


@frozen
class ListedFolder:
    """What a folder has, as long as it does not change. name: of its journal or log. below: folders to look into.

    changed, read: when its entries changed last, and when they were read, in nanoseconds since the epoch.
    """

    changed: int
    read: int
    name: str | None
    is_search: bool
    below: tuple[str, ...]

    def still_holds(self, changed: int) -> bool:
        """Return whether nothing has changed. Changes of one tick of a file system's clock have one time."""
        return self.changed == changed and self.read - changed > SETTLED


SETTLED = 2_000_000_000
"""Nanoseconds after a change of a folder from which on another one has another time."""

State = tuple[tuple[int, int, int], ...]
"""The inode, size and time of change, in ns, of files that a listing is from."""


@define
class SharedSettings:
    """Keeps the arguments of many runs in little memory: the runs share what is equal between them."""

    _shared: dict[tuple[str, ...], dict[str, Any]] = field(factory=dict)

    def listing(self, listing: RunListing, labels: Labels) -> RunListing:
        """Return a listing that keeps of its run only what a list shows."""
        history = listing.history
        pace = seconds_per_step(history) if history.sessions.entries else None
        history.settings, history.defaults = self._thin(history.settings), None
        history.groups = ()
        history.times, history.positions = Series(), {}
        history.series = {sys.intern(name): each.last() for name, each in history.series.items()}
        return evolve(listing, labels=labels, pace=pace)

    def _thin(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the settings as those of another run and what differs from them."""
        names = tuple(settings)
        if len(self._shared) > MOST_SHARED and names not in self._shared:
            return settings
        base = self._shared.setdefault(names, dict(settings))
        return ChainMap({name: value for name, value in settings.items() if not _equal(base[name], value)}, base)


MOST_SHARED = 1_000
"""How many sets of names of arguments are remembered."""


def _equal(one: object, other: object) -> bool:
    return type(one) is type(other) and one == other


@define
class RunIndex:
    """The runs below `root`, and the searches. What has not changed is not read again; links are not followed.

    cut: whether there are more folders or runs than are listed. searches: those that the last call of `runs` found.
    waiting: how many runs are found and not read yet, after a call of `runs` that had too little time.
    """

    root: Path
    cut: bool = False
    searches: list[SearchListing] = field(factory=list)
    waiting: int = 0
    _known_searches: dict[str, tuple[object, SearchListing]] = field(factory=dict)
    _known: dict[str, tuple[State, RunListing]] = field(factory=dict)
    _folders_known: dict[str, ListedFolder] = field(factory=dict)
    _shared: SharedSettings = field(factory=SharedSettings)
    _work: Iterator[None] | None = None

    def runs(self, seconds: float = math.inf) -> list[RunListing]:
        """Return the runs, the one that reported last first. Raises OSError if `root` cannot be listed.

        seconds: after which the reading stops; the next call continues it. After the first `SHOWN_AT_ONCE`, those that
            changed last are read first.
        """
        until = time.monotonic() + seconds
        work = self._work or self._refreshed()
        self._work = work
        try:
            for _ in work:
                if time.monotonic() >= until:
                    break
            else:
                self._work = None
        except OSError:
            self._work = None
            raise
        return self.known()

    def known(self) -> list[RunListing]:
        """Return the runs that were read, the one that reported last first."""
        return sorted((listing for _, listing in self._known.values()), key=lambda each: -(each.history.seen or 0.0))

    @property
    def is_complete(self) -> bool:
        """Whether the last call of `runs` read everything."""
        return self._work is None

    def find(self, folder: str) -> RunListing | None:
        """Return the run in a folder that may not have been listed yet; None if `runs` would not find one."""
        names = folder.split("/") if folder != "." else []
        if len(names) > DEEPEST or any(_is_left_out(name) for name in names):
            return None
        for depth in range(1, len(names) + 1):
            try:
                status = os.lstat(self.root.joinpath(*names[:depth]))
            except (OSError, ValueError):
                return None
            if not stat.S_ISDIR(status.st_mode):
                return None
        try:
            listed = self._listed_folder("" if folder == "." else folder)
        except OSError:
            return None
        if listed.name is None:
            return None
        state = _state(self.root / folder, listed.name)
        if state is None:
            return None
        known = self._known.get(folder)
        if known is None or known[0] != state:
            self._known[folder] = known = state, self._read(folder, listed.name, state)
        return known[1]

    def _refreshed(self) -> Iterator[None]:
        """Look at all folders and read what is new, and yield after each piece of work."""
        cut, found, searches = False, dict[str, tuple[State, RunListing]](), list[str]()
        unread: list[tuple[int, str, str, State]] = []
        looked_at = dict[str, ListedFolder]()
        pending = [("", 0)]
        while pending:
            folder, depth = pending.pop()
            if len(looked_at) >= MOST_FOLDERS or len(found) + len(unread) >= MOST_LISTED:
                cut = True
                break
            try:
                listed = self._listed_folder(folder)
            except OSError:
                if not folder:
                    raise
                continue
            looked_at[folder] = listed
            place = folder or "."
            if listed.name is not None and (state := _state(self.root / folder, listed.name)) is not None:
                known = self._known.get(place)
                if known is not None and known[0] == state:
                    found[place] = known
                elif len(self._known) < SHOWN_AT_ONCE:
                    found[place] = self._known[place] = state, self._read(place, listed.name, state)
                else:
                    unread.append((max(each[2] for each in state), place, listed.name, state))
            if listed.is_search:
                searches.append(place)
            if depth < DEEPEST:
                pending += [(os.path.join(folder, name), depth + 1) for name in listed.below]
            self.waiting = len(unread)
            yield
        self._folders_known = looked_at
        for name in self._known.keys() - found.keys() - {each[1] for each in unread}:
            del self._known[name]
        unread.sort(reverse=True)
        for number, (_, place, name, state) in enumerate(unread, 1):
            self._known[place] = state, self._read(place, name, state)
            self.waiting = len(unread) - number
            yield
        self.cut = cut
        self._list_searches(searches)

    def _read(self, folder: str, name: str, state: State) -> RunListing:
        path = self.root / folder
        labels = read_labels(path) if len(state) > 1 else Labels()
        return self._shared.listing(_listing(folder, path / name), labels)

    def _list_searches(self, folders: Sequence[str]) -> None:
        """Read the searches that were found, unless they are known and have not changed; the newest first."""
        self.cut |= len(folders) > MOST_SEARCHES
        found: dict[str, tuple[object, SearchListing]] = {}
        for folder in folders[:MOST_SEARCHES]:
            states = _search_states(self.root / folder)
            known = self._known_searches.get(folder)
            if known is None or known[0] != states:
                size, changed = sum(each[2] for each in states), max((each[3] for each in states), default=0) / 1e9
                search = shown_search(self.root / folder) if size <= LARGEST_SEARCH else None
                known = states, SearchListing(folder, search, changed)
            found[folder] = known
        self._known_searches = found
        self.searches = sorted((listing for _, listing in found.values()), key=lambda each: -each.changed)

    def _listed_folder(self, folder: str) -> ListedFolder:
        """Return what is in a folder, relative to the root, without links. Raises OSError."""
        path = os.path.join(self.root, folder)
        changed = os.lstat(path).st_mtime_ns if folder else os.stat(path).st_mtime_ns
        known = self._folders_known.get(folder)
        if known is not None and known.still_holds(changed):
            return known
        read = time.time_ns()
        with os.scandir(path) as entries:
            listed = list(entries)
        names = {entry.name for entry in listed}
        name = JOURNAL if OWN in names and os.path.lexists(os.path.join(path, JOURNAL)) else None
        if OWN in names and name is None:
            read = 0  # a journal may appear in it without a change of this folder
        name = name or next((each for each in (EARLIER[JOURNAL], LOG) if each in names), None)
        is_search = DEFINITION in names and not os.path.islink(os.path.join(path, DEFINITION))
        below = sorted((entry.name for entry in listed if _may_hold_runs(entry)), reverse=True)
        return ListedFolder(changed, read, name, is_search, tuple(below))


@frozen
class Listing:
    """The runs and searches of a folder. cut: whether there are more. waiting: how many runs are not read yet.

    is_complete: whether all folders were looked at and all runs read.
    """

    runs: Sequence[RunListing]
    searches: Sequence[SearchListing]
    cut: bool
    waiting: int
    is_complete: bool


REST, NOTICED = 5.0, 0.1
"""A folder is looked at again after this many times the processor time that it takes, if it takes a noticeable time."""


@define
class WatchedRuns:
    """The runs below `root`, for any number of threads.

    Only runs that the list of the folder has are read, so nothing outside of the folder is.
    """

    root: Path
    _index: RunIndex = field(init=False)
    _listed: set[str] = field(factory=set, init=False)
    _searches: set[str] = field(factory=set, init=False)
    _readers: OrderedDict[str, RunReader] = field(factory=OrderedDict, init=False)
    _lock: Lock = field(factory=Lock, init=False)
    _listed_until: float = field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        self._index = RunIndex(self.root)

    def listing(self, seconds: float = math.inf) -> Listing:
        """Return the runs and the searches, those that reported last first. seconds: see `RunIndex.runs`.

        Raises OSError.
        """
        with self._lock:
            index = self._index
            if index.is_complete and time.monotonic() < self._listed_until:  # to look at many folders takes time
                runs = index.known()
            else:
                start = time.thread_time()
                runs = index.runs(seconds)
                took = time.thread_time() - start
                self._listed_until = time.monotonic() + (took * REST if took > NOTICED else 0.0)
            self._listed |= {each.folder for each in runs}
            if index.is_complete:
                self._listed = {each.folder for each in runs}
                self._searches = {each.folder for each in index.searches}
            return Listing(runs, index.searches, index.cut, index.waiting, index.is_complete)

    def know(self, folder: str) -> bool:
        """Return whether a folder holds a run, which is then listed."""
        with self._lock:
            found = folder in self._listed or self._index.find(folder) is not None
            if found:
                self._listed.add(folder)
            return found

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
        problems, found = list[str](), list[RunRecord]()
        with self._lock:
            for each in folders:
                if each in self._readers:
                    self._readers.move_to_end(each)
            for each in folders:
                if (record := self._record(each, problems)) is not None:
                    found.append(record)
                self._forget(len(folders))  # after each, so that earlier runs make room for it
            if problems:
                raise ConfigurationError(problems)
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
    return not _is_left_out(entry.name) and entry.is_dir(follow_symlinks=False)


def _is_left_out(name: str) -> bool:
    """Return whether a folder of this name is not looked into: a hidden one, or a checkpoint."""
    return not name or name.startswith(".") or step_of(name) is not None


def _state(path: Path, name: str) -> State | None:
    """Return the state of a run's journal or log, and of its labels; None if there is no journal or log any more."""
    try:
        status = os.lstat(os.path.join(path, name))
    except OSError:
        return None
    found = [(status.st_ino, status.st_size, status.st_mtime_ns)]
    with suppress(OSError):
        status = os.lstat(os.path.join(path, LABELS))
        found.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(found)


def _listing(folder: str, path: Path) -> RunListing:
    lines = RunLines(path, log_note if path.name == LOG else journal_note)
    try:
        lines.read_edges()
    except OSError as error:
        return RunListing(folder, RunHistory(""), f"{path.name} cannot be read: {error.strerror or error}")
    newest = next(reversed(lines.runs.values()), None)
    return RunListing(folder, newest or RunHistory(""), "" if newest else f"{path.name} has no notes of a run")


def _version(path: Path) -> str:
    """Return a digest of the sizes and times of the files of a run that pages show, and of its checkpoints."""
    states: list[object] = []
    for place in (own_file(path, JOURNAL), path / LOG):
        try:
            status = os.lstat(place)
        except OSError:
            continue
        states.append((place.name, status.st_ino, status.st_size, status.st_mtime_ns))
    for name in (COMMANDS, LABELS):
        with suppress(OSError):
            states.append((name, os.lstat(path / name).st_mtime_ns))
    states += [(name, changed // SYSTEM_INTERVAL) for name, _, changed in states_of_system_files(path)]
    with suppress(OSError):
        index = os.lstat(path / MEDIA / MEDIA_INDEX)
        states.append((MEDIA_INDEX, index.st_ino, index.st_size, index.st_mtime_ns))
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
