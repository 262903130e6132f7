"""Data parallelism in one process with several GPUs, each of which computes a part of every batch.

Without GPUs, torch's four operations between devices are replaced: rows are split and concatenated on the CPU, and
every replica of the model is the model itself. All other code is the same as on GPUs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DataParallel as TorchDataParallel

from hexloop import Trainer, TrainingArguments
from hexloop.adapters.engines.single.data_parallel import Copies, DataParallel
from hexloop.adapters.engines.single.engine import SingleProcess
from hexloop.adapters.trainable.torch.trainable import item_count
from hexloop.app.environment import DistributedEnvironment
from tests.engines.several.training import Reader, Sentences, padded

LABELS = partial(item_count, label_names=("labels",), shifted=False)
CPU = torch.device("cpu")
FUNCTIONS = sys.modules[TorchDataParallel.__module__]


def split(value: Any, count: int) -> list[Any]:
    """Return a value's part for each device: rows of a tensor, otherwise the value itself."""
    return list(value.chunk(count)) if isinstance(value, Tensor) else [value] * count


def scattered(inputs: Any, kwargs: dict[str, Any], devices: Sequence[int], dim: int) -> Any:
    """Replacement for torch's scatter_kwargs."""
    parts = zip(*(split(value, len(devices)) for value in kwargs.values()), strict=False)  # fewer rows than devices
    named = [dict(zip(kwargs, part, strict=True)) for part in parts]
    return tuple(() for _ in named), tuple(named)


def applied(replicas: Sequence[Any], inputs: Any, kwargs: Any, devices: Any) -> list[Any]:
    """Replacement for torch's parallel_apply."""
    return [replica(*args, **named) for replica, args, named in zip(replicas, inputs, kwargs, strict=True)]


def gathered(outputs: Sequence[Any], device: Any, dim: int) -> Any:
    """Replacement for torch's gather, which accepts any value and treats scalars as rows of one."""
    if isinstance(outputs[0], dict):
        return {name: gathered([each[name] for each in outputs], device, dim) for name in outputs[0]}
    if isinstance(outputs[0], tuple):
        return tuple(gathered(each, device, dim) for each in zip(*outputs, strict=True))
    return torch.cat([each.reshape(1) if not each.ndim else each for each in outputs])


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run data parallelism on two devices that are both the CPU."""
    monkeypatch.setattr(FUNCTIONS, "scatter_kwargs", scattered)
    monkeypatch.setattr(FUNCTIONS, "replicate", lambda module, devices, _detach: [module] * len(devices))
    monkeypatch.setattr(FUNCTIONS, "parallel_apply", applied)
    monkeypatch.setattr(FUNCTIONS, "gather", gathered)

    def begin(self: Any, module: nn.Module, devices: list[int]) -> None:
        nn.Module.__init__(self)
        self.module, self.device_ids, self.output_device, self.dim = module, devices, 0, 0
        self.src_device_obj = CPU

    monkeypatch.setattr(nn.DataParallel, "__init__", begin)


class Counting(Reader):
    """Divides its loss by the item count that it is given."""

    def forward(self, words: Tensor, labels: Tensor | None = None, num_items_in_batch: Any = None) -> dict[str, Tensor]:
        """As `Reader`."""
        outputs = super().forward(words, labels)
        if labels is not None and num_items_in_batch is not None:
            total = functional.cross_entropy(outputs["logits"].flatten(0, 1), labels.flatten(), reduction="sum")
            outputs["loss"] = total / num_items_in_batch
        return outputs


class InTuples(Reader):
    """Returns its loss first in a tuple."""

    def forward(self, words: Tensor, labels: Tensor | None = None) -> Any:
        """As `Reader`."""
        return tuple(super().forward(words, labels).values())


def batch(rows: int) -> dict[str, Tensor]:
    """Return rows of different lengths; the last has no label."""
    data = Sentences(rows)
    made = padded([data[index] for index in range(rows)])
    made["labels"][-1] = -100
    return made


@pytest.mark.usefixtures("two_devices")
@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("kind", [Reader, InTuples, Counting])
def test_loss_and_gradients_equal_one_device(kind: type[Any], rows: int) -> None:
    """Loss and gradients equal those of one device, even if parts have different numbers of labels."""
    model, parallelism = kind(), DataParallel([0, 1], LABELS)
    given: dict[str, Any] = batch(rows + 1)
    if kind is Counting:
        given["num_items_in_batch"] = torch.tensor(7)
    found: list[Tensor] = []
    expected: list[Tensor] = []
    wrapped, _ = parallelism.prepare(model, lambda wrapped: wrapped)
    for module, into in ((model, expected), (wrapped, found)):
        outputs = module(**given)
        loss = outputs[0] if isinstance(outputs, tuple) else outputs["loss"]
        assert loss.ndim == 0
        model.zero_grad()
        parallelism.backward(loss)
        into += [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]
    assert len(found) == len(expected) > 4
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert parallelism.unwrap(wrapped) is model


@pytest.mark.usefixtures("two_devices")
def test_parts_are_weighted_equally_without_a_count() -> None:
    """Without an item count, the loss is the mean over devices, as in transformers."""
    wrapped, _ = DataParallel([0, 1]).prepare(Reader(), lambda wrapped: wrapped)
    made = batch(4)
    parts = [wrapped.module(made["words"][rows], made["labels"][rows])["loss"] for rows in (slice(0, 2), slice(2, 4))]
    torch.testing.assert_close(wrapped(**made)["loss"], sum(parts) / 2)


@pytest.mark.usefixtures("two_devices")
def test_per_row_outputs_are_not_summed() -> None:
    """A vector with one number for each row of the batch is not summed."""

    class Heights(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return (x.sum(1),)

    wrapped, _ = DataParallel([0, 1]).prepare(Heights(), lambda wrapped: wrapped)
    assert wrapped(x=torch.ones(4, 3))[0].tolist() == [3.0] * 4


def arguments(folder: Path, **given: Any) -> TrainingArguments:
    """Return arguments of a short run."""
    return TrainingArguments(
        str(folder), use_cpu=True, report_to=[], disable_tqdm=True, learning_rate=0.01, logging_steps=1, **given
    )


def trained(args: TrainingArguments, resume: str | None = None, **injected: Any) -> Any:
    """Train three steps and evaluate."""
    trainer = Trainer(Reader(), args, padded, Sentences(24), Sentences(7), **injected)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


@pytest.mark.usefixtures("two_devices")
def test_run_equals_one_device(tmp_path: Path) -> None:
    """Training, resuming and evaluating give the losses, weights and parameter names of one device."""
    given = {"per_device_train_batch_size": 8, "save_steps": 2, "eval_strategy": "epoch", "num_train_epochs": 1}
    alone = trained(arguments(tmp_path / "one", **given))
    both = trained(arguments(tmp_path / "two", **given), parallelism=DataParallel([0, 1], LABELS))
    assert isinstance(both.model_wrapped, Copies)
    resumed = trained(arguments(tmp_path / "resumed", **given), str(tmp_path / "two" / "checkpoint-2"))
    for other in (both, resumed):
        assert other.state.global_step == 3
        for name, value in alone.model.state_dict().items():
            torch.testing.assert_close(other.model.state_dict()[name], value)
        assert other.evaluate()["eval_loss"] == pytest.approx(alone.evaluate()["eval_loss"], rel=1e-5)


def test_single_process_uses_all_visible_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One process uses all visible GPUs; one of several processes, or a named device, uses one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    args = TrainingArguments(str(tmp_path), per_device_train_batch_size=2)
    assert (args.n_gpu, args.train_batch_size) == (4, 8)
    args.distributed_environment = DistributedEnvironment(world_size=2)
    assert args.n_gpu == 1
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "cuda:0")
    assert TrainingArguments(str(tmp_path)).n_gpu == 1


def test_other_parallelism_uses_one_device(tmp_path: Path) -> None:
    """With another parallelism the batch size is not multiplied by the number of GPUs."""
    args = arguments(tmp_path, per_device_train_batch_size=2)
    args.use_cpu = False
    args.distributed_environment = DistributedEnvironment(device="cpu", n_gpu=3)
    trainer = Trainer(Reader(), args, padded, Sentences(8), parallelism=SingleProcess())
    assert (trainer.args.n_gpu, trainer.args.train_batch_size) == (1, 2)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_train_like_one(tmp_path: Path) -> None:
    """On two real GPUs the weights equal those of training on one."""
    models = []
    for distributed_environment in (DistributedEnvironment(device="cuda:0", n_gpu=1), DistributedEnvironment()):
        args = arguments(
            tmp_path, per_device_train_batch_size=8 // max(1, distributed_environment.n_gpu or 2), save_strategy="no"
        )
        args.use_cpu, args.distributed_environment = False, distributed_environment
        models.append(trained(args).model.cpu().state_dict())
    for name, value in models[0].items():
        torch.testing.assert_close(models[1][name], value, rtol=1e-4, atol=1e-6)
