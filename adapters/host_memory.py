"""How much memory of this machine is free for this process."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
"""Where Linux shows the limits of the process's control group."""

MEMINFO = Path("/proc/meminfo")


def free_memory(cgroup: Path = CGROUP, meminfo: Path = MEMINFO) -> int | None:
    """Return the bytes that this process can still allocate: those free on the machine, or within a container's limit.

    None where the system does not tell.
    """
    found = [each for each in (_of_machine(meminfo), _of_container(cgroup)) if each is not None]
    return min(found, default=None)


def _of_machine(meminfo: Path) -> int | None:
    with suppress(OSError, ValueError):
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    with suppress(ValueError, OSError, AttributeError):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _of_container(cgroup: Path) -> int | None:
    """Return what is left of the limit; file caches are freed when memory is short, and count as free."""
    with suppress(OSError, ValueError):
        limit, used = (cgroup / "memory.max").read_text().strip(), int((cgroup / "memory.current").read_text())
        cached = 0
        for line in (cgroup / "memory.stat").read_text().splitlines():
            if line.startswith("inactive_file "):
                cached = int(line.split()[1])
        return None if limit == "max" else max(int(limit) - used + cached, 0)
    return None
