"""Kills training runs at random instants, most of them within saves, and compares what they come to in the end.

Run as `python -m tests.engines.kills`, it kills as often as it is told to and prints what was counted.
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

from hexloop.adapters.journal.json_lines import read
from hexloop.adapters.storage.local import LocalStorage
from hexloop.domain.checkpoints.names import checkpoint_name, step_of
from hexloop.domain.checkpoints.reading import checkpoint_steps, verify
from hexloop.domain.checkpoints.selection import newest
from tests.engines.killed_run import Job, live
from tests.engines.preempted import CONTEXT

LIMIT = 2
"""How many checkpoints a run keeps."""

INSIDE = ("first_byte", "written")
"""The last phase of a save that a journal tells of where its process died between the first byte and the publish."""

IDENTITY = ("manifest.json", "run_state.json", "trainer_state.json", "training_args.json")
"""Files that tell runs apart, or hold readings of the clock."""

Notes = list[dict[str, Any]]


@define
class Counts:
    """What was done to how many runs.

    phases: in which phase of its last save each killed process was, by its journal. groups: how many were killed with
    their workers. staged: how often a checkpoint was left that was not whole, or was half removed.
    checkpoint_bytes: the size of the smallest one. started: the processes, killed or not. runs: how many were killed
    again and again, and all ended equal.
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
        """Kills between a save's first byte and its publish."""
        return sum(self.phases[phase] for phase in INSIDE)

    def told(self) -> str:
        phases = ", ".join(f"{phase} {count}" for phase, count in self.phases.most_common())
        return (
            f"{self.kills} kills of {self.runs} runs, {self.groups} of them with the workers; {self.inside} "
            f"({self.inside / max(self.kills, 1):.0%}) between a save's first byte and its publish; {self.staged} left "
            f"an unfinished folder. Checkpoints of {self.checkpoint_bytes / 1e6:.1f} MB. The last phase that the "
            f"journal told: {phases}."
        )


@frozen
class Aim:
    """When to kill: so many seconds after the beginning of the save `save` of a life, or of the life where it is 0.

    group: whether the workers die in the same instant.
    """

    save: int
    seconds: float
    group: bool


@frozen
class Pace:
    """What is usual, in seconds: from a save's first byte to its publish, and of a process to its third save."""

    save: float
    start: float

    def aim(self, moments: random.Random) -> Aim:
        """Three in four times the death is to come in a save, in the others at any time."""
        group = moments.random() < 0.2
        if moments.random() < 0.75:
            return Aim(moments.choice((1, 1, 2, 3)), moments.uniform(0, 1.1 * self.save), group)
        return Aim(0, moments.uniform(0, self.start), group)


class Tail:
    """What comes to a journal from now on; `saves` counts the saves that began to write."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, path.stat().st_size if path.exists() else 0
        self.before = len(read(path)) if path.exists() else 0
        self.saves = 0

    def look(self) -> None:
        """Count what came since the last time."""
        with suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._offset)
            lines, _, _ = file.read().rpartition(b"\n")
            self._offset += len(lines)
            self.saves += lines.count(b'"phase": "first_byte"')

    def notes(self) -> Notes:
        """All that came."""
        return list(read(self._path)[self.before :]) if self._path.exists() else []


class KilledRun:
    """A run in `folder`, which is killed as often as it takes; every death is followed by a look at what is left."""

    def __init__(self, folder: Path, job: Job, counts: Counts) -> None:
        self.folder, self.job, self.counts = folder, job, counts
        self.journal = folder / "run" / "journal.jsonl"
        self.began = 0.0
        self.temporary = tempfile.mkdtemp(prefix="kills-")  # sockets are made in it, whose paths must be short
        folder.mkdir(parents=True)

    def start(self) -> ForkServerProcess:
        self.began = time.time()
        process = CONTEXT.Process(target=live, args=(self.folder, self.job, self.temporary))
        process.start()
        assert process.pid is not None
        self.counts.started.append(process.pid)
        return process

    def finish(self) -> None:
        """Let it go to its end: nothing may be left of what was cut short."""
        process = self.start()
        process.join()
        assert process.exitcode == 0, self.errors()
        assert self.unfinished() == set()
        assert len(self.verified()) == LIMIT

    def kill(self, aim: Aim) -> bool:
        """One more life, up to the moment aimed at; whether it came before the run's end."""
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
        """What was published is there, what has a checkpoint's name is whole, what an earlier death left is gone."""
        phases = [str(note["phase"]) for note in notes if note["kind"] == "save"]
        self.counts.phases[phases[-1] if phases else "none"] += 1
        told = max((step_of(str(note["checkpoint"])) or 0 for note in self.published()), default=0)
        steps = self.verified()
        assert max(steps, default=0) >= told
        found = newest(LocalStorage(self.folder / "run"))
        assert (found.manifest.step if found is not None else 0) == max(steps, default=0)
        unfinished = self.unfinished()
        self.counts.staged += bool(unfinished)
        if "first_byte" in phases:
            assert left & unfinished == set()

    def published(self) -> Notes:
        """The notes of all saves that were said to be published."""
        notes = read(self.journal) if self.journal.exists() else []
        return [note for note in notes if note.get("phase") == "published"]

    def verified(self) -> list[int]:
        """The steps of all folders that have the name of a checkpoint, each read through."""
        storage = LocalStorage(self.folder / "run")
        if not (self.folder / "run").exists():
            return []
        manifests = [verify(storage, checkpoint_name(step)).manifest for step in checkpoint_steps(storage)]
        sizes = [sum(stored.size for stored in manifest.files.values()) for manifest in manifests]
        self.counts.checkpoint_bytes = min([self.counts.checkpoint_bytes, *sizes])
        return [manifest.step for manifest in manifests]

    def unfinished(self) -> set[str]:
        """What is in the folder beside checkpoints and what belongs there."""
        usual = {"journal.jsonl", "finished.json"}
        names = {path.name for path in (self.folder / "run").glob("*")}
        return {name for name in names - usual if step_of(name) is None}

    def end(self) -> dict[str, Any]:
        """What the run came to: the model's weights and the history, and every file of state in the last checkpoint."""
        checkpoint = self.folder / "run" / checkpoint_name(self.job.steps)
        files = {
            path.name: hashlib.blake2b(path.read_bytes()).hexdigest()
            for path in sorted(checkpoint.iterdir())
            if path.name not in IDENTITY
        }
        state = json.loads((checkpoint / "run_state.json").read_text())
        kept = {name: state[name] for name in state if name not in ("run", "parent_checkpoint", "history")}
        return {**json.loads((self.folder / "end.json").read_text()), "state": kept, **files}

    def pace(self) -> Pace:
        """How long things take in this run, which was not killed."""
        notes: Notes = list(read(self.journal))
        times = {(note.get("phase"), note.get("checkpoint")): float(note["time"]) for note in notes}
        saves = [
            times["published", name] - began for (phase, name), began in times.items() if phase == "first_byte"
        ]  # fmt: skip
        third = times["first_byte", checkpoint_name(6)]
        return Pace(statistics.median(saves), third - self.began)

    def clear(self) -> None:
        """Remove all of it."""
        shutil.rmtree(self.folder)
        shutil.rmtree(self.temporary, ignore_errors=True)  # workers that do not know yet may still put something there

    def errors(self) -> str:
        """What its processes printed in their last moments."""
        return (self.folder / "errors.txt").read_text()


def strike(process: ForkServerProcess, group: bool) -> None:
    """Kill a process, with its workers where the group is to die."""
    assert process.pid is not None
    if group:
        os.killpg(process.pid, signal.SIGKILL)
    else:
        os.kill(process.pid, signal.SIGKILL)


def warm_up() -> None:
    """Let the fork server import what the runs need, so that the pace of the first has that not in it."""
    process = CONTEXT.Process(target=os.getpid)
    process.start()
    process.join()


def wait_for_the_end_of(groups: list[int], seconds: float = 120) -> None:
    """Workers look every few seconds whether anybody is there to work for."""
    deadline = time.monotonic() + seconds
    while left := living(groups):
        assert time.monotonic() < deadline, f"the processes {left} outlive their run"
        time.sleep(0.2)


def living(groups: list[int]) -> list[int]:
    """The processes of these groups that still run."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, group = status.read_text().rpartition(")")[2].split()[:3]
            if int(group) in groups and state not in "ZX":
                found.append(int(status.parent.name))
    return found


def kill_runs(folder: Path, job: Job, kills: int, each: int, tell: Any = lambda _: None) -> Counts:
    """Kill runs, each up to `each` times, `kills` times in all; every one must end like an uninterrupted run."""
    counts = Counts()  # the first death of each is in its first save, when there is no checkpoint yet
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
        assert [name for name in expected if came_to[name] != expected[name]] == []
        counts.runs += 1
        tell(f"a save takes {pace.save:.3f} s, three with their start {pace.start:.2f} s; {counts.told()}")
        whole.clear()
        killed.clear()
    wait_for_the_end_of(counts.started)
    return counts


def main() -> None:
    """Kill, and fail where less than half of the kills fell inside saves, or a checkpoint is smaller than asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="how many processes are killed (default: 200)")
    parser.add_argument("--each", type=int, default=25, help="how often the same run is killed at most (default: 25)")
    parser.add_argument("--megabytes", type=int, default=52, help="the least size of a checkpoint (default: 52)")
    parser.add_argument("--steps", type=int, default=80, help="optimizer steps of a run (default: 80)")
    parser.add_argument("--seed", type=int, default=0, help="where the random instants begin (default: 0)")
    parser.add_argument("--folder", type=Path, help="where to write, on a real disk (default: a temporary folder)")
    args = parser.parse_args()
    warnings.simplefilter("error")
    if args.folder is not None:
        args.folder.mkdir(parents=True, exist_ok=True)
    size = args.megabytes * 10**6
    job = Job(Job.width_for(size), args.steps, args.seed)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        counts = kill_runs(Path(folder), job, args.kills, args.each, lambda line: print(line, flush=True))
    assert counts.checkpoint_bytes >= size
    assert 2 * counts.inside >= counts.kills
    print(f"All {counts.runs} runs ended bit for bit as those that nobody killed.")


if __name__ == "__main__":
    main()
