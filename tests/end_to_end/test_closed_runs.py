"""A closed run leaves nothing of a device to the garbage collector, and a worker destroys nothing that it inherits."""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from hexloop import StepEnded, TrainerCallback
from tests.end_to_end.small.models import rows
from tests.end_to_end.small.trainers import small_trainer

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "saves": {"save_strategy": "steps", "save_steps": 1},
    "asynchronous saves": {"save_strategy": "steps", "save_steps": 1, "save_async": True},
    "best model": {
        "save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1,
        "load_best_model_at_end": True,
    },
    "accumulation and rollback": {"gradient_accumulation_steps": 2, "on_nonfinite": "rollback"},
    "reproduce": {"reproduce": "transformers", "save_strategy": "steps", "save_steps": 1},
    "batch size search": {"auto_find_batch_size": True},
    "mixed precision": {"bf16": True},
    "adafactor": {"optim": "adafactor"},
    "plateaus": {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps", "eval_steps": 1},
    "meters": {"log_goodput": True, "profile": {"wait": 0, "warmup": 1, "steps": 1}, "on_nonfinite": "rollback"},
    "workers": {"dataloader_num_workers": 1, "dataloader_persistent_workers": True},
}  # fmt: skip


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Train once, for what is only imported and made once."""
    small_trainer(tmp_path_factory.mktemp("warm"), max_steps=1).train()


@pytest.fixture
def collected(warm: None) -> Iterator[None]:
    """Keep the garbage collector from running, and what it finds in the end in `gc.garbage`.

    It passes over what earlier tests left, such as a compiled model that something else lets go of during this one.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


def left_tensors() -> list[str]:
    """Return the tensors that only the garbage collector can free, or what would be on another device."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    kinds = (torch.Tensor, torch.Stream, torch.Event)
    return [f"{type(each).__name__} {getattr(each, 'shape', '')}" for each in gc.garbage if isinstance(each, kinds)]


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_a_finished_run_leaves_no_cycle_with_a_tensor(
    tmp_path: Path, collected: None, settings: dict[str, Any]
) -> None:
    """Neither the run nor its Trainer needs the garbage collector to be freed."""
    small_trainer(tmp_path, parts={"eval_dataset": rows(8)}, max_steps=3, **settings).train()
    assert left_tensors() == []


class Fails(TrainerCallback):
    """A callback with a bug."""

    def on_step_end(self, *_: Any, **__: Any) -> None:
        raise ArithmeticError("planted")


def test_a_failed_run_leaves_none(tmp_path: Path, collected: None) -> None:
    """Once its error is handled."""
    with pytest.raises(ArithmeticError, match="planted") as caught:
        small_trainer(tmp_path, parts={"callbacks": [Fails()]}, max_steps=3).train()
    del caught
    assert left_tensors() == []


def test_a_stream_that_is_closed_early_leaves_none(tmp_path: Path, collected: None) -> None:
    """After its second step."""
    with closing(small_trainer(tmp_path, max_steps=5).stream()) as events:
        steps = (event for event in events if isinstance(event, StepEnded))
        next(steps), next(steps)
    del events, steps
    assert left_tensors() == []


class Remnant:
    """An object in a cycle, such as a stream of a device, that must be destroyed in its own process."""

    def __init__(self, file: Path) -> None:
        self.file, self.itself = file, self

    def __del__(self) -> None:
        with self.file.open("a") as file:
            file.write(f"{os.getpid()}\n")


class Collecting(Dataset[Any]):
    """Rows of a dataset that needs a garbage collection."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, row: int) -> Any:
        gc.collect()
        return {"x": torch.ones(4) * row, "labels": torch.ones(1)}


@pytest.fixture(params=["frozen", "not frozen"])
def heap(request: pytest.FixtureRequest) -> Iterator[str]:
    """Freeze the objects of the program so far, or none."""
    if request.param == "not frozen":
        gc.unfreeze()
    else:
        gc.freeze()
    yield request.param
    gc.freeze()


@pytest.mark.matrix
@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs processes that are forked")
def test_a_worker_destroys_no_garbage_that_it_inherits(tmp_path: Path, heap: str) -> None:
    """Such as CUDA objects of an earlier run in this process."""
    settings: dict[str, Any] = {
        "max_steps": 2,
        "dataloader_num_workers": 1,
        "dataloader_multiprocessing_context": "fork",
    }
    trainer = small_trainer(tmp_path, parts={"train_dataset": Collecting()}, **settings)
    gc.collect()
    gc.disable()
    try:
        Remnant(tmp_path / "destroyed")
        trainer.train()
    finally:
        gc.enable()
    assert (gc.get_freeze_count() > 0) == (heap == "frozen")
    destroyed, until = tmp_path / "destroyed", time.monotonic() + 30
    while not destroyed.exists() and time.monotonic() < until:
        gc.collect()  # does nothing while another thread collects
        time.sleep(0.01)
    assert destroyed.read_text() == f"{os.getpid()}\n"
