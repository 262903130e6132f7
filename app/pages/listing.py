"""The runs below a folder, and what each is doing, in a time that does not depend on how much they have logged."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

from attrs import define, field, frozen

from hexloop.app.pages.history import RunHistory
from hexloop.app.pages.journal_lines import RunLines, journal_note, log_note
from hexloop.domain.checkpoints.manifest import step_of
from hexloop.domain.run_folder import EARLIER, JOURNAL, LOG, OWN

DEEPEST = 4
"""How many levels of folders below the first one may hold runs."""

MOST_FOLDERS = 20_000
"""How many folders are looked at."""

MOST_LISTED = 2_000
"""How many runs are listed."""


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


@define
class RunIndex:
    """The runs below `root`. A run is read again only if its file has changed; links are not followed.

    cut: whether there are more folders or runs than are listed.
    """

    root: Path
    cut: bool = False
    _known: dict[str, tuple[tuple[int, int, int], RunListing]] = field(factory=dict)

    def runs(self) -> list[RunListing]:
        """Return the runs, the one that reported last first. Raises OSError if `root` cannot be listed."""
        self.cut = False
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
        return sorted((listing for _, listing in found.values()), key=lambda each: -(each.history.seen or 0.0))

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
            if depth < DEEPEST:
                below = [entry.name for entry in listed if _may_hold_runs(entry)]
                pending += [(os.path.join(folder, name), depth + 1) for name in sorted(below, reverse=True)]


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
