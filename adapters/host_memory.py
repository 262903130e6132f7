"""How much memory of this machine is free for this process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
"""Where Linux shows the limits of the process's control group."""


def _available() -> int:
    import psutil

    return int(psutil.virtual_memory().available)


def free_memory(cgroup: Path = CGROUP, available: Callable[[], int] = _available) -> int | None:
    """Return the bytes that this process can still allocate: those free on the machine, or within a container's limit.

    None where the system does not tell.
    """
    found = [_of_container(cgroup)]
    with suppress(Exception):  # psutil has other errors on each system
        found.append(available())
    return min((each for each in found if each is not None), default=None)


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
