"""Ranks sum the number of items in a window while their forward passes run."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from hexloop import TrainerCallback
from hexloop.adapters.trainable.torch.trainable import ModelLoss, TorchTrainable, exact_item_sum
from tests.engines.processes import free_port, in_processes
from tests.engines.several.training import Training, distance, fresh, run

CPU = torch.device("cpu")
PATIENCE = 20.0
"""Seconds that a process waits for another one's forward pass."""


class Weight(nn.Module):
    """A model whose loss is the mean of the rows times a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"loss": (self.weight * x).mean()}


def test_forward_passes_do_not_wait_for_the_counts_of_other_ranks() -> None:
    """Rank 1 counts its window only once rank 0 is in its forward pass; each weights its loss by the rows of both."""
    port = free_port()

    def share(rank: int) -> float:
        store = TCPStore("127.0.0.1", port, 2, rank == 0)
        model = Weight()
        model.register_forward_pre_hook(lambda *_: store.set(f"forward pass of {rank}", "begun"))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        trainable = TorchTrainable(model, optimizer, ModelLoss(), item_sum=exact_item_sum(2, CPU))
        batch = {"x": torch.ones(1 + 2 * rank)}
        if rank == 1:
            store.wait(["forward pass of 0"], timedelta(seconds=PATIENCE))
        loss = trainable.loss(batch, trainable.count_items([batch]))
        dist.barrier()
        return loss.item()

    assert in_processes(2, share) == [0.25, 0.75]


class Asking(TrainerCallback):
    """Writes the counts that an overridden method of the trainer receives to a file per process."""

    def __init__(self) -> None:
        self.reported: list[float] = []

    def note(self, count: Any) -> None:
        assert isinstance(count, Tensor | int), count
        self.reported.append(int(count))

    def on_train_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        Path(args.output_dir, f"rank-{os.environ['RANK']}.json").write_text(json.dumps(self.reported))


class CountingInTrainingStep(Asking):
    """Overrides training_step."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "trainer":
            standard = value.training_step

            def training_step(model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
                self.note(num_items_in_batch)
                found: Tensor = standard(model, inputs, num_items_in_batch)
                return found

            value.training_step = training_step


class CountingInGetBatchSamples(Asking):
    """Overrides get_batch_samples."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "trainer":
            standard = value.get_batch_samples

            def get_batch_samples(batches: Any, number: int, device: Any = None) -> tuple[list[Any], Any]:
                samples, count = standard(batches, number, device)
                if samples:
                    self.note(count)
                return samples, count

            value.get_batch_samples = get_batch_samples


@pytest.mark.parametrize("kind", [CountingInTrainingStep, CountingInGetBatchSamples])
def test_overridden_methods_receive_the_sum_over_ranks(kind: type[Asking], tmp_path: Path) -> None:
    """It is a number, the same in two processes as in one, and training is the same as without the override."""
    plain = run(Training(2, rows=48), tmp_path / "plain")
    counts = {}
    for size in (1, 2):
        training = Training(size, rows=48, callbacks=(kind,))
        asked = run(training, fresh(tmp_path / str(size)))
        each = training.accumulation if kind is CountingInTrainingStep else 1
        reported = [json.loads((tmp_path / str(size) / f"rank-{rank}.json").read_text()) for rank in range(size)]
        assert all(one == reported[0] for one in reported)
        counts[size] = reported[0][::each]
        assert distance(asked.weights, plain.weights) < 1e-5

    assert len(counts[2]) == 18
    assert counts[2] == counts[1]


def test_a_measured_run_trains_as_without(tmp_path: Path) -> None:
    """The shares of rank 0 are all of its time, utilisation is logged, and each rank leaves a profile."""
    plain = run(Training(2, rows=48), tmp_path / "plain")
    window = {"wait": 0, "warmup": 1, "steps": 2}
    meters = {"log_goodput": True, "peak_flops": 1e9, "profile": window, "on_nonfinite": "skip"}
    measured = run(Training(2, rows=48, arguments=meters), tmp_path / "measured")
    assert distance(measured.weights, plain.weights) == 0
    logs = [entry for entry in measured.history if "loss" in entry]
    for entry in logs:
        shares = [value for name, value in entry.items() if name.startswith(("goodput", "badput_"))]
        assert sum(shares) == pytest.approx(100, abs=1)
        assert entry["mfu"] > 0
    assert [entry["loss"] for entry in logs] == [entry["loss"] for entry in plain.history if "loss" in entry]
    profiles = sorted(path.name for path in tmp_path.glob("measured/**/profile/*.txt"))
    assert profiles == ["steps-2-to-3-rank-0.txt", "steps-2-to-3-rank-1.txt"]
