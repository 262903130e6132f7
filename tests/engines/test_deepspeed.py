"""Training under DeepSpeed in real processes over gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.engines.deepspeed_worker import Classifier, train
from tests.engines.processes import QUIET, run_ranks

pytest.importorskip("deepspeed")

LIMIT = 240


def zero(stage: int, **further: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage}, **further}


def run(phases: list[dict[str, Any]], processes: int = 2, /, **arguments: Any) -> list[dict[str, Any]]:
    """Return the reports of the phases of a job, run in processes of their own with a time limit for each."""
    words = ("-m", "tests.engines.deepspeed_worker", json.dumps({"arguments": arguments, "phases": phases}))
    run_ranks(processes, *words, folder=Path(phases[0]["output"]).parent, variables=QUIET)
    reports = [json.loads(Path(phase["output"], "report.json").read_text()) for phase in phases]
    for report in reports:
        assert (report["engine"], report["world_size"]) == ("DeepSpeedEngine", processes)
    return reports


def weights(folder: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for file in sorted(folder.glob("model*.safetensors")):
        found |= load_file(file)
    return found


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Return the norm of the difference, relative to the norm of the whole model."""
    assert one.keys() == other.keys()
    difference = torch.stack([(one[name].float() - other[name].float()).norm() for name in one]).norm()
    return float(difference / torch.stack([tensor.float().norm() for tensor in one.values()]).norm())


def assert_logs_agree(one: list[dict[str, Any]], other: list[dict[str, Any]], tolerance: float) -> None:
    assert len(one) == len(other)
    for left, right in zip(one, other, strict=True):
        assert left.keys() == right.keys()
        for name in left.keys() - {each for each in left if "runtime" in each or "per_second" in each}:
            assert right[name] == pytest.approx(left[name], rel=tolerance, abs=1e-9), (name, left, right)


def alone(folder: Path, **arguments: Any) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Return the result of the same samples and optimizer steps in one process without DeepSpeed."""
    trainer = train(str(folder), {"per_device_train_batch_size": 4, **arguments})
    trainer.save_model(str(folder / "model"))
    return trainer.state.log_history, weights(folder / "model")


def assert_as_alone_and_resumable(
    folder: Path, stage: int, offload: dict[str, Any] | None = None, **arguments: Any
) -> None:
    """Check that 20 updates with partial windows match one process, and that a run resumed at step 10 matches, too."""
    saving = {"save_strategy": "steps", "save_steps": 10}
    evaluating: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 10}
    log, expected = alone(folder / "alone", **evaluating, **arguments)
    phases: list[dict[str, Any]] = [
        {"output": str(folder / "whole"), "arguments": saving},
        {"output": str(folder / "resumed"), "resume": str(folder / "whole" / "checkpoint-10")},
    ]
    config = {"zero_optimization": {"stage": stage, **(offload or {})}}
    whole, resumed = run(phases, deepspeed=config, **evaluating, **arguments)
    assert whole["stage"] == stage
    programs = [each for each in whole["programs"] if Path(each).name != "git"]  # which is asked once, at the start
    assert programs == [], "DeepSpeed counts memory nodes by a program, at every step if it is let"
    assert whole["parameters"] == sum(parameter.numel() for parameter in Classifier().parameters())
    assert_logs_agree(log, whole["log"], 1e-5)
    assert distance(expected, weights(folder / "whole" / "model")) < 1e-5
    assert distance(expected, weights(folder / "whole" / "checkpoint-20")) < 1e-5
    last = next(entry["eval_loss"] for entry in reversed(log) if "eval_loss" in entry)
    assert whole["evaluated"] == pytest.approx(last, rel=1e-5), "an evaluation after the run"
    assert_logs_agree(whole["log"], resumed["log"], 0.0)
    for name, tensor in weights(folder / "whole" / "model").items():
        assert torch.equal(tensor, weights(folder / "resumed" / "model")[name]), name


def test_zero_2_in_two_processes_matches_one_and_resumes_exactly(tmp_path: Path) -> None:
    """Partitioned gradients and moments, and a checkpoint in between, do not change the result."""
    assert_as_alone_and_resumable(tmp_path, stage=2)


@pytest.mark.matrix
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_group_without_parameters_is_left_out(tmp_path: Path, stage: int) -> None:
    """As with adapters, all of which are decayed. DeepSpeed would remove it after the schedule was made."""
    trained = ["first.weight", "last.weight"]
    phases: list[dict[str, Any]] = [
        {"output": str(tmp_path / "whole"), "trained": trained, "arguments": {"save_strategy": "steps"}},
        {"output": str(tmp_path / "rest"), "trained": trained, "resume": str(tmp_path / "whole" / "checkpoint-3")},
    ]
    whole, rest = run(phases, deepspeed=zero(stage), max_steps=5, save_steps=3)
    assert whole["rates"] == rest["rates"] == [0.0]
    assert_logs_agree(whole["log"], rest["log"], 0.0)


@pytest.mark.matrix
@pytest.mark.parametrize("stage", [0, 1, 3])
def test_every_stage_matches_one_process_and_resumes_exactly(tmp_path: Path, stage: int) -> None:
    """The other stages match, too, including partitioned weights."""
    assert_as_alone_and_resumable(tmp_path, stage)


@pytest.mark.matrix
@pytest.mark.timeout(4 * LIMIT)
@pytest.mark.parametrize("also", [(), ("offload_param",)], ids=["moments", "moments and weights"])
def test_training_with_disk_offload_matches_and_resumes(tmp_path: Path, also: tuple[str, ...]) -> None:
    """Moments, or also weights, on an NVMe disk. DeepSpeed compiles its disk access, which needs libaio."""
    from deepspeed.ops.op_builder import AsyncIOBuilder

    if not AsyncIOBuilder().is_compatible():
        pytest.skip("needs libaio and its headers")
    building = "from deepspeed.ops.op_builder import AsyncIOBuilder; AsyncIOBuilder().load()"  # minutes to build
    subprocess.run([sys.executable, "-c", building], check=True, capture_output=True, env={**os.environ, **QUIET})
    disk = {"device": "nvme", "nvme_path": str(tmp_path / "disk")}
    (tmp_path / "disk").mkdir()
    assert_as_alone_and_resumable(tmp_path, 3, dict.fromkeys(("offload_optimizer", *also), disk))


ADAMW = {
    "type": "AdamW",
    "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto", "torch_adam": True},
}
DECAY = {
    "type": "WarmupDecayLR",
    "params": {
        "warmup_min_lr": "auto",
        "warmup_max_lr": "auto",
        "warmup_num_steps": "auto",
        "total_num_steps": "auto",
        "warmup_type": "linear",
    },
}
HALF = {"bf16": {"enabled": "auto"}}
ON_CPU = {"device": "cpu"}

EXACT: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    **{f"bf16, stage {stage}": (2, zero(stage, **HALF), {"bf16": True}) for stage in (0, 1, 2, 3)},
    "bf16, gradients in fp32": (
        2,
        zero(1, **HALF, data_types={"grad_accum_dtype": "fp32"}),
        {"bf16": True},
    ),
    "offloaded optimizer": (2, {"zero_optimization": {"stage": 2, "offload_optimizer": ON_CPU}}, {}),
    "offloaded weights": (
        2,
        {"zero_optimization": {"stage": 3, "offload_optimizer": ON_CPU, "offload_param": ON_CPU}},
        {},
    ),
    "optimizer and schedule of DeepSpeed": (2, zero(2, optimizer=ADAMW, scheduler=DECAY), {"warmup_steps": 5}),
    "four processes, stage 2": (4, zero(2), {}),
    "four processes, stage 3": (4, zero(3), {}),
    "one process": (1, zero(3), {}),
}


@pytest.mark.matrix
@pytest.mark.parametrize("name", EXACT)
def test_a_resumed_run_matches_an_uninterrupted_one(name: str, tmp_path: Path) -> None:
    """Resume is bitwise exact, whatever state the engine stores besides the weights and wherever it stores it."""
    processes, configuration, arguments = EXACT[name]
    whole, resumed = run(
        [
            {"output": str(tmp_path / "whole"), "arguments": {"save_strategy": "steps", "save_steps": 10}},
            {"output": str(tmp_path / "resumed"), "resume": str(tmp_path / "whole" / "checkpoint-10")},
        ],
        processes,
        deepspeed=configuration,
        **arguments,
    )
    assert_logs_agree(whole["log"], resumed["log"], 0.0)
    for key, tensor in weights(tmp_path / "whole" / "model").items():
        assert torch.equal(tensor, weights(tmp_path / "resumed" / "model")[key]), key


@pytest.mark.matrix
@pytest.mark.parametrize("stage", [0, 2])
def test_the_reduce_operation_reaches_the_engine(stage: int, tmp_path: Path) -> None:
    """Without `reduce_op` the engine averages; with sum, gradients are larger by the number of processes."""
    reports = [
        run([{"output": str(tmp_path / name)}], deepspeed=zero(stage, **chosen), max_grad_norm=0.0)[0]
        for name, chosen in (
            ("none", {}),
            ("mean", {"gradient_allreduce_op": "mean"}),
            ("sum", {"gradient_allreduce_op": "sum"}),
        )
    ]
    none, mean, summed = (report["log"] for report in reports)
    assert_logs_agree(none, mean, 1e-5)
    assert summed[0]["grad_norm"] == pytest.approx(2 * mean[0]["grad_norm"], rel=1e-5)
    assert summed[0]["loss"] == pytest.approx(mean[0]["loss"], rel=1e-6)


@pytest.mark.matrix
def test_a_checkpoint_resumes_without_deepspeed_and_with_another_number_of_processes(tmp_path: Path) -> None:
    """Checkpoints have the format of one process: ZeRO 3 of two, one process, and ZeRO 3 of four read each other's."""
    saving = {"save_strategy": "steps", "save_steps": 10}
    (spread,) = run([{"output": str(tmp_path / "spread"), "arguments": saving}], deepspeed=zero(3))
    with pytest.warns(UserWarning, match="processes"):
        plain = train(
            str(tmp_path / "plain"),
            {"per_device_train_batch_size": 4},
            str(tmp_path / "spread" / "checkpoint-10"),
        )
    assert_logs_agree(plain.state.log_history, spread["log"], 1e-5)
    plain = train(str(tmp_path / "saved"), {"per_device_train_batch_size": 4, **saving})
    for processes, stage, batch in ((2, 2, 2), (4, 3, 1)):
        output = tmp_path / f"of {processes}"
        (report,) = run(
            [{"output": str(output), "resume": str(tmp_path / "saved" / "checkpoint-10")}],
            processes,
            deepspeed=zero(stage),
            per_device_train_batch_size=batch,
        )
        assert_logs_agree(plain.state.log_history, report["log"], 1e-5)
        assert distance(weights(tmp_path / "spread" / "model"), weights(output / "model")) < 1e-5


@pytest.mark.matrix
@pytest.mark.parametrize("stage", [1, 3])
def test_the_best_weights_are_loaded_at_the_end(stage: int, tmp_path: Path) -> None:
    """They are the weights that one process finishes with."""
    choosing: dict[str, Any] = {
        "eval_strategy": "steps",
        "eval_steps": 4,
        "save_strategy": "steps",
        "save_steps": 4,
        "load_best_model_at_end": True,
        "learning_rate": 0.2,
    }
    _, expected = alone(tmp_path / "alone", **choosing)
    run([{"output": str(tmp_path / "best")}], deepspeed=zero(stage), **choosing)
    assert distance(expected, weights(tmp_path / "best" / "model")) < 1e-5


@pytest.mark.matrix
def test_a_second_run_of_a_trainer_starts_with_the_weights_of_the_first(tmp_path: Path) -> None:
    """A new engine is created, even where the first one partitioned the weights."""
    logs = []
    for stage in (0, 3):
        (report,) = run([{"output": str(tmp_path / str(stage)), "again": 2}], deepspeed=zero(stage))
        logs.append(report["log"])
    assert_logs_agree(logs[0], logs[1], 1e-5)
