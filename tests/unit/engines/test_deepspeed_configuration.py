"""Completing DeepSpeed's configuration from the training arguments and checking it against them."""

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


def test_deepspeed_is_off_by_default() -> None:
    """DeepSpeed is off unless an argument or the launcher turns it on."""
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
def test_auto_entries_are_filled_from_arguments(path: str) -> None:
    """Each "auto" entry takes its value from the arguments."""
    found = configured(nested({path: AUTO}) | {"zero_optimization": {"stage": 2}}, **ARGUMENTS)
    assert not found.problems
    assert entry(found.values, path) == FILLED[path]


@pytest.mark.parametrize("left_out", ["train_batch_size", "gradient_clipping", "bf16.enabled"])
def test_missing_entries_are_filled_from_arguments(left_out: str) -> None:
    """Entries that are missing take their values from the arguments."""
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
def test_entry_contradicting_an_argument_is_rejected(path: str) -> None:
    """The error names both values and how to fix the contradiction."""
    found = configured(nested({path: OTHERS[path]}), **ARGUMENTS)
    sentence = next(each for each in found.problems if f"{path}=" in each)
    assert f"{path}={OTHERS[path]!r}" in sentence
    assert f"is {FILLED[path]!r}" in sentence
    assert "'auto'" in sentence


def test_all_contradictions_are_reported_in_one_error() -> None:
    """One error lists every contradiction."""
    found = configured(nested(OTHERS), **ARGUMENTS)
    assert sum(any(f"{path}=" in problem for problem in found.problems) for path in OTHERS) == len(OTHERS)


def test_entries_equal_to_the_arguments_are_accepted() -> None:
    """A configuration may repeat the values of the arguments."""
    assert not configured(nested(FILLED), **ARGUMENTS).problems


def test_throughput_timer_is_off_by_default() -> None:
    """The throughput timer, which synchronizes the device at every step, is off unless it is configured."""
    quiet, asked = {"throughput": {"enabled": False}}, {"throughput": {"enabled": True, "synchronized": False}}
    assert configured(zero(2)).values["timers"] == quiet
    assert configured(zero(2, timers=asked)).values["timers"] == asked
    assert "timers" not in configured(zero(2, steps_per_print=100)).values


def test_given_mapping_is_not_modified() -> None:
    """The user's mapping is not modified."""
    given = zero(2, train_batch_size=AUTO)
    configured(given)
    assert given == zero(2, train_batch_size=AUTO)


def test_configuration_file_is_read(tmp_path: Path) -> None:
    """A path to a JSON file is accepted in place of a mapping."""
    path = tmp_path / "zero.json"
    path.write_text(json.dumps(zero(3)), encoding="utf-8")
    assert configured(str(path)).values == configured(zero(3)).values


def test_auto_without_a_matching_argument_is_rejected() -> None:
    """An entry without a corresponding argument cannot be "auto"."""
    (problem,) = configured(zero(2, communication_data_type=AUTO)).problems
    assert "communication_data_type='auto'" in problem


def model_of(size: int) -> Any:
    return SimpleNamespace(config=SimpleNamespace(hidden_size=size))


SIZES = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")


def test_auto_sizes_follow_from_the_hidden_size() -> None:
    """Sizes are size², 0.9 size² and 10 size; the last two are set in stage 3 only."""
    given = {"zero_optimization": {"stage": 3, **dict.fromkeys(SIZES, AUTO)}}
    values, problems = configured(given).for_model(model_of(64))
    assert not problems
    assert [values["zero_optimization"][name] for name in SIZES] == [4096, 3686, 640]
    given["zero_optimization"]["stage"] = 2
    values, _ = configured(given).for_model(model_of(64))
    assert values["zero_optimization"] == {"stage": 2, "reduce_bucket_size": 4096}
    assert not list(autos_in(values))


def test_hidden_size_of_composite_models() -> None:
    """The largest of several hidden sizes counts, and that of a text configuration is found."""
    given = {"zero_optimization": {"stage": 2, "reduce_bucket_size": AUTO}}
    for config in (SimpleNamespace(hidden_sizes=[8, 16]), SimpleNamespace(text_config=SimpleNamespace(hidden_size=16))):
        values, _ = configured(given).for_model(SimpleNamespace(config=config))
        assert values["zero_optimization"]["reduce_bucket_size"] == 256


def test_auto_sizes_need_a_hidden_size() -> None:
    """Without a hidden size, "auto" sizes are rejected and explicit numbers are accepted."""
    given = {"zero_optimization": {"stage": 2, "reduce_bucket_size": AUTO}}
    (problem,) = configured(given).for_model(object())[1]
    assert "zero_optimization.reduce_bucket_size='auto'" in problem
    assert not configured(zero(2)).for_model(object())[1]


def test_scheduler_gets_the_number_of_steps() -> None:
    """The scheduler gets the run's number of steps, at least one warm-up step, and rejects other numbers."""
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
    "tensor_parallel.autotp_size=2": {"tensor_parallel": {"autotp_size": 2}},
    "zero_quantized_nontrainable_weights=True": {
        "zero_optimization": {"stage": 3, "zero_quantized_nontrainable_weights": True}
    },
    "sequence_parallel_size=2": {"sequence_parallel_size": 2},
    "gradient_allreduce_op='median'": zero(2, gradient_allreduce_op="median"),
    "ZeRO 3 only takes means": zero(3, gradient_allreduce_op="sum"),
}


@pytest.mark.parametrize(("level", "half"), [("O1", "fp16"), ("O2", "fp16"), (None, "fp16"), ("O0", None)])
def test_apex_means_deepspeeds_own_fp16(level: str | None, half: str | None) -> None:
    """Its section is replaced, with a warning; a level without half precision means none."""
    section = {"enabled": True, **({"opt_level": level} if level else {})}
    with pytest.warns(FutureWarning, match="amp in DeepSpeed's configuration is for Apex"):
        found = configured(zero(2, amp=section), fp16=half is not None)
    assert found.half == half
    assert "amp" not in found.values
    assert not found.problems
    if half:
        with pytest.warns(FutureWarning, match="amp in DeepSpeed's configuration"):
            (problem,) = configured(zero(2, amp=section)).problems
        assert "fp16.enabled=True in DeepSpeed's configuration, but fp16 is False" in problem


@pytest.mark.parametrize("said", IMPOSSIBLE)
def test_unsupported_settings_are_rejected(said: str) -> None:
    """Unsupported settings are rejected with the reason before DeepSpeed is called."""
    assert any(said in problem for problem in configured(IMPOSSIBLE[said]).problems)


def test_nvme_offload_works_in_stage_3() -> None:
    """The optimizer and the weights can be offloaded to NVMe when a folder is given."""
    disk = {"device": "nvme", "nvme_path": "/local_nvme"}
    assert not configured(
        {"zero_optimization": {"stage": 3, "offload_optimizer": disk, "offload_param": disk}}
    ).problems


def test_half_precision_section_follows_the_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arguments select half precision even if the configuration has no section for it."""
    assert configured(zero(2), bf16=True).half == "bf16"
    assert configured(zero(2)).half is None


def test_launcher_variables_configure_deepspeed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables set by `accelerate launch --use_deepspeed` configure DeepSpeed."""
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


def test_configuration_file_of_the_launcher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The launcher's file overrides its other variables and is overridden by the argument."""
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
