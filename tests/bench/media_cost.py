"""Cost of media and system metrics for a step. Run as `python tests/bench/media_cost.py`.

Two runs of a small network take turns in short blocks of steps. Printed is the median ratio of the wall time, and of
the processor time of the loop's thread, of neighbouring blocks with and without: of two runs that differ in nothing,
with system metrics, and with media too, an image, a table, a text and a histogram every 20 steps. The goal is at most
1.01.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import closing
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from hexloop import Trainer, TrainingArguments
from hexloop.domain.events import StepEnded

BLOCK, BLOCKS = 20, int(sys.argv[1]) if len(sys.argv) > 1 else 100
"""Steps that a run takes in its turn, and turns."""

WIDTH, BATCH = 768, 32


class Network(nn.Module):
    """Four layers, with a step of some ten milliseconds on a core."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        return {"loss": (self.layers(x) - x).square().mean()}


def blocks(folder: str, media: bool, **given: Any) -> Generator[None, None, None]:
    """Train, and yield after each block of steps."""
    torch.manual_seed(0)
    rows = [{"x": each, "labels": each[0]} for each in torch.randn(BATCH * 16, WIDTH)]
    arguments = TrainingArguments(
        folder, per_device_train_batch_size=BATCH, max_steps=BLOCK * (BLOCKS + 2), logging_steps=500, use_cpu=True,
        save_steps=10**6, disable_tqdm=True, report_to="none", **given,
    )  # fmt: skip
    trainer: Any = Trainer(Network(), arguments, train_dataset=rows)
    picture = torch.rand(3, 128, 128)
    with closing(trainer.stream()) as events:
        for event in events:
            if isinstance(event, StepEnded) and event.step % BLOCK == 0:
                if media:
                    trainer.log_media("picture", picture)
                    trainer.log_media("table", [{"in": "a text", "out": "another", "step": event.step}] * 8)
                    trainer.log_media("text", "a text " * 50)
                    trainer.log_media("weights", trainer.model.layers[0].weight, "histogram")
                yield


def main() -> None:
    """Print the ratios."""
    torch.set_num_threads(1)
    on, off = {"system_metrics": True}, {"system_metrics": False}
    for name, one, other in (
        ("nothing", (False, off), (False, off)),
        ("system metrics", (False, on), (False, off)),
        ("system metrics and media", (True, on), (False, off)),
    ):
        with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
            runs = blocks(first, one[0], **one[1]), blocks(second, other[0], **other[1])
            walls, ratios = [], []
            for number in range(BLOCKS):
                wall, taken = {}, {}
                for which in (0, 1) if number % 2 == 0 else (1, 0):
                    began, spent = time.perf_counter(), time.thread_time()
                    next(runs[which])
                    wall[which], taken[which] = time.perf_counter() - began, time.thread_time() - spent
                if number > 5:
                    walls.append(wall[0] / wall[1])
                    ratios.append(taken[0] / taken[1])
            for each in runs:
                each.close()
            print(f"{name:>25}: {median(walls):.4f} of the wall time, {median(ratios):.4f} of the thread's", flush=True)


if __name__ == "__main__":
    main()
