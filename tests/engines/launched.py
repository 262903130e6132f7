"""Scripts that are launched in several processes; see `Launches`."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from attrs import frozen

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 90.0
"""Time limit of a launch in seconds."""

SUMS = """
import os, signal, sys
import torch
import torch.distributed as distributed

def tell_and_leave(*error):
    sys.__excepthook__(*error)
    sys.stderr.flush()
    os._exit(1)  # threads of torch may abort a normal exit of the interpreter

distributed.init_process_group("gloo")
rank, restart = distributed.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
assert distributed.get_backend() == "gloo"
assert distributed.get_world_size() == int(sys.argv[1])
print("up", os.getpid(), os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], flush=True)
for step in range(4):
    total = torch.tensor([rank + 1.0])
    distributed.all_reduce(total)
    if step == 2 and rank == 1 and restart < int(sys.argv[2]):
        if sys.argv[3] == "raises":
            sys.excepthook = tell_and_leave
            raise ArithmeticError("a bug of its own")
        os.kill(os.getpid(), signal.SIGKILL)
print(f"rank {rank} of {distributed.get_world_size()} sums to {total.item():g} after {restart} restarts", flush=True)
distributed.barrier()
distributed.destroy_process_group()
"""
"""Sums over ranks. Arguments: the world size, the number of failures of rank 1, and their kind ("killed", "raises")."""

PLAIN = """
import os, signal, subprocess, sys, time

what = sys.argv[1 + int(os.environ["RANK"])]
if what == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

def save(number, frame):
    time.sleep(0.3)
    print("saved", flush=True)
    sys.exit(3)

if what == "saves":
    signal.signal(signal.SIGTERM, save)
    signal.signal(signal.SIGUSR1, save)
child = subprocess.Popen(["sleep", "300"])
threads = os.environ["OMP_NUM_THREADS"]
print("up", os.getpid(), os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], child.pid, threads, flush=True)
if what.isdecimal():
    open(f"up-{os.environ['RANK']}", "w").close()
    while not all(os.path.exists(f"up-{rank}") for rank in range(int(os.environ["WORLD_SIZE"]))):
        time.sleep(0.02)
    time.sleep(int(os.environ["RANK"]))
    child.kill()
    child.wait()
    sys.exit(int(what))
time.sleep(300)
"""
"""Runs without torch. The arguments say what each rank does: "saves", "deaf", "waits", or the exit code with which it
exits, its rank in seconds after all ranks have started."""

BARS = """
import os, time
from tqdm.auto import tqdm

rank = os.environ["RANK"]
bar = tqdm(total=8, dynamic_ncols=True)
for step in range(8):
    time.sleep(0.1)
    bar.update()
    if rank == "1":
        print("other", step, flush=True)
    elif step == 3:
        inner = tqdm(total=4, leave=False, dynamic_ncols=True)
        for _ in range(4):
            time.sleep(0.11)
            inner.update()
        inner.close()
        bar.write("log")
bar.close()
"""
"""Shows a bar on each rank, a second one for a while on rank 0, and prints lines from both."""


@frozen
class Outcome:
    """The exit code and output of a launch."""

    code: int
    output: str
    errors: str

    def numbers(self, position: int) -> list[int]:
        """Return the numbers that the workers print at `position` of the line that starts with "up"."""
        return [int(line.split(" up ")[1].split()[position]) for line in self.output.splitlines() if " up " in line]


@frozen
class Launches:
    """Launches in `folder`, which contains the scripts."""

    folder: Path

    def __call__(self, *words: str) -> Outcome:
        """Launch, and wait for the end."""
        process = self.start(*words)
        return self.end(process)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Launch; with two cores it takes some seconds until a worker starts."""
        for name, code in (("sums.py", SUMS), ("plain.py", PLAIN), ("bars.py", BARS)):
            (self.folder / name).write_text(code)
        (self.folder / "temporary").mkdir(exist_ok=True)
        with (self.folder / "output").open("w") as output, (self.folder / "errors").open("w") as errors:
            return subprocess.Popen(
                self.command(words),
                cwd=self.folder,
                env=self.environment(),
                stdout=output,
                stderr=errors,
                text=True,
            )

    def command(self, words: Sequence[str]) -> list[str]:
        """Return the command of a launch."""
        return [sys.executable, "-m", "hexloop", "launch", *words]

    def environment(self) -> dict[str, str]:
        """Return the environment without the launcher's variable, and with a folder for temporary files."""
        kept = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        return {**kept, "TMPDIR": str(self.folder / "temporary"), "HF_HUB_DISABLE_XET": "1"}

    def end(self, process: subprocess.Popen[str]) -> Outcome:
        """Wait for the end; check that no process and no file except the output is left."""
        try:
            code = process.wait(LIMIT)
        finally:
            process.kill()
        outcome = Outcome(code, (self.folder / "output").read_text(), (self.folder / "errors").read_text())
        self.assert_nothing_is_left(outcome)
        return outcome

    def assert_nothing_is_left(self, outcome: Outcome) -> None:
        """Check that no process, port or temporary file is left."""
        assert list((self.folder / "temporary").iterdir()) == []
        children = outcome.numbers(3) if re.search(r" up .* .* .* \d+ \d+$", outcome.output, re.MULTILINE) else []
        for process in (*outcome.numbers(0), *children):
            wait_until(partial(ended, process), f"process {process} is left")
        for port in set(outcome.numbers(2)):
            with socket.socket() as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                tried.bind(("127.0.0.1", port))

    def wait_for_workers(self, count: int) -> None:
        """Wait until `number` workers have started."""
        wait_until(lambda: (self.folder / "output").read_text().count(" up ") == count, "workers do not come up")


def wait_until(holds: Callable[[], bool], failure: str) -> None:
    """Wait until `holds()` is true."""
    deadline = time.monotonic() + LIMIT
    while not holds():
        assert time.monotonic() < deadline, failure
        time.sleep(0.05)


def ended(process: int) -> bool:
    """Return whether the process is gone or a zombie."""
    try:
        os.kill(process, 0)
        return "\nState:\tZ" in Path(f"/proc/{process}/status").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return True


def send(process: subprocess.Popen[str], name: str) -> None:
    """Send a signal."""
    process.send_signal(getattr(signal, name))
