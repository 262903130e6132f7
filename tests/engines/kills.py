"""Kills training runs at random times, most of them during saves, and compares their results with uninterrupted runs.

`python -m tests.engines.kills` runs as many kills as given and prints the counts. With `--launcher torchrun`, it kills
ranks of runs of four processes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import statistics
import tempfile
import time
import warnings
from collections import Counter
from contextlib import suppress
from itertools import chain, count
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from attrs import define, evolve, field, frozen

from hexloop.adapters.journal import read
from hexloop.adapters.storage.local import LocalStorage
from hexloop.domain.checkpoints.manifest import checkpoint_name, step_of
from hexloop.domain.checkpoints.reading import checkpoint_steps, verify
from hexloop.domain.checkpoints.selection import newest
from hexloop.domain.run_folder import FINISHED, JOURNAL, OWN, own_name, system_file
from tests.end_to_end.small.documents import documents_of
from tests.engines.killed_ranks import check_killed_ranks
from tests.engines.killed_run import Job, live
from tests.engines.processes import CONTEXT

LIMIT = 2
"""The number of checkpoints that a run keeps."""

INSIDE = ("first_byte", "written")
"""The last journal phase of a save that was killed between its first byte and its publication."""

IDENTITY = ("manifest.json", "run_state.json", "trainer_state.json", "training_args.json")
"""Files that identify a run, or contain clock readings."""

Notes = list[dict[str, Any]]


@define
class Counts:
    """Counts of all runs.

    phases: the last journal phase of each killed process. groups: kills that included the workers. staged: kills that
    left an incomplete or partly removed checkpoint. checkpoint_bytes: the size of the smallest checkpoint. started: all
    processes, killed or not. runs: runs that were killed repeatedly and matched an uninterrupted one.
    """

    phases: Counter[str] = field(factory=Counter)
    groups: int = 0
    staged: int = 0
    checkpoint_bytes: int = 1 << 62
    started: list[int] = field(factory=list)
    runs: int = 0

    @property
    def kills(self) -> int:
        return self.phases.total()

    @property
    def inside(self) -> int:
        """Kills between a save's first byte and its publication."""
        return sum(self.phases[phase] for phase in INSIDE)

    def reported(self) -> str:
        phases = ", ".join(f"{phase} {count}" for phase, count in self.phases.most_common())
        return (
            f"{self.kills} kills of {self.runs} runs, {self.groups} of them with the workers; {self.inside} "
            f"({self.inside / max(self.kills, 1):.0%}) between a save's first byte and its publish; {self.staged} left "
            f"an unfinished folder. Checkpoints of {self.checkpoint_bytes / 1e6:.1f} MB. The last phase that the "
            f"journal reported: {phases}."
        )


@frozen
class Aim:
    """When to kill: `seconds` after the start of save `save` of a process, or after its own start if `save` is 0.

    group: whether the workers are killed at the same time.
    """

    save: int
    seconds: float
    group: bool


@frozen
class Pace:
    """Typical times in seconds: from a save's first byte to its publication, and from the start to the third save."""

    save: float
    start: float

    def aim(self, moments: random.Random) -> Aim:
        """Aim three of four kills at a save, and the others at any time."""
        group = moments.random() < 0.2
        if moments.random() < 0.75:
            return Aim(moments.choice((1, 1, 2, 3)), moments.uniform(0, 1.1 * self.save), group)
        return Aim(0, moments.uniform(0, self.start), group)


class Tail:
    """Reads new journal entries; `saves` counts the saves that have started to write."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, path.stat().st_size if path.exists() else 0
        self.before = len(read(path)) if path.exists() else 0
        self.saves = 0

    def look(self) -> None:
        """Read the entries since the last call."""
        with suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._offset)
            lines, _, _ = file.read().rpartition(b"\n")
            self._offset += len(lines)
            self.saves += lines.count(b'"phase": "first_byte"')

    def notes(self) -> Notes:
        """Return all entries read."""
        return list(read(self._path)[self.before :]) if self._path.exists() else []


class KilledRun:
    """A run in `folder` that is killed repeatedly; the files are checked after every kill."""

    def __init__(self, folder: Path, job: Job, counts: Counts) -> None:
        self.folder, self.job, self.counts = folder, job, counts
        self.journal = folder / "run" / ".hexloop/journal.jsonl"
        self.began = 0.0
        self.temporary = tempfile.mkdtemp(prefix="kills-")  # sockets are created in it, and their paths must be short
        folder.mkdir(parents=True)

    def start(self) -> ForkServerProcess:
        self.began = time.time()
        process = CONTEXT.Process(target=live, args=(self.folder, self.job, self.temporary))
        process.start()
        assert process.pid is not None
        self.counts.started.append(process.pid)
        return process

    def finish(self) -> None:
        """Run to the end; no files of interrupted saves may remain."""
        process = self.start()
        process.join()
        assert process.exitcode == 0, self.errors()
        assert self.unfinished() == set()
        assert len(self.verified()) == LIMIT

    def kill(self, aim: Aim) -> bool:
        """Start a process and kill it as aimed. Return whether the kill came before the end of the run."""
        left, tail = self.unfinished(), Tail(self.journal)
        process = self.start()
        began = None if aim.save else time.monotonic()
        while process.is_alive():
            tail.look()
            if began is None and tail.saves >= aim.save:
                began = time.monotonic()
            if began is not None and time.monotonic() >= began + aim.seconds:
                with suppress(ProcessLookupError):
                    strike(process, aim.group)
                break
            time.sleep(0.001)
        process.join()
        if process.exitcode == 0:
            return False
        assert process.exitcode == -signal.SIGKILL, self.errors()
        self.check_killed(tail.notes(), left)
        self.counts.groups += aim.group
        return True

    def check_killed(self, notes: Notes, left: set[str]) -> None:
        """Published checkpoints exist, folders named as checkpoints are complete, and earlier leftovers are gone."""
        phases = [str(note["phase"]) for note in notes if note["kind"] == "save"]
        self.counts.phases[phases[-1] if phases else "none"] += 1
        reported = max((step_of(str(note["checkpoint"])) or 0 for note in self.published()), default=0)
        steps = self.verified()
        assert max(steps, default=0) >= reported
        found = newest(LocalStorage(self.folder / "run"))
        assert (found.manifest.step if found is not None else 0) == max(steps, default=0)
        unfinished = self.unfinished()
        self.counts.staged += bool(unfinished)
        if "first_byte" in phases:
            assert left & unfinished == set()

    def published(self) -> Notes:
        """Return the journal entries of all published saves."""
        notes = read(self.journal) if self.journal.exists() else []
        return [note for note in notes if note.get("phase") == "published"]

    def verified(self) -> list[int]:
        """Return the steps of all folders named as checkpoints, after verifying each."""
        storage = LocalStorage(self.folder / "run")
        if not (self.folder / "run").exists():
            return []
        manifests = [verify(storage, checkpoint_name(step)).manifest for step in checkpoint_steps(storage)]
        sizes = [sum(stored.size for stored in manifest.files.values()) for manifest in manifests]
        self.counts.checkpoint_bytes = min([self.counts.checkpoint_bytes, *sizes])
        return [manifest.step for manifest in manifests]

    def unfinished(self) -> set[str]:
        """Return unexpected names in the folder."""
        usual = {OWN, *map(own_name, (JOURNAL, FINISHED)), Path(system_file(0)).name}
        run = self.folder / "run"
        names = {path.name for path in [*run.glob("*"), *(run / OWN).glob("*")]}
        return {name for name in names - usual if step_of(name) is None}

    def end(self) -> dict[str, Any]:
        """Return the result: model weights, history, and every state file of the last checkpoint."""
        checkpoint = self.folder / "run" / checkpoint_name(self.job.steps)
        files = {
            path.name: hashlib.blake2b(path.read_bytes()).hexdigest()
            for path in sorted(checkpoint.iterdir())
            if path.name not in IDENTITY
        }
        documents = documents_of(checkpoint)
        state = documents.pop("run_state")
        kept = {name: state[name] for name in state if name not in ("run", "parent_checkpoint", "history")}
        return {**json.loads((self.folder / "end.json").read_text()), "state": kept, **documents, **files}

    def pace(self) -> Pace:
        """Return the typical times of this run, which was not killed."""
        notes: Notes = list(read(self.journal))
        times = {(note.get("phase"), note.get("checkpoint")): float(note["time"]) for note in notes}
        saves = [
            times["published", name] - began for (phase, name), began in times.items() if phase == "first_byte"
        ]  # fmt: skip
        third = times["first_byte", checkpoint_name(6)]
        return Pace(statistics.median(saves), third - self.began)

    def clear(self) -> None:
        """Remove all files."""
        shutil.rmtree(self.folder)
        shutil.rmtree(self.temporary, ignore_errors=True)  # workers that have not noticed yet may still create files

    def errors(self) -> str:
        """Return the standard error of its processes."""
        return (self.folder / "errors.txt").read_text()


def strike(process: ForkServerProcess, group: bool) -> None:
    """Kill a process, and its workers if `group` is set."""
    assert process.pid is not None
    if group:
        os.killpg(process.pid, signal.SIGKILL)
    else:
        os.kill(process.pid, signal.SIGKILL)


def warm_up() -> None:
    """Let the fork server import what the runs need, so that imports do not count in the first run's times."""
    process = CONTEXT.Process(target=os.getpid)
    process.start()
    process.join()


def wait_for_the_end_of(groups: list[int], seconds: float = 120) -> None:
    """Workers check every few seconds whether their parent is alive."""
    deadline = time.monotonic() + seconds
    while left := living(groups):
        assert time.monotonic() < deadline, f"the processes {left} outlive their run"
        time.sleep(0.2)


def living(groups: list[int]) -> list[int]:
    """Return the running processes of these groups."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, group = status.read_text().rpartition(")")[2].split()[:3]
            if int(group) in groups and state not in "ZX":
                found.append(int(status.parent.name))
    return found


def kill_runs(folder: Path, job: Job, kills: int, each: int, tell: Any = lambda _: None) -> Counts:
    """Kill runs `kills` times in all, each up to `each` times; every run must match an uninterrupted one."""
    counts = Counts()  # the first kill of each comes in its first save, when no checkpoint exists
    warm_up()
    while counts.kills < kills:
        job = evolve(job, seed=job.seed + 1)
        moments = random.Random(job.seed)
        whole = KilledRun(folder / f"whole-{job.seed}", job, counts)
        whole.finish()
        pace = whole.pace()
        killed = KilledRun(folder / f"killed-{job.seed}", job, counts)
        last = min(kills, counts.kills + each)
        aims = chain([Aim(1, moments.uniform(0, pace.save), group=False)], (pace.aim(moments) for _ in count()))
        while counts.kills < last and killed.kill(next(aims)):
            pass
        killed.finish()
        expected, came_to = whole.end(), killed.end()
        assert came_to.keys() == expected.keys()
        different = {name: (came_to[name], each) for name, each in expected.items() if came_to[name] != each}
        assert not different, different
        counts.runs += 1
        tell(f"a save takes {pace.save:.3f} s, three with their start {pace.start:.2f} s; {counts.reported()}")
        whole.clear()
        killed.clear()
    wait_for_the_end_of(counts.started)
    return counts


LAUNCHERS = {"hexloop": ("hexloop",), "torchrun": ("torchrun", "torchrun --standalone")}
"""The kinds of launch of each launcher."""


def shown(line: str) -> None:
    """Print a line of progress, with the time, at once."""
    print(time.strftime("%H:%M:%S"), line, flush=True)


def main() -> None:
    """Run the kills. Fails if less than half of them fell inside saves, or a checkpoint is too small."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="how many processes are killed (default: 200)")
    parser.add_argument("--each", type=int, default=25, help="how often the same run is killed at most (default: 25)")
    parser.add_argument("--megabytes", type=int, default=52, help="the least size of a checkpoint (default: 52)")
    parser.add_argument("--steps", type=int, default=80, help="optimizer steps of a run (default: 80)")
    parser.add_argument("--seed", type=int, default=0, help="where the random instants begin (default: 0)")
    parser.add_argument("--folder", type=Path, help="where to write, on a real disk (default: a temporary folder)")
    parser.add_argument("--launcher", choices=LAUNCHERS, help="what starts several ranks (default: one process alone)")
    parser.add_argument("--ranks", type=int, default=4, help="how many ranks it starts (default: 4)")
    args = parser.parse_args()
    warnings.simplefilter("error")
    if args.folder is not None:
        args.folder.mkdir(parents=True, exist_ok=True)
    if args.launcher is not None:
        with tempfile.TemporaryDirectory(dir=args.folder, prefix="ranks-") as folder:
            kinds = LAUNCHERS[args.launcher]
            found = check_killed_ranks(Path(folder), args.kills, args.ranks, args.seed, kinds, shown)
        print(found.reported())
        return
    size = args.megabytes * 10**6
    job = Job(Job.width_for(size), args.steps, args.seed)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        counts = kill_runs(Path(folder), job, args.kills, args.each, shown)
    assert counts.checkpoint_bytes >= size
    assert 2 * counts.inside >= counts.kills
    print(f"All {counts.runs} runs are bitwise equal to runs without kills.")


if __name__ == "__main__":
    main()
