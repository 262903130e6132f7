"""Cost of the check for losses that are not finite, while all are finite. Run as `python tests/bench/guard_cost.py`.

Two runs of a small network take turns in short blocks of steps, one with the check under test and one that collects no
values; the median ratio of processor time of neighbouring blocks is printed for each reaction. The goal is 1.002.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from hexloop import Trainer, TrainingArguments
from hexloop.domain.events import StepEnded, TrainBegan
from hexloop.domain.guard import Guard

BLOCK, BLOCKS = 20, 150
"""Steps that a run takes in its turn, and turns."""

WIDTH, BATCH = 768, 32


class Network(nn.Module):
    """Four layers, with a step of some ten milliseconds on a core."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        return {"loss": (self.layers(x) - x).square().mean()}


def blocks(folder: str, checked: bool, **given: Any) -> Iterator[None]:
    """Train, and yield after each block of steps."""
    torch.manual_seed(0)
    rows = [{"x": each, "labels": each[0]} for each in torch.randn(BATCH * 16, WIDTH)]
    arguments = TrainingArguments(
        folder, per_device_train_batch_size=BATCH, max_steps=BLOCK * (BLOCKS + 2), logging_steps=500, use_cpu=True,
        save_strategy="no", disable_tqdm=True, report_to="none", **given,
    )  # fmt: skip
    trainer: Any = Trainer(Network(), arguments, train_dataset=rows)
    for event in trainer.stream():
        if isinstance(event, TrainBegan) and not checked:
            trainer._session.run.guard = Guard()
        if isinstance(event, StepEnded) and event.step % BLOCK == 0:
            yield


def main() -> None:
    """Print the ratio for each reaction."""
    torch.set_num_threads(1)
    for reaction in ("warn", "stop", "skip", "rollback"):
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
            runs = blocks(one, True, on_nonfinite=reaction), blocks(other, False)
            ratios = []
            for number in range(BLOCKS):
                order = (0, 1) if number % 2 == 0 else (1, 0)
                taken = {}
                for which in order:
                    began = time.process_time()
                    next(runs[which])
                    taken[which] = time.process_time() - began
                if number > 5:
                    ratios.append(taken[0] / taken[1])
            print(f"{reaction:>9}: {median(ratios):.4f} of a step without the check", flush=True)


if __name__ == "__main__":
    main()
