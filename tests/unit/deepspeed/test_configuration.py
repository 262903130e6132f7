"""DeepSpeed's configuration, completed from the arguments and compared with them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hexloop import TrainingArguments
from hexloop.adapters.engines.deepspeed.configuration import (
    AUTO,
    DeepSpeedConfiguration,
    RunLength,
    autos_in,
    deepspeed_configuration,
    entry,
)


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACCELERATE_USE_DEEPSPEED", "ACCELERATE_DEEPSPEED_CONFIG_FILE", "ACCELERATE_MIXED_PRECISION"):
        monkeypatch.delenv(name, raising=False)


def configured(deepspeed: Any = None, **arguments: Any) -> DeepSpeedConfiguration:
    found = deepspeed_configuration(TrainingArguments("out", use_cpu=True, deepspeed=deepspeed, **arguments))
    assert found is not None
    return found


def zero(stage: int, **further: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage}, **further}


def test_without_an_argument_or_a_launcher_there_is_none() -> None:
    """DeepSpeed is never turned on unasked."""
    assert deepspeed_configuration(TrainingArguments("out", use_cpu=True)) is None


ARGUMENTS: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 3,
    "max_grad_norm": 0.5,
    "learning_rate": 3e-4,
    "adam_beta1": 0.8,
    "adam_beta2": 0.95,
    "adam_epsilon": 1e-7,
    "weight_decay": 0.1,
    "bf16": True,
}

FILLED = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 3,
    "train_batch_size": 12,
    "gradient_clipping": 0.5,
    "optimizer.params.lr": 3e-4,
    "optimizer.params.betas": [0.8, 0.95],
    "optimizer.params.eps": 1e-7,
    "optimizer.params.weight_decay": 0.1,
    "scheduler.params.warmup_min_lr": 0,
    "scheduler.params.warmup_max_lr": 3e-4,
    "bf16.enabled": True,
    "fp16.enabled": False,
    "amp.enabled": False,
    "amp.opt_level": "O1",
}


def nested(values: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for path, value in values.items():
        *sections, name = path.split(".")
        inner = made
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[name] = value
    return made


@pytest.mark.parametrize("path", FILLED)
def test_an_entry_that_is_left_to_the_arguments_is_what_they_say(path: str) -> None:
    """Each of them."""
    found = configured(nested({path: AUTO}) | {"zero_optimization": {"stage": 2}}, **ARGUMENTS)
    assert not found.problems
    assert entry(found.values, path) == FILLED[path]


@pytest.mark.parametrize("left_out", ["train_batch_size", "gradient_clipping", "bf16.enabled"])
def test_an_entry_that_is_left_out_is_what_the_arguments_say_too(left_out: str) -> None:
    """As an engine has one value of it, whoever names it."""
    assert entry(configured(zero(1), **ARGUMENTS).values, left_out) == FILLED[left_out]


OTHERS: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 5,
    "gradient_accumulation_steps": 2,
    "train_batch_size": 24,
    "gradient_clipping": 1.0,
    "optimizer.params.lr": 1e-3,
    "optimizer.params.betas": [0.9, 0.95],
    "optimizer.params.eps": 1e-8,
    "optimizer.params.weight_decay": 0.0,
    "scheduler.params.warmup_max_lr": 1e-3,
    "bf16.enabled": False,
    "fp16.enabled": True,
}


@pytest.mark.parametrize("path", OTHERS)
def test_an_entry_that_says_something_else_than_the_arguments_is_refused(path: str) -> None:
    """The sentence names both values, and the way out."""
    found = configured(nested({path: OTHERS[path]}), **ARGUMENTS)
    sentence = next(each for each in found.problems if f"{path}=" in each)
    assert f"{path}={OTHERS[path]!r}" in sentence
    assert f"is {FILLED[path]!r}" in sentence
    assert "'auto'" in sentence


def test_all_contradictions_are_told_at_once() -> None:
    """One after the other would take as many starts as there are."""
    found = configured(nested(OTHERS), **ARGUMENTS)
    assert sum(any(f"{path}=" in problem for problem in found.problems) for path in OTHERS) == len(OTHERS)


def test_values_that_are_the_same_are_accepted() -> None:
    """A configuration may repeat what the arguments say."""
    assert not configured(nested(FILLED), **ARGUMENTS).problems


def test_the_engine_measures_no_speed_unasked() -> None:
    """It waits for the device at every step to do so; who has it print, or says how it is to measure, gets that."""
    quiet, asked = {"throughput": {"enabled": False}}, {"throughput": {"enabled": True, "synchronized": False}}
    assert configured(zero(2)).values["timers"] == quiet
    assert configured(zero(2, timers=asked)).values["timers"] == asked
    assert "timers" not in configured(zero(2, steps_per_print=100)).values


def test_the_given_mapping_is_left_alone() -> None:
    """It is the user's, and may be used again."""
    given = zero(2, train_batch_size=AUTO)
    configured(given)
    assert given == zero(2, train_batch_size=AUTO)


def test_a_file_is_read(tmp_path: Path) -> None:
    """As a mapping in its place."""
    path = tmp_path / "zero.json"
    path.write_text(json.dumps(zero(3)), encoding="utf-8")
    assert configured(str(path)).values == configured(zero(3)).values


def test_an_entry_that_no_argument_speaks_for_cannot_be_left_to_them() -> None:
    """It would reach DeepSpeed as the word."""
    (problem,) = configured(zero(2, communication_data_type=AUTO)).problems
    assert "communication_data_type='auto'" in problem


def model_of(size: int) -> Any:
    return SimpleNamespace(config=SimpleNamespace(hidden_size=size))


SIZES = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")


def test_sizes_follow_from_the_models_hidden_states() -> None:
    """size², 0.9 size², 10 size; the last two in stage 3 alone."""
    given = {"zero_optimization": {"stage": 3, **dict.fromkeys(SIZES, AUTO)}}
    values, problems = configured(given).for_model(model_of(64))
    assert not problems
    assert [values["zero_optimization"][name] for name in SIZES] == [4096, 3686, 640]
    given["zero_optimization"]["stage"] = 2
    values, _ = configured(given).for_model(model_of(64))
    assert values["zero_optimization"] == {"stage": 2, "reduce_bucket_size": 4096}
    assert not list(autos_in(values))


def test_a_model_may_have_several_sizes_or_a_text_part() -> None:
    """Of several the largest counts."""
    given = {"zero_optimization": {"stage": 2, "reduce_bucket_size": AUTO}}
    for config in (SimpleNamespace(hidden_sizes=[8, 16]), SimpleNamespace(text_config=SimpleNamespace(hidden_size=16))):
        values, _ = configured(given).for_model(SimpleNamespace(config=config))
        assert values["zero_optimization"]["reduce_bucket_size"] == 256


def test_a_model_that_names_no_size_leaves_nothing_to_follow_from() -> None:
    """Numbers are asked for; where none are left to it, nothing is."""
    given = {"zero_optimization": {"stage": 2, "reduce_bucket_size": AUTO}}
    (problem,) = configured(given).for_model(object())[1]
    assert "zero_optimization.reduce_bucket_size='auto'" in problem
    assert not configured(zero(2)).for_model(object())[1]


def test_a_schedule_gets_the_length_of_the_run() -> None:
    """A warm-up of no step is one step, as DeepSpeed takes no less; other numbers contradict."""
    section = {"type": "WarmupDecayLR", "params": {"total_num_steps": AUTO, "warmup_num_steps": AUTO}}
    values, problems = configured(zero(2, scheduler=section)).for_length(RunLength(total=90, warmup=0))
    assert (values["params"], problems) == ({"total_num_steps": 90, "warmup_num_steps": 1}, [])
    section = {"type": "WarmupDecayLR", "params": {"total_num_steps": 80, "warmup_num_steps": 5}}
    _, problems = configured(zero(2, scheduler=section)).for_length(RunLength(total=90, warmup=6))
    assert len(problems) == 2


IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "zero_optimization.stage=4": zero(4),
    "offload_optimizer.device='cpu'": {"zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu"}}},
    "offload_optimizer.device='nvme'": {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme"}}},
    "offload_param.device='cpu'": {"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}},
    "nvme_path names no folder": {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}},
    "takes none, cpu or nvme": {"zero_optimization": {"stage": 3, "offload_param": {"device": "tape"}}},
    "fp16 and bf16": {"fp16": {"enabled": True}, "bf16": {"enabled": True}},
    "amp.enabled=True": zero(1, amp={"enabled": True}),
    "tensor_parallel.autotp_size=2": {"tensor_parallel": {"autotp_size": 2}},
    "zero_quantized_nontrainable_weights=True": {
        "zero_optimization": {"stage": 3, "zero_quantized_nontrainable_weights": True}
    },
    "sequence_parallel_size=2": {"sequence_parallel_size": 2},
    "gradient_allreduce_op='median'": zero(2, gradient_allreduce_op="median"),
    "ZeRO 3 only takes means": zero(3, gradient_allreduce_op="sum"),
}


@pytest.mark.parametrize("said", IMPOSSIBLE)
def test_what_cannot_work_is_refused(said: str) -> None:
    """With its reason, before DeepSpeed is asked."""
    assert any(said in problem for problem in configured(IMPOSSIBLE[said]).problems)


def test_nvme_with_a_folder_works_in_stage_3() -> None:
    """For the optimizer and for the weights."""
    disk = {"device": "nvme", "nvme_path": "/local_nvme"}
    assert not configured(
        {"zero_optimization": {"stage": 3, "offload_optimizer": disk, "offload_param": disk}}
    ).problems


def test_the_half_format_is_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the arguments, though the configuration has no section of it."""
    assert configured(zero(2), bf16=True).half == "bf16"
    assert configured(zero(2)).half is None


def test_the_launcher_may_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `accelerate launch --use_deepspeed` sets its variables."""
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    assert configured().stage == 2
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", "3")
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", "cpu")
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    monkeypatch.setenv("ACCELERATE_GRADIENT_CLIPPING", "1.0")
    found = configured(gradient_accumulation_steps=4)
    assert found.stage == 3
    assert entry(found.values, "zero_optimization.offload_param.device") == "cpu"
    assert not found.problems
    assert "gradient_accumulation_steps=4" in configured(gradient_accumulation_steps=2).problems[0]


def test_the_launcher_may_name_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It comes before the launcher's other variables, and after the argument."""
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", "3")
    path = tmp_path / "zero.json"
    path.write_text(json.dumps(zero(1)), encoding="utf-8")
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", str(path))
    assert configured().stage == 1
    assert configured(zero(2)).stage == 2
    path.write_text("[", encoding="utf-8")
    assert "cannot be read as JSON" in configured().problems[0]
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", "none")
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", "three")
    assert "takes a number" in configured().problems[0]
