"""With skip_memory_metrics=False the metrics report each stage's memory, under transformers' names."""

from __future__ import annotations

import gc
import mmap
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from transformers import Trainer as ReferenceTrainer
from transformers import TrainingArguments as ReferenceArguments

from hexloop.adapters.device.torch import CpuDevice
from hexloop.app.run.memory_metrics import MeasuredMemory, memory_stages_for
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.device import Memory
from hexloop.testing import SimulatedDevice
from tests.end_to_end.small.models import Net, net, rows
from tests.end_to_end.small.trainers import DEFAULTS, arguments, small_trainer

MEGABYTE = 1 << 20


def measuring(folder: Path, **parts: Any) -> Any:
    return small_trainer(folder, parts={"eval_dataset": rows(8), **parts}, skip_memory_metrics=False)


def names(metrics: Any) -> list[str]:
    return sorted(name for name in metrics if "mem_" in name)


def reference(folder: Path) -> Any:
    args = ReferenceArguments(output_dir=str(folder), skip_memory_metrics=False, **DEFAULTS)
    return ReferenceTrainer(model=net(), args=args, train_dataset=rows(16), eval_dataset=rows(8))


def told(trainer: Any, stages: tuple[str, ...]) -> list[list[str]]:
    """Return the names of the metrics of each stage."""
    ended = [getattr(trainer, stage)(*([rows(8)] if stage == "predict" else [])) for stage in stages]
    return [names(each if isinstance(each, dict) else each.metrics) for each in ended]


@pytest.mark.matrix
@pytest.mark.parametrize("order", [("train", "evaluate", "predict"), ("evaluate", "train"), ("predict", "evaluate")])
def test_names_match_transformers(tmp_path: Path, order: tuple[str, ...]) -> None:
    """In any order of stages; those of the constructor are reported with the first."""
    ours, theirs = (told(trainer, order) for trainer in (measuring(tmp_path), reference(tmp_path)))

    assert ours == theirs
    assert ours[0][0] == "before_init_mem_cpu"
    assert all(ours)


def test_an_evaluation_within_training_belongs_to_it(tmp_path: Path) -> None:
    """It reports no metrics of its own; the training reports both."""
    trainer = small_trainer(tmp_path, parts={"eval_dataset": rows(8)}, skip_memory_metrics=False, eval_strategy="epoch")
    metrics = trainer.train().metrics

    logged = [names(entry) for entry in trainer.state.log_history]
    assert logged[:-1] == [[]] * (len(logged) - 1)
    assert logged[-1] == names(metrics)
    assert "train_mem_cpu_alloc_delta" in metrics


def test_nothing_is_reported_unless_requested(tmp_path: Path) -> None:
    """By default no memory is measured."""
    assert names(small_trainer(tmp_path).train().metrics) == []


def test_memory_kept_by_a_stage_is_its_allocation(tmp_path: Path) -> None:
    """Memory still held at the end counts as allocated; freed memory only raises the peak."""
    stages = memory_stages_for(arguments(tmp_path, skip_memory_metrics=False), CpuDevice())
    gc.collect()  # so that garbage of other tests is not freed meanwhile
    stages.start("train")
    kept = mmap.mmap(-1, 64 * MEGABYTE)  # malloc could return memory that other tests freed and that is still resident
    kept.write(b"1" * (64 * MEGABYTE))
    metrics = stages.end("train")

    assert metrics["train_mem_cpu_alloc_delta"] > 32 * MEGABYTE
    kept.close()


def test_a_device_with_memory_statistics_has_its_own_metrics() -> None:
    """They are exact: the memory in use at the start, what the stage added, and the height of its peak."""
    device = SimulatedDevice(total=1000)
    device.allocate(100)
    device.allocate(300)
    device.free(300)
    stages = MeasuredMemory(device)
    stages.start("init")
    device.allocate(10)
    stages.end("init")
    stages.start("train")
    device.allocate(200)
    device.free(150)
    metrics = stages.end("train")

    assert metrics["before_init_mem_gpu"] == 100
    assert metrics["init_mem_gpu_alloc_delta"] == 10
    assert metrics["init_mem_gpu_peaked_delta"] == 0
    assert metrics["train_mem_gpu_alloc_delta"] == 50
    assert metrics["train_mem_gpu_peaked_delta"] == 150
    assert device.memory() == Memory(160, 310, 1000)


def test_the_stage_after_an_error_is_measured(tmp_path: Path) -> None:
    """A stage that ended with an error does not affect the next."""

    class Failing(Net):
        fails = True

        def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
            if self.fails:
                raise ArithmeticError
            return super().forward(x, labels)

    trainer = measuring(tmp_path, model=net(kind=Failing))
    for failing in (trainer.train, trainer.evaluate):
        with pytest.raises(ArithmeticError):
            failing()
    trainer.model.fails = False

    assert "eval_mem_cpu_alloc_delta" in trainer.evaluate()
    assert "train_mem_cpu_alloc_delta" in trainer.train().metrics


def test_without_psutil_it_is_refused(tmp_path: Path) -> None:
    """The error names what to install."""
    with pytest.raises(ConfigurationError, match="install psutil"):
        memory_stages_for(arguments(tmp_path, skip_memory_metrics=False), CpuDevice(), found=lambda _name: None)
