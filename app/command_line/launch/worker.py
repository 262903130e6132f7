"""Replace this process with a worker that dies together with its launcher.

    python worker.py LAUNCHER COMMAND ...

LAUNCHER is a process id. A launcher that is killed cannot stop its workers; on Linux the kernel kills them then. A
worker may be killed at any time: checkpoints are always complete.
"""

import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(launcher: int, command: list[str]) -> None:
    """Execute `command` in this process, or exit if the launcher is already dead."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:
            sys.exit(128 + signal.SIGKILL)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
