"""Cost per step that a library adds to a hand-written loop around an engine, in two processes.

Run as `python -m tests.bench.two_processes [--rounds N] [--engine fsdp2]`; the default engine is
DistributedDataParallel. A round is a pair of new gloo processes with one core each. All libraries train side by side in
them, in short turns and a changing order. A step is the time between two forward passes; the first third of a turn,
in which caches are cold, is excluded. A library's figure in a round is the first decile of its steps: the speed of a
pair of processes varies with the time and with the layout of its memory by more than the difference measured here.
Ratios are computed within a round; their median, minimum and maximum are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from functools import partial
from itertools import chain, count
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from tests.bench.engine_loops import Loop, loops
from tests.bench.libraries import by_accelerate, by_transformers, silence, trainer_arguments
from tests.bench.relay import steps_in_turn
from tests.bench.workloads import BATCH, RATE, WORKLOADS, collate
from tests.engines.processes import free_port

ROOT = Path(__file__).parents[2]
KEPT = {
    "MALLOC_TRIM_THRESHOLD_": "1073741824", "MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TOP_PAD_": "67108864",
    "MALLOC_ARENA_MAX": "1",
}  # fmt: skip
"""Makes glibc keep freed memory, in one heap for all threads. By default it returns some of it at every step, or none,
depending on the layout of the heap; that varies between runs by a thousand page faults per step of GPT, and costs more
than what is measured."""
GOAL = 1.02
TURNS = 30


def by_hand(model: nn.Module, dataset: Any, steps: int) -> None:
    """The hand-written loop around DistributedDataParallel."""
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
    """Hexloop's Trainer with its default callbacks."""
    from hexloop import Trainer, TrainingArguments

    folder = os.path.join(tempfile.gettempdir(), f"hexloop-bench-{os.environ['MASTER_PORT']}")  # the same for both
    arguments = TrainingArguments(**trainer_arguments(folder, steps), **more)
    Trainer(model, arguments, data_collator=collate, train_dataset=dataset).train()


LIBRARIES: dict[str, Loop] = {
    "by hand": by_hand,
    "hexloop": lambda *job: by_hexloop(*job, ddp_find_unused_parameters=False),
    "hexloop, equal weights": lambda *job: by_hexloop(
        *job, ddp_find_unused_parameters=False, loss_weighting="reference"
    ),
    "hexloop, looking": by_hexloop,
    "accelerate": by_accelerate,
    "transformers": by_transformers,
}
"""`equal weights`: the mean of the processes' means, as in the hand-written loop; hexloop's default sums items.
`looking`: search for unused parameters, the default of hexloop and transformers."""


ENGINES = ("ddp", "fsdp1", "fsdp2", "zero0", "zero1", "zero2", "zero3")


def loops_of(engine: str) -> dict[str, Loop]:
    """The loops by name."""
    return LIBRARIES if engine == "ddp" else loops(engine)


def in_turn(libraries: Sequence[str], turn: int) -> list[str]:
    """Orders in which each comes first once, forwards and then backwards."""
    first = turn // 2 % len(libraries)
    order = [*libraries[first:], *libraries[:first]]
    return order if turn % 2 == 0 else order[::-1]


def one_rank(workload: str, engine: str, libraries: Sequence[str]) -> None:
    """Print this rank's wall microseconds per step, for each library in turn."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    lengths, compared = WORKLOADS[workload], loops_of(engine)
    of_a_turn = max(6, lengths.short // 8)
    steps = of_a_turn * (TURNS + 1) + 1
    dataset = lengths.dataset((steps + 1) * BATCH * 2)
    order = chain.from_iterable(in_turn(libraries, turn) for turn in count())
    training = {library: partial(_train, compared[library], dataset, steps) for library in libraries}
    with silence():
        turns = steps_in_turn(training, lengths.model, order, of_a_turn)
    settled = {name: [turn[of_a_turn // 3 :] for turn in turns[name][1:]] for name in libraries}
    print(json.dumps({name: [1e6 * step for turn in settled[name] for step in turn] for name in libraries}), flush=True)
    os._exit(0)


def _train(loop: Loop, dataset: Any, steps: int, model: nn.Module) -> None:
    loop(model, dataset, steps)


def measure(workload: str, engine: str, libraries: Sequence[str]) -> dict[str, list[float]]:
    """Return the microseconds of each step of two processes, the slower one's, for each library."""
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
            found[library].append(quantiles(microseconds, n=10)[0])
    goal = f"at most {GOAL}" if options.engine == "ddp" else "below accelerate"
    print(f"{options.workload}, two processes, {options.engine}, {options.rounds} rounds; goal for hexloop: {goal}")
    print(f"{'':<24}{'us a step':>11}{'by hand 1':>12}{'least, most':>16}{'accelerate 1':>16}{'least, most':>16}")
    for library, times in found.items():
        told = f"{library:<24}{median(times):>11.0f}"
        for other in ("by hand", "accelerate"):
            if other in found:
                ratios = [one / two for one, two in zip(times, found[other], strict=True)]
                told += f"{median(ratios):>{12 if other == 'by hand' else 16}.3f}{min(ratios):>8.3f}{max(ratios):>8.3f}"
        print(told)


if __name__ == "__main__":
    main()
