"""The arguments of the reference library's earlier releases: what each asks for today, in the order they are heeded."""

from __future__ import annotations

from hexloop.app.arguments import old_name_meanings as meanings
from hexloop.app.arguments.choices import DebugOption
from hexloop.app.arguments.old_name_kinds import OldName, batch_size, gone, key_of, renamed, switch, without_effect

_BACKEND = OldName(
    str, "leave it out: mixed precision is torch's own, turned on by fp16 or bf16", meanings.backend, lambda _: "auto"
)

OLD_NAMES: dict[str, OldName] = {
    "evaluation_strategy": renamed("eval_strategy", str),
    "per_gpu_train_batch_size": batch_size("per_device_train_batch_size"),
    "per_gpu_eval_batch_size": batch_size("per_device_eval_batch_size"),
    "no_cuda": switch("use_cpu", True, "use_cpu"),
    "use_mps_device": OldName(
        bool,
        "leave it out: Apple's GPU is found by itself",
        lambda on, _: {},
        lambda args: args.device.type == "mps",
    ),
    "warmup_ratio": OldName(
        float, "write warmup_steps, which below 1 is a ratio of the run", meanings.warmup_steps, meanings.warmup_ratio
    ),
    "adafactor": switch("optim", "adafactor", "optim='adafactor'"),
    "group_by_length": switch(
        "train_sampling_strategy", "group_by_length", "train_sampling_strategy='group_by_length'"
    ),
    "include_inputs_for_metrics": OldName(
        bool,
        "write include_for_metrics=['inputs']",
        meanings.inputs_too,
        lambda args: "inputs" in args.include_for_metrics,
        adds=True,
    ),
    "include_tokens_per_second": OldName(
        bool,
        "write include_num_input_tokens_seen='all', with which tokens are counted and their rate is logged",
        meanings.count_tokens,
        lambda args: args.include_num_input_tokens_seen != "no",
        adds=True,
    ),
    "torchdynamo": renamed("torch_compile_backend", str),
    "fp16_backend": _BACKEND,
    "half_precision_backend": _BACKEND,
    "fp16_opt_level": OldName(
        str,
        "leave it out: it was for Apex alone, and fp16=True is what it called O1",
        meanings.apex_level,
        lambda _: "O1",
    ),
    "save_safetensors": OldName(
        bool, "leave it out: weights always go to safetensors files", meanings.safetensors, lambda _: True
    ),
    "push_to_hub_token": renamed("hub_token", str),
    "push_to_hub_model_id": OldName(
        str, "write hub_model_id", lambda value, _: {"hub_model_id": value}, meanings.model_name
    ),
    "push_to_hub_organization": OldName(
        str, "write hub_model_id='organization/model'", meanings.of_organization, meanings.organization, adds=True
    ),
    "dispatch_batches": key_of("accelerator_config", "dispatch_batches", bool),
    "split_batches": key_of("accelerator_config", "split_batches", bool),
    "fsdp_min_num_params": key_of("fsdp_config", "min_num_params", int, default=0),
    "fsdp_transformer_layer_cls_to_wrap": key_of("fsdp_config", "transformer_layer_cls_to_wrap", str),
    "sharded_ddp": OldName(
        str, "write fsdp, torch's own way of what fairscale did", meanings.fsdp_of_fairscale, lambda args: ""
    ),
    "xpu_backend": renamed("ddp_backend", str),
    "tpu_metrics_debug": OldName(
        bool,
        "write debug='tpu_metrics_debug'",
        meanings.tpu_debug,
        lambda args: DebugOption.TPU_METRICS_DEBUG in args.debug,
        adds=True,
    ),
    "tpu_num_cores": gone(int, None, "hexloop does not train on TPUs", "leave it out, and train on GPUs or a CPU"),
    "mp_parameters": gone(
        str, "", "SageMaker's model parallelism is no more", "leave it out, and run the script by itself"
    ),
    "ray_scope": gone(str, "last", "hexloop does not search for hyperparameters with Ray", "leave it out"),
    "use_ipex": without_effect(bool, "leave it out: torch itself has the optimizations for Intel's processors", False),
    "jit_mode_eval": gone(
        bool, False, "torch.jit is superseded by torch.compile", "set torch_compile=True, or leave it out"
    ),
    "use_legacy_prediction_loop": without_effect(
        bool, "leave it out: there is one loop for evaluation and prediction, which gives the same figures", False
    ),
}
"""By name. A value of None asks for nothing."""

KEPT = {
    "logging_dir": "pass loggers=[TensorBoard(folder)] to the Trainer, or set TENSORBOARD_LOGGING_DIR",
    "overwrite_output_dir": "delete the folder, or resume from it",
    "past_index": "let the model keep its memory itself",
}
"""Arguments of earlier releases that nothing has replaced, and that are arguments still: what to do today."""
