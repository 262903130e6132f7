"""Cost per step that a library adds to a hand-written loop. Prints a table for each workload.

Each figure is the slope between a short and a long run in a new process. Rounds are interleaved: each runs every
library once, in a rotating order, and each library is compared with the hand-written loop of its round.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]
LIBRARIES = ("bare", "hexloop", "hexloop run", "Lightning Fabric", "accelerate", "Lightning Trainer", "transformers")
GOALS = {"TinyMLP": (1.02, 1.00), "GPT": (1.01, float("inf"))}
"""Limits for hexloop: the median ratio, and the lower end of its interval."""

RESAMPLES = 10_000


def measure(library: str, workload: str, core: str) -> tuple[float, float]:
    """Wall and CPU microseconds per step."""
    command = [sys.executable, "-m", "tests.bench.one_run", library, workload, core]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{library} on {workload} failed:\n{done.stderr[-2000:]}")
    wall, processor = json.loads(done.stdout.splitlines()[-1])
    return wall, processor


def interval(ratios: Sequence[float], share: float = 0.95) -> tuple[float, float]:
    """Return the bootstrap interval of the median."""
    source = random.Random(0)
    medians = sorted(median(source.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    tail = (1 - share) / 2
    return medians[int(tail * RESAMPLES)], medians[int((1 - tail) * RESAMPLES) - 1]


def spread(values: Sequence[float]) -> float:
    """Return half the interquartile range, relative to the median: the noise of a measurement."""
    ordered = sorted(values)
    quarter = len(ordered) // 4
    return (ordered[-1 - quarter] - ordered[quarter]) / 2 / median(ordered)


def compare(workload: str, libraries: Sequence[str], rounds: int, core: str) -> None:
    """Measure, and print the table."""
    found: dict[str, list[tuple[float, float]]] = {library: [] for library in libraries}
    for turn in range(rounds):
        order = [*libraries[turn % len(libraries) :], *libraries[: turn % len(libraries)]]
        for library in order if turn % 2 == 0 else reversed(order):
            found[library].append(measure(library, workload, core))
        print(f"{workload}: round {turn + 1} of {rounds}", file=sys.stderr)
    for index, clock in enumerate(("wall", "processor")):
        print(f"\n{workload}, {clock} time, {rounds} rounds")
        print(f"{'':<20}{'us a step':>10}{'spread':>9}{'ratio':>8}   95 % interval{'us more':>10}")
        bare = [each[index] for each in found["bare"]]
        for library in libraries:
            own = [each[index] for each in found[library]]
            ratios = [one / other for one, other in zip(own, bare, strict=True)]
            low, high = interval(ratios)
            more = median(one - other for one, other in zip(own, bare, strict=True))
            print(
                f"{library:<20}{median(own):>10.1f}{spread(own):>9.1%}{median(ratios):>8.3f}"
                f"   {low:.3f} to {high:.3f}{more:>+10.1f}"
            )
        for library in ("hexloop", "hexloop run"):
            if library in libraries:
                print(f"{library}: {verdict(workload, found, library, index)}")


def verdict(workload: str, found: dict[str, list[tuple[float, float]]], library: str, index: int) -> str:
    """Return whether hexloop, called by its own names or during a takeover, is within its limits."""
    ratios = [one[index] / other[index] for one, other in zip(found[library], found["bare"], strict=True)]
    at_most, low_at_most = GOALS[workload]
    kept = median(ratios) <= at_most and interval(ratios)[0] <= low_at_most
    return f"goal: ratio at most {at_most}, interval from at most {low_at_most}: {'kept' if kept else 'MISSED'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--workloads", nargs="+", default=list(GOALS), choices=list(GOALS))
    parser.add_argument("--libraries", nargs="+", default=list(LIBRARIES), choices=LIBRARIES)
    parser.add_argument("--core", default="", help="pin every process to this processor core")
    options = parser.parse_args()
    for workload in options.workloads:
        compare(
            workload, ["bare", *(each for each in options.libraries if each != "bare")], options.rounds, options.core
        )


if __name__ == "__main__":
    main()
