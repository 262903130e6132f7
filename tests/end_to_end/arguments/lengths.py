"""Batch sizes, and the length of a run."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.end_to_end.arguments.bench import Bench, Recording, shows


@shows("per_device_train_batch_size")
def _(bench: Bench) -> None:
    model = Recording()
    bench.trained({"model": model}, per_device_train_batch_size=8)
    assert model.sizes == [(True, 8)] * 2


@shows("per_device_eval_batch_size")
def _(bench: Bench) -> None:
    model = Recording()
    bench.trainer({"model": model}, per_device_eval_batch_size=3).evaluate()
    assert model.sizes == [(False, 3), (False, 3), (False, 2)]


@shows("gradient_accumulation_steps")
def _(bench: Bench) -> None:
    model = Recording()
    made = bench.trained({"model": model}, gradient_accumulation_steps=2)
    assert (made.state.global_step, len(model.sizes)) == (2, 4)


@shows("num_train_epochs")
def _(bench: Bench) -> None:
    assert bench.trained(num_train_epochs=2).state.global_step == 8
    assert bench.trained(num_train_epochs=0.5).state.global_step == 2


@shows("max_steps")
def _(bench: Bench) -> None:
    assert bench.trained(max_steps=3, num_train_epochs=100).state.global_step == 3


@shows("auto_find_batch_size")
def _(bench: Bench) -> None:
    class Hungry(Recording):
        def forward(self, x: Tensor, labels: Tensor | None = None) -> object:
            if len(x) > 2:
                raise torch.OutOfMemoryError("no room for so many")
            return super().forward(x, labels)

    made = bench.trained({"model": Hungry()}, auto_find_batch_size=True)
    assert (made.state.train_batch_size, made.state.global_step) == (2, 8)


@shows("average_tokens_across_devices")
def _(bench: Bench) -> None:
    assert "for runs with several processes" in bench.remark(average_tokens_across_devices=False)
