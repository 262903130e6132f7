"""What the machine and this process use, by psutil; and what a test sets."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Reading = Callable[[], Mapping[str, float]]


class PsutilMachine:
    """Machine adapter for Linux, macOS and Windows. folder: the one whose free space is measured."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = os.fspath(folder)
        self._readings: list[Reading] | None = None
        self._counted: dict[str, tuple[float, float]] = {}
        self._has_processor_times = False

    def measure(self) -> Mapping[str, float]:
        """Return what can be measured. A reading that fails, as in a sandbox, is not tried again."""
        if self._readings is None:
            self._readings = self._start()
        found: dict[str, float] = {}
        for reading in list(self._readings):
            try:
                found |= reading()
            except Exception:  # psutil has other errors on each system; what is not measured is left out
                self._readings.remove(reading)
        return found

    def _start(self) -> list[Reading]:
        """Import psutil, which takes some milliseconds, in the thread that measures."""
        import psutil

        process = psutil.Process()

        def processor() -> Mapping[str, float]:
            found = {"cpu": psutil.cpu_percent(None), "process_cpu": process.cpu_percent(None)}
            is_first, self._has_processor_times = not self._has_processor_times, True
            return {} if is_first else found  # both are zero at first

        def memory() -> Mapping[str, float]:
            machine = psutil.virtual_memory()
            own = process.memory_info().rss
            return {
                "memory": machine.total - machine.available,
                "memory_total": machine.total,
                "process_memory": own,
            }

        def free_space() -> Mapping[str, float]:
            return {"disk_free": psutil.disk_usage(self._folder).free}

        def disk() -> Mapping[str, float]:
            return self._rates(
                psutil.disk_io_counters(), (("disk_read", "read_bytes"), ("disk_written", "write_bytes"))
            )

        def network() -> Mapping[str, float]:
            names = (("network_received", "bytes_recv"), ("network_sent", "bytes_sent"))
            return self._rates(psutil.net_io_counters(), names)

        return [processor, memory, free_space, disk, network]

    def _rates(self, counters: Any, names: Iterable[tuple[str, str]]) -> dict[str, float]:
        """Return how much counters have grown in a second since the last call. counters: None if there are none."""
        now, found = time.perf_counter(), dict[str, float]()
        for name, counter in names if counters is not None else ():
            count = float(getattr(counters, counter))
            before = self._counted.get(name)
            self._counted[name] = (now, count)
            if before is not None and now > before[0] and count >= before[1]:
                found[name] = (count - before[1]) / (now - before[0])
        return found


class SimulatedMachine:
    """Machine adapter for tests.

    Args:
        values: what `measure` returns; it may be set later.
        failure: an exception that `measure` raises instead.
    """

    def __init__(self, values: Mapping[str, float] | None = None, failure: Exception | None = None) -> None:
        self.values = {} if values is None else dict(values)
        self.failure = failure
        self.calls = 0

    def measure(self) -> Mapping[str, float]:
        """Return the values."""
        self.calls += 1
        if self.failure is not None:
            raise self.failure
        return dict(self.values)
