"""What a library adds to a step of two processes, against the engine itself in a loop that is written by hand.

Run as `python -m tests.bench.two_processes [--rounds N] [--engine fsdp2]`; by itself the engine is
DistributedDataParallel. A round is a pair of fresh gloo processes with a thread each, in which the libraries take
turns, in an order that changes with the turn. A step is what passes between two forward passes, and a turn's figure the
mean of the middle four fifths of its steps, as a busy machine makes some of them many times as long. Each is compared
with the hand-written loop in the same turn: how fast a pair of processes is depends on where it came to lie on a small
machine, and on the minute, by more than what is measured here.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from tests.bench.engine_loops import loops
from tests.bench.libraries import by_accelerate, by_reference, silence, trainer_arguments
from tests.bench.workloads import BATCH, RATE, WORKLOADS, collate
from tests.engines.processes import free_port

ROOT = Path(__file__).parents[2]
KEPT = {"MALLOC_TRIM_THRESHOLD_": "1073741824", "MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TOP_PAD_": "67108864"}
"""Has glibc keep what is freed. By itself it gives some of it back at every step, or none: that hangs on how the heap
came to lie, changes from run to run by a thousand page faults a step of GPT, and costs more than what is measured."""
GOAL = 1.02
TURNS = 6


def by_hand(model: nn.Module, dataset: Any, steps: int) -> None:
    """The reference loop, around DistributedDataParallel."""
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=RATE, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1.0 - step / steps))
    loader = DataLoader(dataset, batch_size=BATCH, sampler=DistributedSampler(dataset), collate_fn=collate)
    total, wrapped_parameters = torch.zeros(()), list(wrapped.parameters())
    wrapped.train()  # type: ignore[no-untyped-call]
    for done, batch in enumerate(loader, 1):
        loss = wrapped(**batch)["loss"]
        loss.backward()
        nn.utils.clip_grad_norm_(wrapped_parameters, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        total += loss.detach()
        if done == steps:
            return


def by_hexloop(model: nn.Module, dataset: Any, steps: int, **more: Any) -> None:
    """The Trainer of hexloop, with its default callbacks."""
    from hexloop import Trainer, TrainingArguments

    folder = os.path.join(tempfile.gettempdir(), f"hexloop-bench-{os.environ['MASTER_PORT']}")  # the same for both
    arguments = TrainingArguments(**trainer_arguments(folder, steps), **more)
    Trainer(model, arguments, data_collator=collate, train_dataset=dataset).train()


LIBRARIES: dict[str, Callable[[nn.Module, Any, int], None]] = {
    "by hand": by_hand,
    "hexloop": lambda *job: by_hexloop(*job, ddp_find_unused_parameters=False),
    "hexloop, equal weights": lambda *job: by_hexloop(
        *job, ddp_find_unused_parameters=False, loss_weighting="reference"
    ),
    "hexloop, looking": by_hexloop,
    "accelerate": by_accelerate,
    "reference Trainer": by_reference,
}
"""`equal weights`: the mean of the processes' means, as by hand, where hexloop by itself adds up the items of all.
`looking`: for parameters without gradient, as hexloop and the reference Trainer do by default."""


ENGINES = ("ddp", "fsdp1", "fsdp2", "zero0", "zero1", "zero2", "zero3")


def loops_of(engine: str) -> dict[str, Callable[[nn.Module, Any, int], None]]:
    """What there is to compare, by name."""
    return LIBRARIES if engine == "ddp" else loops(engine)


def in_turn(libraries: Sequence[str], turn: int) -> list[str]:
    """Each of them comes first in its turn, forwards and then backwards."""
    first = turn // 2 % len(libraries)
    order = [*libraries[first:], *libraries[:first]]
    return order if turn % 2 == 0 else order[::-1]


def middle_mean(values: Sequence[float]) -> float:
    """The mean without the least tenth and the most tenth."""
    cut = len(values) // 10
    return fmean(sorted(values)[cut : len(values) - cut])


def one_rank(workload: str, engine: str, libraries: Sequence[str]) -> None:
    """Prints this rank's wall microseconds a step, for each library in turn."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    lengths, compared = WORKLOADS[workload], loops_of(engine)

    def timed(library: str, steps: int) -> list[float]:
        model, dataset = lengths.model(), lengths.dataset((steps + 1) * BATCH * 2)
        begun: list[float] = []
        model.register_forward_pre_hook(lambda *_: begun.append(time.perf_counter()))
        gc.collect()
        dist.barrier()
        compared[library](model, dataset, steps)
        settled = begun[max(2, lengths.short // 4) :]
        return [1e6 * (second - first) for first, second in pairwise(settled)]

    found: dict[str, list[float]] = {library: [] for library in libraries}
    with silence():
        for library in libraries:
            timed(library, max(4, lengths.short // 4))
        for turn in range(TURNS):
            for library in in_turn(libraries, turn):
                found[library].append(middle_mean(timed(library, lengths.long // 5)))
    print(json.dumps(found), flush=True)
    os._exit(0)


def measure(workload: str, engine: str, libraries: Sequence[str]) -> dict[str, list[float]]:
    """Microseconds a step of two processes, the slower one's, for each library in each turn."""
    port = str(free_port())
    ranks = []
    for rank in range(2):
        environment = {
            **os.environ, **KEPT, "OMP_NUM_THREADS": "1", "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "ACCELERATE_USE_CPU": "true", "LOCAL_WORLD_SIZE": "2",
        }  # fmt: skip
        command = [sys.executable, "-m", "tests.bench.two_processes", "--one", workload, engine, *libraries]
        ranks.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True))
    told = [json.loads(rank.communicate(timeout=1200)[0].splitlines()[-1]) for rank in ranks]
    shutil.rmtree(os.path.join(tempfile.gettempdir(), f"hexloop-bench-{port}"), ignore_errors=True)
    return {library: list(map(max, *(each[library] for each in told))) for library in libraries}


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workload", default="GPT", choices=list(WORKLOADS))
    parser.add_argument("--engine", default="ddp", choices=ENGINES)
    parser.add_argument("--libraries", nargs="+", choices=list(LIBRARIES))
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one_rank(options.one[0], options.one[1], options.one[2:])
    libraries = ["by hand", *(each for each in options.libraries or loops_of(options.engine) if each != "by hand")]
    found: dict[str, list[float]] = {library: [] for library in libraries}
    for _ in range(options.rounds):
        for library, microseconds in measure(options.workload, options.engine, libraries).items():
            found[library] += microseconds
    goal = f"at most {GOAL}" if options.engine == "ddp" else "below accelerate"
    print(f"{options.workload}, two processes, {options.engine}, {options.rounds} rounds; goal for hexloop: {goal}")
    print(f"{'':<24}{'us a step':>11}{'ratio':>8}{'quartiles':>16}")
    for library, times in found.items():
        ratios = [one / other for one, other in zip(times, found["by hand"], strict=True)]
        low, middle, high = quantiles(ratios, n=4)
        print(f"{library:<24}{median(times):>11.0f}{middle:>8.3f}{low:>8.3f}{high:>8.3f}")


if __name__ == "__main__":
    main()
