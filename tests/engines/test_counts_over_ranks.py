"""Processes sum the items of a window in parallel with their forward passes."""

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
"""Seconds for which a process waits for another one's forward pass."""


class Weight(nn.Module):
    """The mean of the rows times a weight is its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"loss": (self.weight * x).mean()}


def test_no_forward_pass_waits_for_the_count_of_another_process() -> None:
    """Rank 1 counts its window only when rank 0 is in its forward pass; each then has its share of all rows."""
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
    """Notes the counts that a user's own method of the trainer is given, for each process in a file."""

    def __init__(self) -> None:
        self.told: list[float] = []

    def note(self, count: Any) -> None:
        assert isinstance(count, Tensor | int), count
        self.told.append(int(count))

    def on_train_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        Path(args.output_dir, f"rank-{os.environ['RANK']}.json").write_text(json.dumps(self.told))


class AskingInEachStep(Asking):
    """By a training_step of its own."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "trainer":
            standard = value.training_step

            def training_step(model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
                self.note(num_items_in_batch)
                found: Tensor = standard(model, inputs, num_items_in_batch)
                return found

            value.training_step = training_step


class AskingForEachWindow(Asking):
    """By a get_batch_samples of its own."""

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


@pytest.mark.parametrize("kind", [AskingInEachStep, AskingForEachWindow])
def test_the_methods_of_a_subclass_are_given_the_sum(kind: type[Asking], tmp_path: Path) -> None:
    """As a number, the same in both processes as in one, and the run is the one without such a method."""
    plain = run(Training(2, rows=48), tmp_path / "plain")
    counts = {}
    for size in (1, 2):
        training = Training(size, rows=48, callbacks=(kind,))
        asked = run(training, fresh(tmp_path / str(size)))
        each = training.accumulation if kind is AskingInEachStep else 1
        told = [json.loads((tmp_path / str(size) / f"rank-{rank}.json").read_text()) for rank in range(size)]
        assert all(one == told[0] for one in told)
        counts[size] = told[0][::each]
        assert distance(asked.weights, plain.weights) < 1e-5

    assert len(counts[2]) == 18
    assert counts[2] == counts[1]
