"""What is known about a run from the files it wrote: its journal, its logs, its checkpoints and its results."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from attrs import define, evolve, field, frozen

from hexloop.app.assembly.storage import as_location, is_elsewhere, is_missing, storage_for
from hexloop.app.checkpoint_rows import CheckpointRow, rows_of, with_digest_of
from hexloop.app.pages.history import RunHistory, step_in
from hexloop.app.pages.journal_lines import Convert, RunLines, journal_note, log_note
from hexloop.app.pages.progress import total_steps
from hexloop.app.pages.results import Results, results_in
from hexloop.domain.checkpoints.manifest import checkpoint_name, step_of
from hexloop.domain.checkpoints.reading import checkpoint_steps
from hexloop.domain.checkpoints.survey import FolderStatus, survey
from hexloop.domain.errors import ConfigurationError, HexloopError
from hexloop.domain.json_documents import read_bytes, read_json
from hexloop.domain.run_folder import JOURNAL, LOG, OWN, TRAINER_STATE, own_file
from hexloop.ports.storage import Storage

MOST_NAMED = 20
"""How many runs a message names."""


@frozen
class RunRecord:
    """A run as its files describe it.

    given: the run as the user named it. label: a short name. folder: its output folder or URL.
    source: the file that its curves are from; empty if there is none. state: the newest trainer_state.json.
    environment: what the newest checkpoint was written with. others: further runs in the same folder.
    remarks: sentences about what could not be read.
    """

    given: str
    label: str
    folder: str
    history: RunHistory
    source: str
    checkpoints: Sequence[CheckpointRow] = ()
    results: Results = field(factory=Results)
    state: Mapping[str, Any] = field(factory=dict)
    environment: Mapping[str, str] = field(factory=dict)
    others: Sequence[str] = ()
    remarks: Sequence[str] = ()

    @property
    def total_steps(self) -> int | None:
        """How many steps the run is to have, if that is known."""
        return self.history.total_steps or step_in(self.state.get("max_steps")) or total_steps(self.history)

    @property
    def newest_good(self) -> CheckpointRow | None:
        """The checkpoint that the run would resume from."""
        usable = (FolderStatus.GOOD, FolderStatus.NOT_VERIFIED)
        return next((row for row in reversed(self.checkpoints) if row.newest and row.found.status in usable), None)


@define
class RunFolder:
    """A run that the user named: where it is, and which run of that folder is meant (the start of its name)."""

    given: str
    location: str
    journal: Path | None
    log: Path | None
    name: str = ""


def read_runs(given: Sequence[str], quick: bool = False) -> list[RunRecord]:
    """Read runs, given by output folder, URL or journal, each with @NAME after it if it holds several runs.

    quick: do not verify checkpoints. Raises ConfigurationError with all runs that cannot be found.
    """
    problems: list[str] = []
    folders = [folder for each in given if (folder := locate(each, problems)) is not None]
    records = [record for folder in folders if (record := read_run(folder, quick, problems)) is not None]
    if problems:
        raise ConfigurationError(problems)
    return with_unique_labels(records)


def locate(given: str, problems: list[str]) -> RunFolder | None:
    """Find the folder of a run; None, with a problem added, if there is none."""
    if is_elsewhere(given):
        location, _, name = given.partition("@") if "@" in given.rpartition("/")[2] else (given, "", "")
        return RunFolder(given, location, None, None, name)
    path, _, name = (given, "", "") if os.path.exists(as_location(given)) or "@" not in given else given.rpartition("@")
    path = as_location(path)
    if os.path.isfile(path):
        is_log = os.path.basename(path) == LOG
        files = (None, Path(path)) if is_log else (Path(path), None)
        above, folder = os.path.split(os.path.dirname(path))
        return RunFolder(given, (above if folder == OWN else os.path.dirname(path)) or ".", files[0], files[1], name)
    if is_missing(path):
        problems.append(f"You chose the run {given}, but there is no such folder; check its name.")
        return None
    journal = own_file(path, JOURNAL)
    if step_of(os.path.basename(os.path.normpath(path))) is not None and not journal.exists():
        parent = os.path.dirname(os.path.normpath(path)) or "."
        problems.append(f"You chose the run {given}, which is one checkpoint; name the folder it is in, {parent}.")
        return None
    return RunFolder(given, path, journal, Path(path, LOG), name)


def read_run(folder: RunFolder, quick: bool, problems: list[str]) -> RunRecord | None:
    """Read a run; None, with a problem added, if there is no trace of one, or not of the one that is meant."""
    return RunReader(folder).read(quick, problems)


@define
class RunReader:
    """Reads a run as often as it is asked to: of its files only what was appended since, of checkpoints what is new.

    The curves of the records that it returns are its own, and grow with the next call.
    """

    folder: RunFolder
    _kept: dict[Path, RunLines] = field(factory=dict, init=False)
    _saved: tuple[object, Storage, list[CheckpointRow]] | None = field(default=None, init=False)
    _states: dict[str, Mapping[str, Any]] = field(factory=dict, init=False)

    @property
    def points(self) -> int:
        """How many points of curves are kept."""
        runs = [run for lines in self._kept.values() for run in lines.runs.values()]
        return sum(len(series) for run in runs for series in (*run.series.values(), *run.positions.values(), run.times))

    def read(self, quick: bool, problems: list[str], checkpoints: object = None) -> RunRecord | None:
        """Read what is new, and return the run; see `read_run`.

        checkpoints: the checkpoints are read again only if this differs from the last call; None reads them.
        """
        folder, remarks = self.folder, list[str]()
        journal = self._lines(folder.journal, journal_note, remarks)
        has_curves = journal is not None and any(run.series for run in journal.runs.values())
        logged = self._lines(None if has_curves else folder.log, log_note, remarks)
        storage, rows = self._checkpoints(quick, checkpoints, remarks)
        if journal is None and logged is None and not rows:
            nothing = f"it has no journal ({JOURNAL}), no log ({LOG}) and no checkpoint; name the output_dir of a run."
            problems.append(f"You chose the run {folder.given}, but {remarks[0] if remarks else nothing}")
            return None
        names = list(dict.fromkeys([*_names(logged), *_names(journal)])) or _runs_of(rows)
        name = _chosen(folder, names, problems)
        if name is None:
            return None
        own = [row for row in rows if row.found.manifest is None or not name or row.found.manifest.run == name]
        if name not in self._states:
            self._states[name] = _newest_state(storage, own)
        history, source = _history_of(name, journal, logged, self._states[name])
        if history.left_out:
            remarks.append(f"Curves beyond {len(history.series)} are left out, such as {sorted(history.left_out)[0]}.")
        results = Results() if is_elsewhere(folder.location) else results_in(folder.location)
        return RunRecord(
            folder.given,
            os.path.basename(os.path.normpath(folder.location)) or folder.location,
            folder.location,
            history,
            source,
            own,
            results,
            self._states[name],
            next((row.found.manifest.environment for row in reversed(own) if row.found.manifest is not None), {}),
            [each for each in names if each != name],
            [*remarks, *results.remarks],
        )

    def _lines(self, path: Path | None, convert: Convert, remarks: list[str]) -> RunLines | None:
        """Read a journal or log; None if it does not exist, or, with a remark, if it cannot be read."""
        if path is None or not os.path.lexists(path):
            return None
        lines = self._kept.setdefault(path, RunLines(path, convert))
        try:
            lines.refresh()
        except OSError as error:
            remarks.append(f"{path.name} cannot be read: {error.strerror or error}.")
            return None
        remarks += lines.read.remarks(path.name)
        if lines.dropped:
            remarks.append(f"{lines.dropped:,} earlier runs of {path.name} are left out.")
        return lines

    def _checkpoints(self, quick: bool, version: object, remarks: list[str]) -> tuple[Storage, list[CheckpointRow]]:
        if self._saved is not None and version is not None and self._saved[0] == version:
            return self._saved[1:]
        self._states.clear()
        before = len(remarks)
        storage, rows = _checkpoints(self.folder, quick, remarks)
        self._saved = (version if len(remarks) == before else None, storage, rows)
        return storage, rows


def _chosen(folder: RunFolder, names: Sequence[str], problems: list[str]) -> str | None:
    """Return the name of the run that is meant, "" if it has none; None, with a problem added, if that is unclear."""
    found = [name for name in names if name.startswith(folder.name)]
    if folder.name and len(found) != 1:
        shown = ", ".join([*names[:MOST_NAMED], *["and others"] * (len(names) > MOST_NAMED)]) or "without a name"
        problems.append(f"You chose the run {folder.given}, but the runs in {folder.location} are {shown}; name one.")
        return None
    return found[-1] if found else ""


def _history_of(
    name: str, journal: RunLines | None, logged: RunLines | None, state: Mapping[str, Any]
) -> tuple[RunHistory, str]:
    """Return what is known of a run from its journal, log and newest state, and the file that its curves are from."""
    found = [
        (lines.runs[name], lines.path.name) for lines in (journal, logged) if lines is not None and name in lines.runs
    ]
    history = evolve(found[0][0]) if found else RunHistory(name)
    history.series = dict(history.series)  # what is added from elsewhere must not grow with the next reading
    for other, source in found:
        if other.series:
            history.series, history.times, history.positions = other.series, other.times, other.positions
            _add_earlier(history, state)
            return history, source
    history.positions = {}
    for entry in _entries(state):
        if (step := step_in(entry.get("step"))) is not None:
            history.add_logged(step, entry)
    return history, TRAINER_STATE if history.series else ""


def _add_earlier(history: RunHistory, state: Mapping[str, Any]) -> None:
    """Add what the state has logged before the first session of the journal starts."""
    sessions = history.sessions.entries
    if sessions and sessions[0].first > 0:
        history.add_earlier(_entries(state), sessions[0].first)


def with_unique_labels(records: Iterable[RunRecord]) -> list[RunRecord]:
    """Return the records, with labels that tell them apart: folder, parent folder, and start of the run's name."""
    found = list(records)
    for spell in (_with_parent, _with_name, _with_number):
        labels = [record.label for record in found]
        found = [
            evolve(record, label=spell(record, number)) if labels.count(record.label) > 1 else record
            for number, record in enumerate(found, 1)
        ]
    return found


def _with_parent(record: RunRecord, number: int) -> str:
    parent = os.path.basename(os.path.dirname(os.path.abspath(record.folder)))
    return f"{parent}/{record.label}" if parent else record.label


def _with_name(record: RunRecord, number: int) -> str:
    return f"{record.label}@{record.history.name[:8]}" if record.history.name else record.label


def _with_number(record: RunRecord, number: int) -> str:
    return f"{record.label} ({number})"


def _names(lines: RunLines | None) -> list[str]:
    return [] if lines is None else list(lines.runs)


def _runs_of(rows: Sequence[CheckpointRow]) -> list[str]:
    manifests = [row.found.manifest for row in rows if row.found.manifest is not None]
    return list(dict.fromkeys(manifest.run for manifest in sorted(manifests, key=lambda each: each.session)))


def _checkpoints(folder: RunFolder, quick: bool, remarks: list[str]) -> tuple[Storage, list[CheckpointRow]]:
    storage = storage_for(folder.location)
    try:
        steps = checkpoint_steps(storage)
        storage = with_digest_of(folder.location, storage, [checkpoint_name(step) for step in steps])
        return storage, rows_of(storage, list(survey(storage, quick)))
    except HexloopError as error:
        if isinstance(error, ConfigurationError):
            raise
        remarks.append(f"the checkpoints cannot be listed: {error}")
        return storage, []


def _newest_state(storage: Storage, rows: Sequence[CheckpointRow]) -> Mapping[str, Any]:
    """Return the trainer_state.json of the newest checkpoint that has one. It is shown, not relied on."""
    for row in reversed([row for row in rows if step_of(row.found.name) is not None]):
        with suppress(HexloopError, ValueError):
            document = read_json(read_bytes(storage.read(f"{row.found.name}/{TRAINER_STATE}")), finite=False)
            if isinstance(document, dict):
                return document
    return {}


def _entries(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what the state has logged."""
    entries = state.get("log_history")
    return [each for each in entries if isinstance(each, dict)] if isinstance(entries, list) else []
