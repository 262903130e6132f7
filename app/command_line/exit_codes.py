"""How a command ended, as its exit code tells."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of `hexloop`; 128 + n, as ever, where a signal n ended the process at once."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    STOPPED = 3
    INTERRUPTED = 130
