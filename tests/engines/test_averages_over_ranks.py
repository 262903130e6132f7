"""Averages of weights in two processes: the same on each, sharded as the weights are, and exact on resume."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from hexloop.adapters.trainable.torch.averaged_weights import AveragedWeights
from tests.engines.several.training import Training, distance, ended, fresh, run

LAYERS = {"transformer_layer_cls_to_wrap": ["Linear"]}
ENGINES: dict[str, Training] = {
    "ddp": Training(2),
    "fsdp1": Training(
        2, engine="FullyShardedDataParallel", arguments={"fsdp": "full_shard", "fsdp_config": {"version": 1, **LAYERS}}
    ),
    "fsdp2": Training(
        2, engine="FSDPReader", arguments={"fsdp": "full_shard", "fsdp_config": {"version": 2, **LAYERS}}
    ),
}
KINDS: dict[str, dict[str, Any]] = {
    "moving": {"ema_decay": 0.8, "ema_start_step": 2},
    "moving, beside": {"ema_decay": 0.8, "ema_weights": "beside"},
    "schedule-free": {"optim": "schedule_free_adamw", "lr_scheduler_type": "constant"},
}
SAVED: dict[str, Any] = {
    "max_steps": 8, "save_strategy": "steps", "save_steps": 4, "eval_strategy": "steps", "eval_steps": 2,
}  # fmt: skip
CLOSE = 1e-5
"""Sums over processes are in another order than those of one process."""


def report_averages(trainer: Any) -> None:
    """Write how many elements of averages this process holds, and a sum of them, to its folder."""
    found = trainer._averages.weights
    averages: Any = getattr(found, "averages", None)
    held = averages.averages if isinstance(averages, AveragedWeights) and hasattr(averages, "averages") else {}
    local = [averages.local(each).double() for each in held.values()]
    rank = trainer.adapters.mesh.rank
    document = {"elements": sum(each.numel() for each in local), "sum": float(sum(each.sum() for each in local))}
    Path(trainer.args.output_dir, f"averages-{rank}.json").write_text(json.dumps(document))


def saved(folder: Path, step: int, below: str = "") -> dict[str, Tensor]:
    """Return the weights in the model's files of a checkpoint."""
    found: dict[str, Tensor] = {}
    for file in (folder / f"checkpoint-{step}" / below).glob("model*.safetensors"):
        found |= load_file(file)
    return found


def training_of(engine: str, kind: str, **given: Any) -> Training:
    made = ENGINES[engine]
    return made.of(2, arguments={**made.arguments, **SAVED, **KINDS[kind], **given})


def alone(training: Training) -> Training:
    kept = {name: value for name, value in training.arguments.items() if not name.startswith("fsdp")}
    return training.of(1, arguments=kept, afterwards=None)


@pytest.mark.one_in(100)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", ENGINES)
def test_two_processes_average_as_one(engine: str, kind: str, tmp_path: Path) -> None:
    """Logs and weights match those of one process; a resumed run is bit-identical."""
    if kind == "schedule-free" and importlib.util.find_spec("schedulefree") is None:
        pytest.skip("needs schedulefree")
    training = training_of(engine, kind)
    if kind == "moving, beside":
        training = training.of(2, afterwards=report_averages)
    one, both = run(alone(training), fresh(tmp_path / "1")), run(training, fresh(tmp_path / "2"))
    assert distance(one.weights, both.weights) < CLOSE
    for step in (4, 8):
        assert distance(saved(tmp_path / "1", step), saved(tmp_path / "2", step)) < CLOSE
    evaluated = [[entry for entry in each.logged if "eval_loss" in entry] for each in (one, both)]
    assert len(evaluated[0]) == len(evaluated[1]) == 4
    for ours, theirs in zip(*evaluated, strict=True):
        assert ours["eval_loss"] == pytest.approx(theirs["eval_loss"], abs=CLOSE)
    resumed = run(training.of(2, resume=str(tmp_path / "2/checkpoint-4")), fresh(tmp_path / "3"))
    assert distance(resumed.weights, both.weights) == 0.0
    assert distance(saved(tmp_path / "3", 8), saved(tmp_path / "2", 8)) == 0.0
    if kind == "moving, beside":
        assert distance(saved(tmp_path / "1", 8, "ema"), saved(tmp_path / "2", 8, "ema")) < CLOSE
        assert distance(saved(tmp_path / "3", 8, "ema"), saved(tmp_path / "2", 8, "ema")) == 0.0
        ranks = [json.loads((tmp_path / "2" / f"averages-{rank}.json").read_text()) for rank in (0, 1)]
        whole = sum(each.numel() for each in one.weights.values())
        if engine == "ddp":
            assert ranks[0] == ranks[1]
            assert ranks[0]["elements"] == whole
        else:
            assert ranks[0]["elements"] + ranks[1]["elements"] == whole
            assert max(each["elements"] for each in ranks) < whole


@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="needs deepspeed")
def test_deepspeed_is_refused(tmp_path: Path) -> None:
    """Before the run, with what to do."""
    arguments = {"deepspeed": {"zero_optimization": {"stage": 2}}, "ema_decay": 0.9}
    training = Training(2, engine="DeepSpeedEngine", arguments=arguments)
    for error in ended(training, fresh(tmp_path / "run")):
        assert "a moving average of weights (ema_decay) with the parallelism deepspeed" in error
        assert "train with DDP or with FSDP version 2" in error


def test_the_formula_by_hand_over_shards(tmp_path: Path) -> None:
    """Under FSDP 2, from what one process trains."""
    training = training_of("fsdp2", "moving", ema_start_step=0, save_steps=1, eval_strategy="no")
    run(training, fresh(tmp_path / "2"))
    plain = {name: value for name, value in alone(training).arguments.items() if not name.startswith("ema")}
    run(training.of(1, arguments=plain), fresh(tmp_path / "1"))
    first = saved(tmp_path / "1", 1)
    expected = {name: each.double() for name, each in first.items()}
    start = saved(tmp_path / "2", 1)
    initial = {name: (start[name].double() - 0.2 * each) / 0.8 for name, each in expected.items()}
    expected = initial
    for step in range(1, 9):
        trained = saved(tmp_path / "1", step)
        expected = {name: 0.8 * each + 0.2 * trained[name].double() for name, each in expected.items()}
        found = {name: each.double() for name, each in saved(tmp_path / "2", step).items()}
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
