"""Names of earlier releases: each gives the run of its replacement, with a warning, or is refused."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from hexloop.domain.errors import ConfigurationError
from tests.end_to_end.arguments.bench import Bench, shows
from tests.end_to_end.arguments.optimization import Words, sentences
from tests.end_to_end.small.trainers import history, same_weights, weights

SAME: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "evaluation_strategy": ({"evaluation_strategy": "epoch"}, {"eval_strategy": "epoch"}),
    "per_gpu_train_batch_size": (
        {"per_gpu_train_batch_size": 2, "per_device_train_batch_size": 8},
        {"per_device_train_batch_size": 2},
    ),
    "per_gpu_eval_batch_size": (
        {"per_gpu_eval_batch_size": 2, "per_device_eval_batch_size": 8},
        {"per_device_eval_batch_size": 2},
    ),
    "no_cuda": ({"no_cuda": True}, {"use_cpu": True}),
    "use_mps_device": ({"use_mps_device": True}, {}),
    "warmup_ratio": ({"warmup_ratio": 0.5}, {"warmup_steps": 0.5}),
    "adafactor": ({"adafactor": True}, {"optim": "adafactor"}),
    "include_inputs_for_metrics": ({"include_inputs_for_metrics": True}, {"include_for_metrics": ["inputs"]}),
    "torchdynamo": ({"torchdynamo": "eager"}, {"torch_compile_backend": "eager"}),
    "fp16_backend": ({"fp16_backend": "cuda_amp"}, {}),
    "half_precision_backend": ({"half_precision_backend": "auto"}, {}),
    "fp16_opt_level": ({"fp16_opt_level": "O2"}, {}),
    "save_safetensors": ({"save_safetensors": True}, {}),
    "push_to_hub_token": ({"push_to_hub_token": "x"}, {"hub_token": "x"}),
    "push_to_hub_model_id": ({"push_to_hub_model_id": "m"}, {"hub_model_id": "m"}),
    "push_to_hub_organization": (
        {"push_to_hub_organization": "us", "hub_model_id": "m"},
        {"hub_model_id": "us/m"},
    ),
    "dispatch_batches": ({"dispatch_batches": True}, {"accelerator_config": {"dispatch_batches": True}}),
    "split_batches": ({"split_batches": True}, {"accelerator_config": {"split_batches": True}}),
    "fsdp_min_num_params": ({"fsdp_min_num_params": 5}, {"fsdp_config": {"min_num_params": 5}}),
    "fsdp_transformer_layer_cls_to_wrap": (
        {"fsdp_transformer_layer_cls_to_wrap": "Block"},
        {"fsdp_config": {"transformer_layer_cls_to_wrap": "Block"}},
    ),
    "xpu_backend": ({"xpu_backend": "ccl"}, {"ddp_backend": "ccl"}),
    "tpu_num_cores": ({"tpu_num_cores": 8}, {}),
    "use_ipex": ({"use_ipex": True}, {}),
    "use_legacy_prediction_loop": ({"use_legacy_prediction_loop": True}, {}),
}
"""The old argument, and the current one."""

WORDS = {
    "evaluation_strategy": "eval_strategy",
    "no_cuda": "use_cpu",
    "warmup_ratio": "warmup_steps",
    "adafactor": "optim='adafactor'",
    "torchdynamo": "torch_compile_backend",
    "xpu_backend": "ddp_backend",
    "save_safetensors": "safetensors",
}
"""The warning's advice, if it is neither the current argument nor to remove the old one."""


def _same(name: str) -> None:
    old, modern = SAME[name]

    @shows(name)
    def _(bench: Bench) -> None:
        instead = WORDS.get(name, next(iter(modern), "leave it out"))
        with bench.warned(name, instead):
            said = bench.trainer(**old)
        meant = bench.trainer(**modern)
        assert {**said.args.to_dict(), "output_dir": ""} == {**meant.args.to_dict(), "output_dir": ""}
        if name == "torchdynamo":
            return  # compiling takes seconds; the current name's check covers it
        for made in (said, meant):
            made.train()
        assert same_weights(weights(said), weights(meant))
        assert history(said) == history(meant)


for _name in SAME:
    _same(_name)


@shows("include_tokens_per_second")
def _(bench: Bench) -> None:
    parts = {"model": Words(), "train_dataset": sentences()}
    with bench.warned("include_tokens_per_second", "include_num_input_tokens_seen='all'"):
        made = bench.trainer(parts, include_tokens_per_second=True)
    made.train()
    assert made.state.log_history[0]["train_tokens_per_second"] > 0
    assert bench.logged("train_tokens_per_second", parts) == []


@shows("group_by_length")
def _(bench: Bench) -> None:
    with bench.warned("group_by_length", "train_sampling_strategy='group_by_length'"):
        made = bench.trainer(group_by_length=True)
    assert made.args.train_sampling_strategy == "group_by_length"
    loader = type(made.get_train_dataloader())
    assert loader is type(bench.trainer(train_sampling_strategy="group_by_length").get_train_dataloader())


@shows("sharded_ddp")
def _(bench: Bench) -> None:
    with bench.warned("sharded_ddp", "write fsdp"):
        assert "You chose FSDP" in bench.refusal(sharded_ddp="zero_dp_3")
    with bench.warned("sharded_ddp", "write fsdp"):
        bench.trained(sharded_ddp="")


@shows("tpu_metrics_debug")
def _(bench: Bench) -> None:
    with bench.warned("tpu_metrics_debug", "debug='tpu_metrics_debug'"):
        assert bench.arguments(tpu_metrics_debug=True).debug == ["tpu_metrics_debug"]
    assert "is for devices of XLA" in bench.remark(debug="tpu_metrics_debug")
    (said,) = (record for record in bench.log.records if "no effect here" in record.getMessage())
    assert said.levelno == logging.WARNING


GONE: dict[str, tuple[Any, Any, str]] = {
    "mp_parameters": ("partitions=2", "", "shard the model by fsdp or deepspeed"),
    "ray_scope": ("all", "last", "leave it out"),
}
"""A value that requests something, one that does not, and the alternative."""


def _gone(name: str) -> None:
    asking, nothing, way_out = GONE[name]

    @shows(name)
    def _(bench: Bench) -> None:
        with bench.warned(name, "leave it out"), pytest.raises(ConfigurationError, match=way_out):
            bench.arguments(**{name: asking})
        with bench.warned(name, "leave it out"):
            assert bench.trained(**{name: nothing}).state.global_step == 4


for _name in GONE:
    _gone(_name)
