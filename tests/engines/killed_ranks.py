"""Kills random ranks of a run at random times, and compares the result with that of a run without kills.

`python -m tests.engines.killed_ranks` runs as many kills as given and prints the counts.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from attrs import define

from hexloop.adapters.journal import read
from hexloop.adapters.storage.local import LocalStorage
from hexloop.domain.checkpoints.reading import checkpoint_steps, verify

SCRIPT = Path(__file__).parent / "several" / "killed.py"
PATIENCE = 240
"""Seconds until the first save after a start, and until the end of a run that is no longer killed."""


@define
class Counts:
    """The number of killed processes, of kills during a save, and of runs."""

    kills: int = 0
    in_flight: int = 0
    runs: int = 0

    def reported(self) -> str:
        """Return the counts as text."""
        return (
            f"{self.kills} kills of random ranks in {self.runs} runs, {self.in_flight} of them with a save in flight; "
            "every run is bitwise equal to one without kills, and nothing is left behind."
        )


@define
class Launched:
    """A run in `folder` under `hexloop launch`, with unlimited restarts."""

    folder: Path
    processes: int
    steps: int
    width: int

    def start(self, restarts: int) -> subprocess.Popen[bytes]:
        """Launch it."""
        self.folder.mkdir(parents=True)
        command = [sys.executable, "-m", "hexloop", "launch", "--processes", str(self.processes)]
        command += ["--restarts", str(restarts), str(SCRIPT), str(self.folder), str(self.steps), str(self.width)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        with (self.folder / "output.txt").open("wb") as output:
            return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)

    def pids(self) -> list[int]:
        """Return the processes of the current attempt that have written their process id."""
        found = []
        for rank in range(self.processes):
            with suppress(FileNotFoundError, ValueError):
                found.append(int((self.folder / f"pid-{rank}").read_text()))
        return found

    def notes(self) -> list[dict[str, Any]]:
        """Return the journal's save entries."""
        journal = self.folder / "run" / "journal.jsonl"
        return [note for note in read(journal) if note["kind"] == "save"] if journal.exists() else []

    def kill_one(self, moments: random.Random, ended: subprocess.Popen[bytes]) -> bool | None:
        """Kill a rank after the next save has started. Return whether it was in flight; None if the run finished."""
        before, until = len(self.notes()), time.monotonic() + PATIENCE
        wanted = moments.choice((1, 1, 4, 8))
        # Processes that survive the last kill may still write to the journal before the new ones start.
        while len(self.notes()) < before + wanted or not self.pids():
            if ended.poll() is not None:
                return None
            assert time.monotonic() < until, self.output()
            time.sleep(0.002)
        time.sleep(moments.uniform(0, 0.05))
        victim = moments.choice(self.pids())
        phases = [note["phase"] for note in self.notes()]
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        for rank in range(self.processes):
            (self.folder / f"pid-{rank}").unlink(missing_ok=True)
        return phases[-1] not in ("published", "rotated")

    def end(self) -> dict[str, Any]:
        """Return the result, once it is complete."""
        storage = LocalStorage(self.folder / "run")
        assert [verify(storage, f"checkpoint-{step}").manifest.step for step in checkpoint_steps(storage)]
        left = [path.name for path in (self.folder / "run").iterdir() if path.name.startswith(".")]
        assert left == []
        found: dict[str, Any] = json.loads((self.folder / "end.json").read_text())
        return found

    def output(self) -> str:
        """Return the end of the output."""
        return (self.folder / "output.txt").read_text(errors="replace")[-3000:]


def check(folder: Path, kills: int, processes: int, seed: int, steps: int = 24, width: int = 400) -> Counts:
    """Kill `kills` times; each run must match one without kills."""
    moments, counts = random.Random(seed), Counts()
    expected = _whole(Launched(folder / "whole", processes, steps, width))
    while counts.kills < kills:
        launched = Launched(folder / f"killed-{counts.runs}", processes, steps, width)
        process = launched.start(restarts=1000)
        try:
            while counts.kills < kills:
                in_flight = launched.kill_one(moments, process)
                if in_flight is None:
                    break
                counts.kills += 1
                counts.in_flight += in_flight
            assert process.wait(PATIENCE) == 0, launched.output()
        finally:
            process.kill()
        counts.runs += 1
        assert launched.end() == expected
        for pid in launched.pids():
            assert not Path(f"/proc/{pid}").exists()
    return counts


def _whole(launched: Launched) -> dict[str, Any]:
    process = launched.start(restarts=0)
    try:
        assert process.wait(PATIENCE) == 0, launched.output()
    finally:
        process.kill()
    return launched.end()


def main() -> None:
    """Run the kills and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="killed-ranks-") as folder:
        print(check(Path(folder), options.kills, options.processes, options.seed).reported())


if __name__ == "__main__":
    main()
