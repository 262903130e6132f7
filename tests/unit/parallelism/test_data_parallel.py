"""One process with several GPUs, each of which computes a part of every batch.

Without GPUs, torch's four operations between devices are those between parts of memory: rows are dealt out and put
together again, and every copy of the model is the model itself. All else is what runs on GPUs.
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
from hexloop.app.environment import Surroundings
from tests.engines.several.training import Reader, Sentences, padded

LABELS = partial(item_count, label_names=("labels",), shifted=False)
CPU = torch.device("cpu")
FUNCTIONS = sys.modules[TorchDataParallel.__module__]


def dealt(value: Any, count: int) -> list[Any]:
    """A value's part for each device: rows of a tensor, else the value itself."""
    return list(value.chunk(count)) if isinstance(value, Tensor) else [value] * count


def scattered(inputs: Any, kwargs: dict[str, Any], devices: Sequence[int], dim: int) -> Any:
    """As torch's scatter_kwargs."""
    parts = zip(*(dealt(value, len(devices)) for value in kwargs.values()), strict=False)  # fewer rows than devices
    named = [dict(zip(kwargs, part, strict=True)) for part in parts]
    return tuple(() for _ in named), tuple(named)


def applied(replicas: Sequence[Any], inputs: Any, kwargs: Any, devices: Any) -> list[Any]:
    """As torch's parallel_apply."""
    return [replica(*args, **named) for replica, args, named in zip(replicas, inputs, kwargs, strict=True)]


def gathered(outputs: Sequence[Any], device: Any, dim: int) -> Any:
    """As torch's gather, which refuses nothing but takes single numbers for rows of one."""
    if isinstance(outputs[0], dict):
        return {name: gathered([each[name] for each in outputs], device, dim) for name in outputs[0]}
    if isinstance(outputs[0], tuple):
        return tuple(gathered(each, device, dim) for each in zip(*outputs, strict=True))
    return torch.cat([each.reshape(1) if not each.ndim else each for each in outputs])


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every copy of a model lies in the memory of the processor."""
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
    """Divides its loss by the count that it is told."""

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
    """Rows of different lengths; the last has no label."""
    data = Sentences(rows)
    made = padded([data[index] for index in range(rows)])
    made["labels"][-1] = -100
    return made


@pytest.mark.usefixtures("two_devices")
@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("kind", [Reader, InTuples, Counting])
def test_the_loss_is_that_of_one_device(kind: type[Any], rows: int) -> None:
    """And so are its gradients, where parts have other numbers of labels than others, or none."""
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
def test_without_a_count_parts_weigh_the_same() -> None:
    """As in the reference library, whose loss is the mean of those of the devices."""
    wrapped, _ = DataParallel([0, 1]).prepare(Reader(), lambda wrapped: wrapped)
    made = batch(4)
    parts = [wrapped.module(made["words"][rows], made["labels"][rows])["loss"] for rows in (slice(0, 2), slice(2, 4))]
    torch.testing.assert_close(wrapped(**made)["loss"], sum(parts) / 2)


@pytest.mark.usefixtures("two_devices")
def test_what_is_no_loss_stays_as_it_is() -> None:
    """A row of numbers, one for each row of the batch, is not added up."""

    class Heights(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return (x.sum(1),)

    wrapped, _ = DataParallel([0, 1]).prepare(Heights(), lambda wrapped: wrapped)
    assert wrapped(x=torch.ones(4, 3))[0].tolist() == [3.0] * 4


def arguments(folder: Path, **given: Any) -> TrainingArguments:
    """Short runs."""
    return TrainingArguments(
        str(folder), use_cpu=True, report_to=[], disable_tqdm=True, learning_rate=0.01, logging_steps=1, **given
    )


def trained(args: TrainingArguments, resume: str | None = None, **injected: Any) -> Any:
    """A run of three steps, and its evaluation."""
    trainer = Trainer(Reader(), args, padded, Sentences(24), Sentences(7), **injected)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


@pytest.mark.usefixtures("two_devices")
def test_a_run_is_that_of_one_device(tmp_path: Path) -> None:
    """Trained, saved, resumed and evaluated: the same losses and weights, under the names of the user's model."""
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


def test_a_process_alone_takes_all_gpus_that_it_sees(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A batch of the process is one for each of them; one of several processes takes its own, and a named one is it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    args = TrainingArguments(str(tmp_path), per_device_train_batch_size=2)
    assert (args.n_gpu, args.train_batch_size) == (4, 8)
    args.surroundings = Surroundings(world_size=2)
    assert args.n_gpu == 1
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "cuda:0")
    assert TrainingArguments(str(tmp_path)).n_gpu == 1


def test_who_brings_another_parallelism_computes_on_one_device(tmp_path: Path) -> None:
    """The batch is not multiplied by GPUs that take no part."""
    args = arguments(tmp_path, per_device_train_batch_size=2)
    args.use_cpu = False
    args.surroundings = Surroundings(device="cpu", n_gpu=3)
    trainer = Trainer(Reader(), args, padded, Sentences(8), parallelism=SingleProcess())
    assert (trainer.args.n_gpu, trainer.args.train_batch_size) == (1, 2)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_train_as_one(tmp_path: Path) -> None:
    """On real devices: the same weights as on the first alone."""
    models = []
    for surroundings in (Surroundings(device="cuda:0", n_gpu=1), Surroundings()):
        args = arguments(tmp_path, per_device_train_batch_size=8 // max(1, surroundings.n_gpu or 2), save_strategy="no")
        args.use_cpu, args.surroundings = False, surroundings
        models.append(trained(args).model.cpu().state_dict())
    for name, value in models[0].items():
        torch.testing.assert_close(models[1][name], value, rtol=1e-4, atol=1e-6)
