"""Time and memory to the first batch of 10**8 samples in random order. Run as `python -m tests.bench.first_batch`.

Limits: 0.1 seconds from the request of the loader, and 50 megabytes of additional memory. A short run goes first, so
that torch's lazy imports do not count.
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
    """Samples that are created when they are read."""

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
    """Return the peak of this process's resident memory, on Linux."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def first_step(trainer: Trainer) -> None:
    """Run until the first batch is ready, and close the run."""
    with closing(trainer.stream()) as events:
        while type(next(events)) is not StepBegan:
            pass


def report(what: str, action: Callable[[], object]) -> None:
    """Print the time and the memory of `action`."""
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
