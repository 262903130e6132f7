"""Cost of a save of small models, compared with transformers: many saves, and many tensors.

Run as `python -m tests.bench.save_often [--rounds 5] [--workload NAME]`. In each round both libraries train in this
process, with and without saves, in the reverse order of the round before; the cost of a save is the median over the
rounds of the difference in wall time, divided by the number of saves. It includes the last save up to its last byte,
because `train` returns only then. transformers does not flush its files to the disk, and hexloop does. Therefore the
time of an fsync of a small new file is measured in the same folder, in each round, and reported beside the costs.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any
from unittest.mock import Mock, patch

import torch
from attrs import frozen
from torch import Tensor, nn

from hexloop.adapters.storage.local import syncing
from tests.bench.libraries import silence
from tests.reference import bare_loop

LIBRARIES = ("transformers", "hexloop")
RATIO, FLUSHES = 1.3, 3
"""The goal: at most this many times the cost of transformers, plus this many fsyncs."""

FSYNCS = 20
"""Fsyncs that are timed in each round."""


class ManyTensors(nn.Module):
    """Parameters of 16 by 16 each, which are averaged."""

    def __init__(self, tensors: int = 2000) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tensors = nn.ParameterList(torch.randn(16, 16) for _ in range(tensors))

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        mixed = x @ torch.stack(list(self.tensors)).mean(0)
        return {"loss": nn.functional.cross_entropy(mixed[:, :4], labels)}


@frozen
class Workload:
    """A model that is trained for a number of steps, with a save every few steps."""

    model: Callable[[], nn.Module]
    steps: int
    save_steps: int

    @property
    def saves(self) -> int:
        """How many saves a run makes."""
        return self.steps // self.save_steps


WORKLOADS = {
    "tiny model": Workload(bare_loop.TinyMLP, 100, 5),
    "2,000 tensors": Workload(ManyTensors, 20, 5),
}


def train(library: str, workload: Workload, folder: str, saving: bool) -> float:
    """Return the seconds of a run."""
    if library == "transformers":
        from transformers import Trainer, TrainingArguments
    else:
        from hexloop import Trainer, TrainingArguments  # type: ignore[assignment]
    arguments: Any = TrainingArguments(
        output_dir=folder, max_steps=workload.steps, per_device_train_batch_size=8, use_cpu=True, report_to=[],
        disable_tqdm=True, logging_strategy="no", save_strategy="steps" if saving else "no",
        save_steps=workload.save_steps,
    )  # fmt: skip
    trainer: Any = Trainer(
        model=workload.model(), args=arguments, train_dataset=bare_loop.Rows(8 * workload.steps),
        data_collator=bare_loop.stack,
    )  # fmt: skip
    gc.collect()
    began = time.perf_counter()
    trainer.train()
    return time.perf_counter() - began


def fsync_seconds(folder: str) -> float:
    """Return the time of an fsync of a small new file: the median of some."""
    seconds = []
    for number in range(FSYNCS):
        descriptor = os.open(os.path.join(folder, f"fsync-{number}"), os.O_WRONLY | os.O_CREAT)
        os.write(descriptor, bytes(5000))
        began = time.perf_counter()
        os.fsync(descriptor)
        seconds.append(time.perf_counter() - began)
        os.close(descriptor)
    return median(seconds)


def flushes(folder: str, workload: Workload) -> float:
    """Return the flushes of a save of hexloop, of files and of the file system, counted in a run of their own."""
    files, systems = Mock(wraps=os.fsync), Mock(wraps=syncing._syncfs())
    with patch("os.fsync", files), patch.object(syncing, "_syncfs", lambda: systems):
        train("hexloop", workload, folder, saving=True)
    return (files.call_count + systems.call_count) / workload.saves


def measure(name: str, rounds: int) -> None:
    """Print the figures of a workload."""
    workload = WORKLOADS[name]
    kinds = [(library, saving) for library in LIBRARIES for saving in (True, False)]
    seconds: dict[tuple[str, bool], list[float]] = {kind: [] for kind in kinds}
    fsyncs: list[float] = []
    for number in range(rounds + 1):
        for library, saving in kinds if number % 2 else kinds[::-1]:
            folder = tempfile.mkdtemp(prefix="hexloop-bench-")
            try:
                with silence():
                    found = train(library, workload, folder, saving)
                fsyncs.append(fsync_seconds(folder))
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            if number:  # the first round warms up
                seconds[library, saving].append(found)
    cost = {
        library: median(
            (one - other) / workload.saves
            for one, other in zip(seconds[library, True], seconds[library, False], strict=True)
        )
        for library in LIBRARIES
    }
    with tempfile.TemporaryDirectory(prefix="hexloop-bench-") as counted, silence():
        number_of_fsyncs = flushes(counted, workload)
    fsync, theirs, ours = median(fsyncs), cost["transformers"], cost["hexloop"]
    goal = RATIO * theirs + FLUSHES * fsync
    print(
        f"{name}: a save costs {1e3 * ours:.1f} ms, transformers' {1e3 * theirs:.1f} ms: {ours / theirs:.2f} times, "
        f"or {(ours - FLUSHES * fsync) / theirs:.2f} times without {FLUSHES} fsyncs of {1e3 * fsync:.2f} ms each "
        f"(it makes {number_of_fsyncs:.1f}, most of them at once); goal: at most {1e3 * goal:.1f} ms, "
        f"{'reached' if ours <= goal else 'missed'}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workload", choices=list(WORKLOADS), action="append")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with silence():
        for library in LIBRARIES:  # import both before anything is timed
            with tempfile.TemporaryDirectory() as folder:
                train(library, WORKLOADS["tiny model"], folder, saving=True)
    for name in options.workload or WORKLOADS:
        measure(name, options.rounds)


if __name__ == "__main__":
    main()
