"""A process that only writes files of a checkpoint's size, bypassing the page cache if possible.

`python -m tests.bench.bytes_alone FOLDER BYTES KEPT` writes a durable file of BYTES bytes for each line of its input,
and removes the oldest file if there are more than KEPT. It ends with its input.
"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).parents[2]
PIECE = 1 << 20


def write(path: str, size: int, noise: mmap.mmap) -> None:
    """Write a durable file of at least `size` bytes."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | getattr(os, "O_DIRECT", 0), 0o600)
    for start in range(0, size, PIECE):
        os.pwrite(file, noise, start)
    os.fsync(file)
    os.close(file)


class Writer:
    """Handle of that process for the process that trains."""

    def __init__(self, folder: str, size: int, kept: int) -> None:
        command = [sys.executable, "-m", "tests.bench.bytes_alone", folder, str(size), str(kept)]
        self._process: Any = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Wait until everything is written."""
        self._process.stdin.close()
        self._process.wait()

    def begin(self) -> None:
        """Request a file, without waiting."""
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()


def main() -> None:
    folder, size, kept = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    noise = mmap.mmap(-1, PIECE)
    noise.write(os.urandom(PIECE))
    for number, _ in enumerate(sys.stdin.buffer):
        write(os.path.join(folder, f"bytes-{number}"), size, noise)
        if number >= kept:
            os.unlink(os.path.join(folder, f"bytes-{number - kept}"))


if __name__ == "__main__":
    main()
