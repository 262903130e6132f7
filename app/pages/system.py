"""The system metrics that the ranks of a run have written, read as plain values within bounds."""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Sequence
from math import nan
from pathlib import Path

from attrs import define, field, frozen

from hexloop.domain.folders import Folder
from hexloop.domain.run_folder import OWN, system_file
from hexloop.domain.system_metrics import Sample, SessionStart
from hexloop.domain.system_sampling import lines_of_rank

MOST_RANKS = 64
"""How many ranks of a run are shown, the first ones."""

_FILE = re.compile(r"system-(\d{1,6})\.jsonl")


@define
class RankMetrics:
    """What was measured for a rank, in the order of time.

    host: the name of its machine. times: in seconds since the epoch. steps: the step at that time; after a resume they
    start again at an earlier one. values: by the names of `hexloop.domain.system_metrics.METRICS`, as many as times,
    NaN where something was not measured. starts: the times at which the process started or resumed the run.
    """

    rank: int
    host: str = ""
    times: array[float] = field(factory=lambda: array("d"))
    steps: array[int] = field(factory=lambda: array("q"))
    values: dict[str, array[float]] = field(factory=dict)
    starts: list[float] = field(factory=list)

    def add(self, sample: Sample) -> None:
        """Add a sample; one that is not later than the last is left out, as a clock may be set back."""
        if self.times and sample.time <= self.times[-1]:
            return
        for name, value in sample.values.items():
            known = self.values.setdefault(name, array("d"))
            known.extend([nan] * (len(self.times) - len(known)))
            known.append(value)
        self.times.append(sample.time)
        self.steps.append(sample.step)

    def complete(self) -> None:
        """Give all values as many entries as there are times."""
        for known in self.values.values():
            known.extend([nan] * (len(self.times) - len(known)))


@frozen
class SystemMetrics:
    """The metrics of a run by rank. remarks: sentences about what could not be read."""

    ranks: Sequence[RankMetrics] = ()
    remarks: Sequence[str] = ()


def system_metrics_in(folder: str | os.PathLike[str], run: str) -> SystemMetrics:
    """Return what was measured for a run. folder: its output folder on this machine. run: its name in the journal."""
    ranks, remarks = list[RankMetrics](), list[str]()
    place = Folder(folder)
    try:
        names = [each.name for each in place.entries(OWN)]
    except OSError as error:
        return SystemMetrics(remarks=[f"The system metrics cannot be read: {error.strerror or error}."])
    numbers = sorted(int(match[1]) for name in names if (match := _FILE.fullmatch(name)))
    for rank in numbers[:MOST_RANKS]:
        try:
            found = _rank_in(place, rank, run)
        except OSError as error:
            remarks.append(f"{Path(system_file(rank)).name} cannot be read: {error.strerror or error}.")
            continue
        if found is not None:
            ranks.append(found)
    if len(numbers) > MOST_RANKS:
        remarks.append(f"The system metrics of {len(numbers) - MOST_RANKS:,} ranks are left out.")
    return SystemMetrics(ranks, remarks)


def _rank_in(place: Folder, rank: int, run: str) -> RankMetrics | None:
    """Return the samples of one rank; None if it has none of this run. Raises OSError."""
    found, is_own = RankMetrics(rank), False
    for line in lines_of_rank(place, rank):
        if isinstance(line, SessionStart):
            is_own = line.run == run
            if is_own:
                found.host = line.host
                found.starts.append(line.time)
        elif is_own:
            found.add(line)
    found.complete()
    return found if found.times else None
