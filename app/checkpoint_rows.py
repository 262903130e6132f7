"""What tables show about the checkpoints in a folder: step, age, size, metric, and whether they are good."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from attrs import frozen

from hexloop.app.assembly.checkpoint_files import CheckpointFiles
from hexloop.app.assembly.storage import storage_for
from hexloop.domain.checkpoints.manifest import MANIFEST, checkpoint_name
from hexloop.domain.checkpoints.reading import read_manifest
from hexloop.domain.checkpoints.survey import CheckpointFolder, FolderStatus, newest_by_run
from hexloop.domain.errors import CheckpointError, StorageError
from hexloop.domain.evaluation import CLOCK_READINGS
from hexloop.domain.json_documents import finite_json
from hexloop.domain.state import RunState
from hexloop.ports.storage import Storage

OPTIONAL_DIGEST = "blake2b"
"""The digest that a storage computes only if it is told to."""

PREFIX = "eval_"
SHORT_RUN = 8
"""How many characters of a run's name are printed; usually enough to distinguish runs."""


@frozen
class CheckpointRow:
    """What a table shows about a folder of a checkpoint. written: seconds since the epoch. metric: name and value."""

    found: CheckpointFolder
    written: float | None
    metric: tuple[str, float] | None
    newest: bool
    best: bool

    def cells(self, now: float) -> tuple[str, ...]:
        """Return the cells of the row as text."""
        manifest = self.found.manifest
        return (
            self.found.name,
            "-" if manifest is None else f"{manifest.step:,}",
            format_age(None if self.written is None else now - self.written),
            format_bytes(self.found.size),
            "-" if self.metric is None else f"{self.metric[0]} {self.metric[1]:.4g}",
            "-" if manifest is None else manifest.run[:SHORT_RUN],
            self.found.status.value,
            ", ".join(["newest"] * self.newest + ["best"] * self.best),
        )

    def document(self) -> dict[str, Any]:
        """Return the row in JSON types, with the size in bytes."""
        manifest = self.found.manifest
        return {
            "name": self.found.name,
            "step": None if manifest is None else manifest.step,
            "run": None if manifest is None else manifest.run,
            "written": self.written,
            "size": self.found.size,
            "metric": None if self.metric is None else finite_json(dict([self.metric])),
            "state": self.found.status.value,
            "reason": self.found.reason,
            "newest": self.newest,
            "best": self.best,
        }


def rows_of(storage: Storage, found: Sequence[CheckpointFolder]) -> list[CheckpointRow]:
    """Return the rows for the folders that a survey found. Run states are read only from verified checkpoints."""
    states = {
        each.name: state
        for each in found
        if each.status is FolderStatus.GOOD and (state := read_state(storage, each.name)) is not None
    }
    newest = newest_by_run(found)
    best = {run: best_of(states[each.name]) for run, each in newest.items() if each.name in states}
    return [
        CheckpointRow(
            each,
            storage.capabilities.modified(f"{each.name}/{MANIFEST}"),
            metric_of(states[each.name]) if each.name in states else None,
            newest=each in newest.values(),
            best=each.manifest is not None and best.get(each.manifest.run) == each.name,
        )
        for each in found
    ]


def with_digest_of(location: str, storage: Storage, names: list[str]) -> Storage:
    """Return a storage that computes the kind of digest of the first checkpoint whose manifest is readable."""
    for name in names:
        with suppress(CheckpointError, StorageError):
            digests = [stored.digest.partition(":")[0] for stored in read_manifest(storage, name).files.values()]
            return storage_for(location, OPTIONAL_DIGEST) if OPTIONAL_DIGEST in digests else storage
    return storage


def read_state(storage: Storage, name: str) -> RunState | None:
    """Return the run state in a checkpoint; None if it has none or this version of hexloop cannot read it."""
    try:
        return CheckpointFiles(storage, name, {}).run_state()
    except (CheckpointError, StorageError):
        return None


def metric_of(state: RunState) -> tuple[str, float] | None:
    """Return name and value of a metric evaluated at the state's step; None if there was no evaluation.

    It is the metric by which the best checkpoint is chosen, if known, else the loss, else the first one.
    """
    measured = _metrics(state, state.step)
    at_best = {} if state.best_step is None else _metrics(state, state.best_step)
    best = next((name for name, value in at_best.items() if value == state.best_metric), "")
    for name in (best, "eval_loss", *measured):
        if name in measured:
            return name, measured[name]
    return None


def best_of(state: RunState) -> str | None:
    """Return the name of the checkpoint with the best evaluation; None if there is none."""
    return state.best_checkpoint or (None if state.best_step is None else checkpoint_name(state.best_step))


def _metrics(state: RunState, step: int) -> dict[str, float]:
    return {
        name: value
        for entry in state.history
        if entry.get("step") == step
        for name, value in entry.items()
        if name.startswith(PREFIX) and not name.endswith(CLOCK_READINGS) and isinstance(value, int | float)
    }


_UNITS = ((86400, "d"), (3600, "h"), (60, "min"))


def format_bytes(size: int | None) -> str:
    """Return a number of bytes in decimal units; "-" for None."""
    if size is None:
        return "-"
    value, units = float(size), ["B", "kB", "MB", "GB", "TB"]
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        del units[0]
    return f"{value:.3g} {units[0]}"


def format_age(seconds: float | None) -> str:
    """Return a duration in its largest unit; "-" for None."""
    if seconds is None:
        return "-"
    for length, unit in _UNITS:
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
