"""The table of `hexloop checkpoints list`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from attrs import frozen

from hexloop.app.command_line.checkpoints.metrics import best_of, metric_of, read_state
from hexloop.app.command_line.checkpoints.places import written_at
from hexloop.app.command_line.checkpoints.text import aligned, told_age, told_bytes
from hexloop.domain.checkpoints.selection import CheckpointFolder, FolderStatus, newest_by_run
from hexloop.domain.json_documents import finite_json
from hexloop.ports.storage import Storage

COLUMNS = ("name", "step", "age", "size", "metric", "run", "state", "")
NUMBERS = (1, 2, 3)
"""The columns that end at one place."""

SHORT_RUN = 8
"""How many characters tell one run from another, as a rule."""


@frozen
class Row:
    """A folder, and what else is known of it. written: seconds of the epoch. metric: its name and value."""

    found: CheckpointFolder
    written: float | None
    metric: tuple[str, float] | None
    newest: bool
    best: bool

    def cells(self, now: float) -> tuple[str, ...]:
        """The words of its line."""
        manifest = self.found.manifest
        return (
            self.found.name,
            "-" if manifest is None else f"{manifest.step:,}",
            told_age(None if self.written is None else now - self.written),
            told_bytes(self.found.size),
            "-" if self.metric is None else f"{self.metric[0]} {self.metric[1]:.4g}",
            "-" if manifest is None else manifest.run[:SHORT_RUN],
            self.found.status.value,
            ", ".join(["newest"] * self.newest + ["best"] * self.best),
        )

    def document(self) -> dict[str, Any]:
        """The same for programs; the size in bytes."""
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


def rows_of(storage: Storage, found: Sequence[CheckpointFolder]) -> list[Row]:
    """What the table says of each folder. The state of a run is read only where it was verified."""
    states = {
        each.name: state
        for each in found
        if each.status is FolderStatus.GOOD and (state := read_state(storage, each.name)) is not None
    }
    newest = newest_by_run(found)
    best = {run: best_of(states[each.name]) for run, each in newest.items() if each.name in states}
    return [
        Row(
            each,
            written_at(storage, each.name),
            metric_of(states[each.name]) if each.name in states else None,
            newest=each in newest.values(),
            best=each.manifest is not None and best.get(each.manifest.run) == each.name,
        )
        for each in found
    ]


def lines_of(rows: Sequence[Row], now: float) -> Iterator[str]:
    """The table, with the reason below whatever is not good; `now` in seconds of the epoch."""
    head, *lines = aligned([COLUMNS, *(row.cells(now) for row in rows)], right=NUMBERS)
    yield head
    for row, line in zip(rows, lines, strict=True):
        yield line
        if row.found.reason:
            yield f"  {row.found.reason}"
