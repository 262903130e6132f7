"""Processes that are killed while they save to a real disk.

Run as a program, this file is such a process: it resumes from the newest checkpoint and saves at every step.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path

import pytest

from hexloop.adapters.contents.checkpoint import CheckpointContents
from hexloop.adapters.storage.local import LocalStorage
from hexloop.domain.checkpoints.commit import CheckpointPolicy
from hexloop.domain.checkpoints.selection import newest
from hexloop.domain.checkpoints.store import CheckpointStore
from hexloop.domain.events import CheckpointPublished
from hexloop.domain.state import RunState
from hexloop.ports.state import Part

SIZE, TENSORS, LIMIT = 1 << 19, 6, 2


class Weights:
    """Tensors whose every byte encodes the step at which it was written; an Exportable."""

    def __init__(self) -> None:
        self.step = 0

    def export(self) -> Iterator[Part]:
        """Six tensors of half a MiB."""
        data = memoryview(self.step.to_bytes(8, "little") * (SIZE // 8))
        for number in range(TENSORS):
            yield Part(f"layer.{number}", "I64", (SIZE // 8,), 0, SIZE // 8, lambda: data)

    def load(self, parts: Iterable[Part]) -> None:
        """Take the step from the bytes, which must all agree."""
        (data,) = {bytes(part.read()) for part in parts}
        assert data == data[:8] * (SIZE // 8)
        self.step = int.from_bytes(data[:8], "little")


def make_store(folder: str) -> tuple[CheckpointStore, list[Weights]]:
    """Return a store whose weights and moments belong to the same step."""
    kept = [Weights(), Weights()]
    contents = CheckpointContents({"model": kept[0], "optimizer": kept[1]})
    return CheckpointStore(LocalStorage(folder), contents, CheckpointPolicy(LIMIT)), kept


def save_again_and_again(folder: str, saves: int) -> None:
    """Save at every step and print each; a negative number of saves never ends."""
    store, kept = make_store(folder)
    state = store.resume() or RunState(run="killed")
    print("started", flush=True)
    for _ in count() if saves < 0 else range(saves):
        state.step += 1
        state.best_step = state.step - state.step % 10
        for weights in kept:
            weights.step = state.step
        for event in store.save(state):
            if isinstance(event, CheckpointPublished):
                print(event.step, flush=True)


def killed_after(folder: Path, seconds: float) -> int:
    """Start a process, kill it after `seconds`, and return the last step that it reported as saved, or 0."""
    with subprocess.Popen([sys.executable, __file__, str(folder), "-1"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        time.sleep(seconds)
        process.kill()
        reported = process.stdout.read().split("\n")[:-1]  # the last line may be partial
    assert process.returncode == -signal.SIGKILL
    return int(reported[-1]) if reported else 0


def unfinished(folder: Path) -> list[Path]:
    """Return what remains of interrupted saves and removals."""
    return list(folder.glob(".hexloop/.unfinished-*"))


def kill_and_resume(folder: Path, kills: int, seed: int) -> int:
    """Kill `kills` processes, one after the other. Return how many died during a save or removal."""
    moments, reported, cut_short = random.Random(seed), 0, 0
    for _ in range(kills):
        reported = killed_after(folder, moments.uniform(0, 0.3)) or reported
        cut_short += bool(unfinished(folder))
        found = newest(LocalStorage(folder))
        if found is None:
            assert reported == 0
            continue
        assert found.manifest.step >= reported
        store, kept = make_store(str(folder))
        state = store.resume()
        assert state is not None
        assert state.step >= found.manifest.step  # a complete checkpoint that was not renamed yet is used
        assert [weights.step for weights in kept] == [state.step] * 2
    return cut_short


def check_the_end(folder: Path) -> None:
    """A process that is not killed continues, and cleans up after the killed ones."""
    subprocess.run([sys.executable, __file__, str(folder), "2"], check=True, stdout=subprocess.DEVNULL)
    assert unfinished(folder) == []
    assert len(list(folder.glob("[!.]*"))) == LIMIT


def test_a_killed_process_loses_nothing_reported_as_saved(tmp_path: Path) -> None:
    """After each of a few kills the newest checkpoint is complete, and at least as new as the last one published."""
    assert kill_and_resume(tmp_path, kills=6, seed=0) > 0
    check_the_end(tmp_path)


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(1, 5))
def test_many_kills_lose_nothing_reported_as_saved(tmp_path: Path, seed: int) -> None:
    """The same after many kills, most of them during a save or a removal."""
    assert kill_and_resume(tmp_path, kills=25, seed=seed) > 12
    check_the_end(tmp_path)


if __name__ == "__main__":
    save_again_and_again(sys.argv[1], int(sys.argv[2]))
