"""Kills random ranks of a run at random times, and compares the result with that of a run without kills.

`python -m tests.engines.kills --launcher torchrun` runs as many kills as given and prints the counts.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from hexloop.adapters.journal import read
from hexloop.adapters.storage.local import LocalStorage
from hexloop.domain.checkpoints.reading import checkpoint_steps, verify
from hexloop.domain.run_folder import OWN
from tests.engines.processes import free_port

SCRIPT = Path(__file__).parent / "several" / "killed.py"
PATIENCE = 240
"""Seconds until the next attempt, its next save, and the end of a run that is no longer killed."""

RENDEZVOUS_TIMEOUT = 60
"""The bound of every wait at a start, which is the default of the run's argument `rendezvous_timeout`."""

ORPHAN_PATIENCE = 30
"""Seconds that a process may outlive the launcher: it is being stopped."""

MARK = "HEXLOOP_KILLED_RANKS"
"""The variable that all processes of a run inherit."""


@define
class RankKills:
    """The counts. kills: those after which the launcher restarted. starting: before the run was training again.

    longest_wait: seconds that any process took from the start of its run until it trained.
    """

    kills: int = 0
    starting: int = 0
    in_flight: int = 0
    runs: int = 0
    longest_wait: float = 0.0

    def reported(self) -> str:
        """Return the counts as text."""
        return (
            f"{self.kills} kills of random ranks in {self.runs} runs, {self.starting} of them during a start and "
            f"{self.in_flight} with a save in flight; every run is bitwise equal to one without kills, the longest "
            f"wait for the other ranks took {self.longest_wait:.1f} s, and nothing is left behind."
        )


@frozen
class Worker:
    """A process of a rank. attempt: the number of restarts before it."""

    process: int
    rank: int
    attempt: int


@define
class LaunchedRun:
    """A run in `folder` under a launcher. kind: "hexloop", or "torchrun" with its store, or with a standalone one."""

    folder: Path
    processes: int
    steps: int
    width: int
    kind: str = "hexloop"
    mark: str = field(factory=lambda: secrets.token_hex(8))
    launcher: subprocess.Popen[bytes] | None = None

    def start(self, restarts: int) -> None:
        """Launch it, with the variables that a user has."""
        self.folder.mkdir(parents=True)
        count, python = str(self.processes), [sys.executable, "-m"]
        command = {
            "hexloop": [*python, "hexloop", "launch", "--processes", count, "--restarts", str(restarts)],
            "torchrun": [*python, "torch.distributed.run", "--master-port", str(free_port())],
            "torchrun --standalone": [*python, "torch.distributed.run", "--standalone"],
        }[self.kind]
        if self.kind != "hexloop":
            command += ["--nproc-per-node", count, "--max-restarts", str(restarts)]
        command += [str(SCRIPT), str(self.folder), str(self.steps), str(self.width)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), MARK: self.mark}
        with (self.folder / "output.txt").open("wb") as output:
            self.launcher = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)

    @property
    def code(self) -> int | None:
        """The exit code of the launcher; None while it runs."""
        assert self.launcher is not None
        return self.launcher.poll()

    def attempt(self, number: int) -> list[Worker]:
        """Return all workers of an attempt, once all have been started; empty if the launcher has ended."""
        until = time.monotonic() + PATIENCE
        while self.code is None:
            found = [each for each in self._workers() if each.attempt == number]
            if len(found) == self.processes:
                return found
            assert all(each.attempt <= number for each in self._workers()), f"a start failed: {self.output()}"
            assert time.monotonic() < until, f"attempt {number} does not start: {self.output()}"
            time.sleep(0.02)
        return []

    def notes(self) -> list[dict[str, Any]]:
        """Return the journal's save entries."""
        journal = self.folder / "run" / ".hexloop/journal.jsonl"
        return [note for note in read(journal) if note["kind"] == "save"] if journal.exists() else []

    def waits(self) -> list[float]:
        """Return the seconds that each start of each process took."""
        file = self.folder / "waits.txt"
        return [float(line) for line in file.read_text().splitlines()] if file.exists() else []

    def wait_for_saves(self, count: int) -> bool:
        """Wait for more entries about saves. Return whether they came before the end of the run."""
        before, until = len(self.notes()), time.monotonic() + PATIENCE
        while len(self.notes()) < before + count:
            if self.code is not None:
                return False
            assert time.monotonic() < until, f"no save: {self.output()}"
            time.sleep(0.002)
        return True

    def end(self) -> dict[str, Any]:
        """Wait for the end of the launcher; return the result, once it is complete and nothing is left."""
        assert self.launcher is not None
        assert self.launcher.wait(PATIENCE) == 0, self.output()
        storage = LocalStorage(self.folder / "run")
        assert [verify(storage, f"checkpoint-{step}").manifest.step for step in checkpoint_steps(storage)]
        assert [path.name for path in (self.folder / "run" / OWN).iterdir() if path.name.startswith(".")] == []
        self.assert_no_orphan()
        found: dict[str, Any] = json.loads((self.folder / "end.json").read_text())
        return found

    def assert_no_orphan(self) -> None:
        """Check that no process of the run is left."""
        until = time.monotonic() + ORPHAN_PATIENCE
        while left := [process for process, _ in self._marked()]:
            assert time.monotonic() < until, f"the processes {left} outlive the launcher"
            time.sleep(0.1)

    def stop(self) -> None:
        """Kill what is left of it."""
        assert self.launcher is not None
        self.launcher.kill()
        self.launcher.wait()
        for process, _ in self._marked():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def output(self) -> str:
        """Return the end of the output."""
        return (self.folder / "output.txt").read_text(errors="replace")[-6000:]

    def _workers(self) -> list[Worker]:
        """Return the living workers, which have the variables of a rank and are children of the launcher."""
        assert self.launcher is not None
        found = []
        for process, variables in self._marked():
            if "TORCHELASTIC_RESTART_COUNT" in variables and _parent(process) == self.launcher.pid:
                found.append(Worker(process, int(variables["RANK"]), int(variables["TORCHELASTIC_RESTART_COUNT"])))
        return found

    def _marked(self) -> Iterator[tuple[int, dict[str, str]]]:
        """Yield the living processes of this run with their variables."""
        wanted = f"{MARK}={self.mark}".encode()
        for file in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):  # it has ended, or belongs to another user
                variables = file.read_bytes().split(b"\0")
                if wanted in variables:
                    pairs = (each.decode(errors="replace").partition("=") for each in variables)
                    yield int(file.parent.name), {name: value for name, _, value in pairs}


def _parent(process: int) -> int:
    """Return the process's parent; 0 if it has ended."""
    with suppress(OSError):
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


@frozen
class RankKiller:
    """Kills ranks at instants that `moments` draws. start: the typical seconds from a start to the end."""

    moments: random.Random
    start: float
    counts: RankKills
    tell: Callable[[str], None]

    def kill(self, run: LaunchedRun, number: int) -> bool:
        """Kill a rank of an attempt. Return whether it ran, so that the launcher starts another one."""
        workers = run.attempt(number)
        began, waits = time.monotonic(), len(run.waits())
        if self.moments.random() < 0.5:
            time.sleep(self.moments.uniform(0, self.start / 2))
        elif run.wait_for_saves(self.moments.choice((1, 1, 4, 8))):
            time.sleep(self.moments.uniform(0, 0.05))
        if not workers or run.code is not None:
            return False
        victim = self.moments.choice(workers)
        phases = [note["phase"] for note in run.notes()]
        starting = len(run.waits()) < waits + run.processes
        with suppress(ProcessLookupError):
            os.kill(victim.process, signal.SIGKILL)
        after = time.monotonic() - began
        if not run.attempt(number + 1):
            return False
        self.counts.kills += 1
        self.counts.starting += starting
        self.counts.in_flight += bool(phases) and not starting and phases[-1] not in ("published", "rotated")
        self.tell(
            f"kill {self.counts.kills}: rank {victim.rank}, {after:.2f} s after the start of attempt {number} of "
            f"{run.folder.name} under {run.kind}{', before all trained' if starting else ''}"
        )
        return True


def check_killed_ranks(
    folder: Path,
    kills: int,
    processes: int,
    seed: int,
    kinds: tuple[str, ...] = ("hexloop",),
    tell: Callable[[str], None] = lambda _: None,
) -> RankKills:
    """Kill `kills` times; each run must match one without kills. kinds: the launchers, in turn."""
    moments, counts, steps, width = random.Random(seed), RankKills(), 24, 400
    tell(f"seed {seed}: {kills} kills, {processes} ranks, {', '.join(kinds)}")
    whole = LaunchedRun(folder / "whole", processes, steps, width, kinds[0])
    began = time.monotonic()
    expected = _ended(whole, restarts=0)
    killer = RankKiller(moments, time.monotonic() - began, counts, tell)
    tell(f"a run without kills takes {killer.start:.1f} s")
    while counts.kills < kills:
        run = LaunchedRun(folder / f"killed-{counts.runs}", processes, steps, width, kinds[counts.runs % len(kinds)])
        run.start(restarts=1000)
        try:
            number = 0
            while counts.kills < kills and killer.kill(run, number):
                number += 1
            assert run.end() == expected
        finally:
            run.stop()
        counts.runs += 1
        counts.longest_wait = max(counts.longest_wait, *run.waits())
        assert counts.longest_wait <= RENDEZVOUS_TIMEOUT
        tell(f"{run.folder.name} matches the run without kills, after {number} restarts; {counts.reported()}")
    return counts


def _ended(run: LaunchedRun, restarts: int) -> dict[str, Any]:
    run.start(restarts)
    try:
        return run.end()
    finally:
        run.stop()
