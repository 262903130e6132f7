"""Time per row and memory of an evaluation, compared with transformers.

Run as `python -m tests.bench.evaluation`. Rounds are interleaved, and each evaluation runs in a new process, after a
short one that is not counted. The time is that of `predict`, metrics included. The memory is the peak of the resident
memory above that before, as a multiple of the size of the returned arrays.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, IterableDataset

from tests.bench.libraries import silence
from tests.bench.workloads import GPT, Texts, collate
from tests.reference import bare_loop

ROOT = Path(__file__).parents[2]
LIBRARIES = ("hexloop", "transformers")
FEATURES, CLASSES = 16, 1000


class Wide(nn.Module):
    """(batch, 16) -> logits of shape (batch, 1000)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.line = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits: Tensor = self.line(x)
        return {"loss": cross_entropy(logits, labels), "logits": logits}


class WideRows(Dataset[dict[str, Tensor]]):
    """`length` rows for it, from a table of 512."""

    def __init__(self, length: int) -> None:
        source = torch.Generator().manual_seed(0)
        self.length = length
        self.x = torch.randn(512, FEATURES, generator=source)
        self.labels = torch.randint(0, CLASSES, (512,), generator=source)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": self.x[index % 512], "labels": self.labels[index % 512]}


class Stream(IterableDataset[dict[str, Tensor]]):
    """The same rows as a stream of unknown length."""

    def __init__(self, length: int) -> None:
        self.rows = WideRows(length)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return map(self.rows.__getitem__, range(len(self.rows)))


@frozen
class Workload:
    """A model, its data, the batch size, and the numbers of rows."""

    model: Callable[[], nn.Module]
    dataset: Callable[[int], Any]
    batch: int
    rows: int


WORKLOADS = {
    "1,000 logits, 20,000 rows": Workload(Wide, WideRows, 64, 20_000),
    "1,000 logits, 60,000 rows": Workload(Wide, WideRows, 64, 60_000),
    "1,000 logits, 200,000 rows": Workload(Wide, WideRows, 64, 200_000),
    "1,000 logits, 60,000 rows, no length": Workload(Wide, Stream, 64, 60_000),
    "TinyMLP, 100,000 rows": Workload(bare_loop.TinyMLP, bare_loop.Rows, 8, 100_000),
    "GPT, 400 rows": Workload(GPT, Texts, 8, 400),
}

GOALS = {"1,000 logits, 200,000 rows": 10.0, "TinyMLP, 100,000 rows": 1.1, "GPT, 400 rows": 1.0}
"""The lowest accepted ratio of rows per second to transformers'."""

MOST_MEMORY, STEADY = 1.2, 0.9
"""Limits: the peak as a multiple of the result; rows per second for 200,000 rows as a fraction of those for 20,000."""


def accuracy(found: Any) -> dict[str, float]:
    """Return the fraction of rows, or tokens, whose largest logit is the label's."""
    right = total = 0
    for start in range(0, len(found.label_ids), 4096):  # in parts, so that the metric itself needs little memory
        part = slice(start, start + 4096)
        right += int((found.predictions[part].argmax(-1) == found.label_ids[part]).sum())
        total += found.label_ids[part].size
    return {"accuracy": right / total}


class Peak:
    """Context manager that measures the peak of resident memory in bytes, read from /proc every 2 ms."""

    def __enter__(self) -> Peak:
        self._ended = threading.Event()
        self.before = self.most = resident()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._reader.join()

    def _read(self) -> None:
        while not self._ended.wait(0.002):
            self.most = max(self.most, resident())


def resident() -> int:
    """Return the resident memory of this process in bytes, or 0 if the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def evaluate(library: str, name: str) -> dict[str, float]:
    """Return rows per second, and the peak of memory as a multiple of the result."""
    workload = WORKLOADS[name]
    if library == "hexloop":
        from hexloop import Trainer, TrainingArguments
    else:
        from transformers import Trainer, TrainingArguments  # type: ignore[assignment]
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, silence():
        args: Any = TrainingArguments(
            output_dir=folder, per_device_eval_batch_size=workload.batch, use_cpu=True, report_to="none",
            disable_tqdm=True,
        )  # fmt: skip
        trainer: Any = Trainer(model=workload.model(), args=args, data_collator=collate, compute_metrics=accuracy)
        trainer.predict(workload.dataset(3 * workload.batch))
        dataset = workload.dataset(workload.rows)
        began = time.perf_counter()
        with Peak() as peak:
            output = trainer.predict(dataset)
        seconds = time.perf_counter() - began
    arrays = [output.predictions, output.label_ids]
    assert all(len(array) == workload.rows for array in arrays)
    result = sum(array.nbytes for array in arrays)
    return {"rate": workload.rows / seconds, "memory": (peak.most - peak.before) / result, "bytes": result}


def measure(library: str, name: str) -> dict[str, float]:
    """Run one evaluation in a new process."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.bench.evaluation", "--one", library, name]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{library} on {name} failed:\n{done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(name: str, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Run both libraries in turn, and print a table."""
    found: dict[str, list[dict[str, float]]] = {library: [] for library in LIBRARIES}
    for turn in range(rounds):
        for library in LIBRARIES if turn % 2 == 0 else LIBRARIES[::-1]:
            found[library].append(measure(library, name))
    print(f"\n{name} (result {found['hexloop'][0]['bytes'] / 1e6:.0f} MB), {rounds} rounds")
    print(f"{'':<20}{'rows/s':>10}{'lowest':>10}{'highest':>10}{'peak of the result':>20}")
    for library in LIBRARIES:
        rates, memory = (sorted(each[key] for each in found[library]) for key in ("rate", "memory"))
        print(f"{library:<20}{median(rates):>10.0f}{rates[0]:>10.0f}{rates[-1]:>10.0f}{median(memory):>20.2f}")
    ratios = [ours["rate"] / theirs["rate"] for ours, theirs in zip(*found.values(), strict=True)]
    print(f"hexloop: {median(ratios):.2f} times transformers{_verdict(name, median(ratios))}", flush=True)
    return found


def _verdict(name: str, ratio: float) -> str:
    if name not in GOALS:
        return ""
    return f"; goal: at least {GOALS[name]:g}: {'kept' if ratio >= GOALS[name] else 'MISSED'}"


def _print_steadiness(found: dict[str, dict[str, list[dict[str, float]]]]) -> None:
    """Print whether the cost per row is constant, and memory is that of the result."""
    wide = [name for name in WORKLOADS if name.startswith("1,000 logits") and name in found]
    for library in LIBRARIES:
        rates = [median(each["rate"] for each in found[name][library]) for name in wide if "no length" not in name]
        if len(rates) > 1:
            print(f"{library}: at the most rows {rates[-1] / rates[0]:.2f} of the rate at the fewest")
    most = max((median(each["memory"] for each in found[name]["hexloop"]) for name in wide), default=0.0)
    print(f"goal: hexloop's peak at most {MOST_MEMORY} of the result: {'kept' if most <= MOST_MEMORY else 'MISSED'}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--one", nargs=2, metavar=("LIBRARY", "WORKLOAD"))
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(evaluate(*options.one)))
        return
    _print_steadiness({name: compare(name, options.rounds) for name in options.workloads})


if __name__ == "__main__":
    main()
