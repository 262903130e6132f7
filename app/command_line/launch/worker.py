"""Becomes the worker that its words say, and sees to it that this dies with the process that launched it.

    python worker.py LAUNCHER COMMAND ...

LAUNCHER is a process id. A launcher that is killed cannot end its workers; on Linux the kernel does it then. What
a worker has saved is whole whenever it dies.
"""

import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(launcher: int, command: list[str]) -> None:
    """Become `command`, or end where the launcher is gone already."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:
            sys.exit(128 + signal.SIGKILL)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
