"""Cost of a training step without a framework. Run as `python tests/bench/domain_loop.py [profile]`; prints a table.

The production generator with a least-squares learner, batches of 8 rows in sequential order, a linear schedule, a log
every 500 steps, and in-memory adapters; every event is consumed.
"""

from __future__ import annotations

import cProfile
import pstats
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from statistics import median
from typing import Any

from hexloop.adapters.contents.checkpoint import CheckpointContents
from hexloop.domain.checkpoints.commit import CheckpointPolicy
from hexloop.domain.checkpoints.store import CheckpointStore
from hexloop.domain.events import StepEnded
from hexloop.domain.loop import train
from hexloop.domain.triggers import Interval, Trigger, Triggers
from hexloop.testing import MemoryStorage, least_squares, simulated_run

ROWS = [((index / 800,), 2 * index / 800 + 1) for index in range(800)]
GOAL = 150_000
"""Return steps per second."""


def microseconds_a_step(steps: int, save: bool = False) -> float:
    """Return the time per step of a whole run, optionally with a checkpoint in memory every 500 steps."""
    trainable = least_squares()
    parts: dict[str, Any] = {}
    if save:
        every = Trigger(Interval.STEPS, 500)
        contents = CheckpointContents({"model": trainable.model, "optimizer": trainable.optimizer})
        parts = {
            "triggers": Triggers(log=every, save=every),
            "checkpoints": CheckpointStore(MemoryStorage(), contents, CheckpointPolicy(2)),
        }
    run = simulated_run(ROWS, trainable=trainable, max_steps=steps, **parts)
    begin = time.perf_counter()
    for _ in train(run):
        pass
    elapsed = time.perf_counter() - begin
    assert run.state.step == steps
    return 1e6 * elapsed / steps


def tenths(steps: int, blocks: int = 200) -> Iterator[tuple[float, float]]:
    """Return the median and the minimum time of a step in microseconds, over short blocks in each tenth of a run."""
    length = steps // blocks
    times = []
    with closing(train(simulated_run(ROWS, max_steps=steps))) as events:
        begin, done = time.perf_counter(), 0
        for event in events:
            if isinstance(event, StepEnded):
                done += 1
                if done == length:
                    times.append(1e6 * (time.perf_counter() - begin) / length)
                    begin, done = time.perf_counter(), 0
    for first in range(0, blocks, blocks // 10):
        tenth = times[first : first + blocks // 10]
        yield median(tenth), min(tenth)


def main() -> None:
    if sys.argv[1:] == ["profile"]:
        profile = cProfile.Profile()
        profile.runcall(microseconds_a_step, 100_000)
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        return
    print(f"{'':<42}{'microseconds':>14}{'steps/s':>12}   (goal {GOAL:,} steps/s)")
    for name, save in (("log every 500 steps", False), ("log and save every 500 steps", True)):
        times = sorted(microseconds_a_step(10_000, save) for _ in range(41))
        for kind, cost in (("median", median(times)), ("fastest", times[0])):
            print(f"{f'{name}, {kind} of {len(times)} runs':<42}{cost:>14.2f}{1e6 / cost:>12,.0f}")
    steps = 1_000_000
    print(f"\nmicroseconds a step in each tenth of {steps:,} steps (median and fastest of 20 blocks)")
    for number, (middle, fastest) in enumerate(tenths(steps), 1):
        print(f"{number:>4}{middle:>10.2f}{fastest:>10.2f}")


if __name__ == "__main__":
    main()
