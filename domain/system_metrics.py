"""What is measured of the machine of a rank while a run trains, and the lines of the file that keeps it.

`system-<rank>.jsonl` has one JSON object a line. A session of a run starts with `kind` "began" and `run`, `rank`,
`host`, `process`, `step` and `time`. Each further line is a sample: the `time` in seconds since the epoch, the `step`,
and numbers by the names of `METRICS`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from attrs import frozen

MOST_SAMPLES = 2_000
"""Lines of a file. Once it has as many, half of the samples are left out; see `thinned`."""

LONGEST_LINE = 16 << 10
"""Bytes of a line. One that a run writes has fewer than 1,000."""

MOST_BYTES = 8 << 20
"""Bytes of a file that are read. One that was thinned has fewer than 1 MiB."""

LARGEST = float(1 << 63)
"""A measured value beyond it is not one."""

LARGEST_STEP = 1 << 53
LONGEST_NAME = 255

Unit: TypeAlias = Literal["percent", "bytes", "bytes per second", "watts", "degrees Celsius"]


@frozen
class Metric:
    """A metric. title: what a chart of it is called. group: with which others it is shown."""

    title: str
    unit: Unit
    group: Literal["CPU", "Memory", "Disk", "Network", "GPU"]


METRICS: Mapping[str, Metric] = {
    "cpu": Metric("CPU use of the machine", "percent", "CPU"),
    "process_cpu": Metric("CPU use of the process (100 is one core)", "percent", "CPU"),
    "memory": Metric("Memory in use on the machine", "bytes", "Memory"),
    "memory_total": Metric("Memory of the machine", "bytes", "Memory"),
    "process_memory": Metric("Memory of the process", "bytes", "Memory"),
    "disk_read": Metric("Read from disks", "bytes per second", "Disk"),
    "disk_written": Metric("Written to disks", "bytes per second", "Disk"),
    "disk_free": Metric("Free space of the run's folder", "bytes", "Disk"),
    "network_received": Metric("Received", "bytes per second", "Network"),
    "network_sent": Metric("Sent", "bytes per second", "Network"),
    "gpu_use": Metric("GPU use", "percent", "GPU"),
    "gpu_memory": Metric("GPU memory in use", "bytes", "GPU"),
    "gpu_memory_total": Metric("GPU memory", "bytes", "GPU"),
    "gpu_allocated": Metric("GPU memory allocated by the process", "bytes", "GPU"),
    "gpu_power": Metric("GPU power", "watts", "GPU"),
    "gpu_temperature": Metric("GPU temperature", "degrees Celsius", "GPU"),
}
"""The metrics by name. `cpu`, `memory`, `disk_*` and `network_*` are of the whole machine, `gpu_*` of the rank's."""


@frozen
class SessionStart:
    """The start of a session: the process that the samples after it are from."""

    run: str
    rank: int
    host: str
    process: int
    step: int
    time: float


@frozen
class Sample:
    """What was measured at a time, by name."""

    time: float
    step: int
    values: Mapping[str, float]


def start_entry(start: SessionStart) -> dict[str, Any]:
    """Return the line of a start as a JSON object."""
    return {
        "kind": "began",
        "run": start.run,
        "rank": start.rank,
        "host": start.host,
        "process": start.process,
        "step": start.step,
        "time": start.time,
    }


def sample_entry(sample: Sample) -> dict[str, Any]:
    """Return the line of a sample as a JSON object."""
    values = {name: round(value, 2) for name, value in sample.values.items()}
    return {"time": round(sample.time, 3), "step": sample.step, **values}


def line_of(entry: object) -> SessionStart | Sample | None:
    """Return what a line says; None if it is not one of these, as in a file that was changed by hand."""
    if not isinstance(entry, Mapping):
        return None
    time, step = _number(entry.get("time")), entry.get("step")
    if time is None or type(step) is not int or not 0 <= step < LARGEST_STEP:
        return None
    if entry.get("kind") == "began":
        return _start_of(entry, time, step)
    values = {
        name: number for name, value in entry.items() if name in METRICS and (number := _number(value)) is not None
    }
    return Sample(time, step, values)


def thinned(
    lines: Sequence[SessionStart | Sample], most: int = MOST_SAMPLES
) -> tuple[list[SessionStart | Sample], float]:
    """Return the lines to keep, at most `most`, and the seconds between samples that is kept of them.

    The samples that are kept are spread evenly over the time that the sessions took, whatever their intervals were. Of
    more sessions than that, the last are kept.
    """
    spacing = _seconds_in(lines) / (most // 2)
    kept, last = list[SessionStart | Sample](), -math.inf
    for line in lines:
        if isinstance(line, SessionStart):
            kept.append(line)
            last = -math.inf
        elif not 0 <= line.time - last < spacing:  # a clock may be set back
            kept.append(line)
            last = line.time
    return kept[-(most * 3 // 4) :], spacing


def _seconds_in(lines: Sequence[SessionStart | Sample]) -> float:
    """Return the seconds in which samples were taken."""
    total, before = 0.0, None
    for line in lines:
        if isinstance(line, Sample) and before is not None:
            total += max(line.time - before, 0.0)
        before = line.time if isinstance(line, Sample) else None
    return total


def _start_of(entry: Mapping[str, Any], time: float, step: int) -> SessionStart | None:
    run, host = entry.get("run"), entry.get("host")
    rank, process = entry.get("rank"), entry.get("process")
    texts = all(isinstance(each, str) and len(each) <= LONGEST_NAME for each in (run, host))
    counts = all(type(each) is int and 0 <= each < LARGEST_STEP for each in (rank, process))
    return SessionStart(str(run), int(rank), str(host), int(process), step, time) if texts and counts else None  # type: ignore[arg-type]


def _number(value: object) -> float | None:
    """Return a number as a float; None for anything else, and for one that was never measured."""
    if type(value) not in (int, float):
        return None
    known = abs(value) < LARGEST and math.isfinite(value)  # type: ignore[arg-type]
    return float(value) if known else None  # type: ignore[arg-type]
