"""The first batch of a hundred million samples in random order. Run as `python -m tests.bench.first_batch`.

Goals: under 0.1 seconds from asking for the loader, and under 50 megabytes more than before. A run of few samples goes
first, so that what torch loads when it is first used does not count.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Callable
from contextlib import closing

from torch import Tensor, nn, tensor
from torch.utils.data import Dataset

from hexloop import Trainer, TrainingArguments
from hexloop.domain.events import StepBegan

SAMPLES = 10**8


class Numbers(Dataset[dict[str, Tensor]]):
    """Samples that are made when they are asked for."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": tensor([float(index)])}


class Line(nn.Module):
    """One weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Linear(1, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"loss": self.weight(x).mean()}


def peak_megabytes() -> float:
    """The most memory that this process has held, on Linux."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def first_step(trainer: Trainer) -> None:
    """Drive a run to where its first batch is at hand, and leave it."""
    with closing(trainer.stream()) as events:
        while type(next(events)) is not StepBegan:
            pass


def report(what: str, action: Callable[[], object]) -> None:
    """Print the time and the memory that `action` takes."""
    held, began = peak_megabytes(), time.perf_counter()
    action()
    took = time.perf_counter() - began
    print(f"{what} of {SAMPLES:,} samples: {took:.3f} s, {peak_megabytes() - held:.1f} MB more")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder, max_steps=10, save_strategy="no", use_cpu=True, per_device_train_batch_size=64
        )
        first_step(Trainer(Line(), args, train_dataset=Numbers(1000), loggers=[]))
        trainer = Trainer(Line(), args, train_dataset=Numbers(SAMPLES), loggers=[])
        report("loader's first batch", lambda: next(iter(trainer.get_train_dataloader())))
        report("run to its first step", lambda: first_step(trainer))


if __name__ == "__main__":
    main()
