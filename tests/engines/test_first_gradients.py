"""Under each engine, reduced gradients match those of one process with the same global batch."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from hexloop import TrainerCallback
from tests.end_to_end.parity.compare import assert_same_gradients
from tests.engines.several.training import Training, fresh, run
from tests.engines.several.whole import KeepingGradients, kept_gradients

TOLERANCE = 1e-6
ROWS = 13
"""A window of 8, and the epoch's last window of 5, whose last batch does not reach every process."""

STRATEGIES = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")
FSDP = {1: "FullyShardedDataParallel", 2: "FSDPReader"}


class Keeping(KeepingGradients, TrainerCallback):
    """Keeps the gradients of a full window and of a partial one."""

    updates = 2


def training(**arguments: Any) -> Training:
    """Two updates with a learning rate of 0, so that both use the initial weights."""
    chosen = {"max_steps": 2, "learning_rate": 0.0, "max_grad_norm": 0.0, **arguments}
    return Training(rows=ROWS, batch=1, callbacks=(Keeping,), arguments=chosen)


def sharded(version: int, strategy: str, processes: int) -> Training:
    """Each layer is a unit of its own; the hybrid strategies use two replicas."""
    config: dict[str, Any] = {"version": version, "transformer_layer_cls_to_wrap": ["Linear"]}
    if strategy.startswith("hybrid"):
        config["device_mesh"] = [2, processes // 2]
    return training(fsdp=strategy, fsdp_config=config).of(processes, engine=FSDP[version])


def partitioned(stage: int, processes: int) -> Training:
    """Arguments of ZeRO."""
    config = {"zero_optimization": {"stage": stage}}
    return training(deepspeed=config).of(processes, engine="DeepSpeedEngine")


def assert_gradients_are_those_of_one(several: Training, folder: Path) -> None:
    """Compare each tensor, of a full window and of a padded partial one, over accumulated batches."""
    run(training(), fresh(folder / "one"))
    run(several, fresh(folder / "several"))
    for update in range(Keeping.updates):
        expected = kept_gradients(folder / "one", update)
        assert_same_gradients(kept_gradients(folder / "several", update), expected, TOLERANCE)


@pytest.mark.matrix
def test_gradients_of_four_processes_match_one(tmp_path: Path) -> None:
    """Under DistributedDataParallel."""
    assert_gradients_are_those_of_one(training().of(4), tmp_path)


@pytest.mark.matrix
def test_gradients_of_two_processes_match_one(tmp_path: Path) -> None:
    """Under DistributedDataParallel, with longer windows."""
    assert_gradients_are_those_of_one(training().of(2), tmp_path)


@pytest.mark.matrix
@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("version", FSDP)
def test_sharded_gradients_match_one_process(version: int, strategy: str, processes: int, tmp_path: Path) -> None:
    """Under each version and strategy of FSDP."""
    assert_gradients_are_those_of_one(sharded(version, strategy, processes), tmp_path)


@pytest.mark.matrix
@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed")
@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_partitioned_gradients_match_one_process(stage: int, processes: int, tmp_path: Path) -> None:
    """Under each stage of ZeRO."""
    assert_gradients_are_those_of_one(partitioned(stage, processes), tmp_path)
