"""Memory of gradients and time of a step, at the end and layer by layer. Run as `python -m tests.bench.layerwise`.

A chain of 24 layers of 1024 by 1024 takes training steps with AdamW in float32, in one process and in two with DDP.
Memory is the most bytes that gradients have at the same time; buckets of torch's DDP, which are as large as all
gradients, come on top. A time is the median of the steps after the first. The four ways take turns.
"""

from __future__ import annotations

import os
import tempfile
import time
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from tests.engines.processes import QUIET, in_processes

LAYERS, WIDTH, ROWS, STEPS, ROUNDS = 24, 1024, 32, 8, 3
WAYS: dict[str, dict[str, Any]] = {
    "at the end": {},
    "layer-wise": {"optim_layerwise": True},
    "at the end, clipped": {"max_grad_norm": 1.0},
    "layer-wise, clipped": {"optim_layerwise": True, "max_grad_norm": 1.0},
}


class Chain(nn.Module):
    """(batch, 1024) -> a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Return the loss."""
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return {"loss": x.square().mean()}


def measure(given: dict[str, Any], folder: str) -> dict[str, float]:
    """Return the peak of gradients in MiB and the milliseconds of a step, in each process of a run."""
    from hexloop import Trainer, TrainingArguments
    from hexloop.domain.events import StepBegan, StepEnded

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, peak, began = Chain(), 0, 0.0
    parameters, seconds = list(model.parameters()), list[float]()

    def observe(_: Tensor) -> None:
        nonlocal peak
        peak = max(peak, sum(each.grad.nbytes for each in parameters if each.grad is not None))

    for each in parameters:
        each.register_post_accumulate_grad_hook(observe)  # type: ignore[no-untyped-call]
    rows = [{"x": torch.randn(WIDTH)} for _ in range(2 * ROWS)]
    arguments = TrainingArguments(
        folder, per_device_train_batch_size=ROWS, max_steps=STEPS, use_cpu=True, report_to="none",
        disable_tqdm=True, save_strategy="no", logging_strategy="no", optim="adamw_torch",
        **{"max_grad_norm": 0.0, **given},
    )  # fmt: skip
    trainer: Any = Trainer(model, arguments, train_dataset=rows, loggers=[])
    for event in trainer.stream():
        if isinstance(event, StepBegan):
            began = time.perf_counter()
        elif isinstance(event, StepEnded):
            seconds.append(time.perf_counter() - began)
    return {"mib": peak / 2**20, "ms": 1000 * median(seconds[1:])}


def measured(way: str, size: int) -> dict[str, float]:
    """Return what rank 0 of so many processes measures."""

    def train(rank: int) -> dict[str, float]:
        os.environ.update(
            RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size), **QUIET
        )
        return measure(WAYS[way], folder)

    with tempfile.TemporaryDirectory() as folder:
        found = in_processes(size, train)[0]
    if isinstance(found, BaseException):
        raise found
    return found


def main() -> None:
    """Print a table."""
    print(f"{'processes':>9} {'way':<22} {'gradients MiB':>13} {'step ms':>8}")
    for size in (1, 2):
        found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
        for _ in range(ROUNDS):
            for way, each in found.items():
                each.append(measured(way, size))
        for way, each in found.items():
            mib, ms = median(one["mib"] for one in each), median(one["ms"] for one in each)
            print(f"{size:9} {way:<22} {mib:13.1f} {ms:8.1f}", flush=True)


if __name__ == "__main__":
    main()
