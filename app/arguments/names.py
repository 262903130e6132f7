"""Names that are no argument: what to say about each, and which argument was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from hexloop.app.arguments.problems import Problem, RefusalError, problem

NOT_YET = frozenset(
    {
        "generation_config",
        "generation_max_length",
        "generation_num_beams",
        "predict_with_generate",
        "sortish_sampler",
    }
)
"""What the reference library's present release takes and hexloop does not."""

OLD_NAMES = {
    "adafactor": "use optim='adafactor'",
    "dispatch_batches": "leave it out",
    "evaluation_strategy": "use eval_strategy",
    "fp16_backend": "leave it out",
    "fp16_opt_level": "leave it out",
    "fsdp_min_num_params": "leave it out",
    "fsdp_transformer_layer_cls_to_wrap": "leave it out",
    "group_by_length": "use train_sampling_strategy='group_by_length'",
    "half_precision_backend": "leave it out",
    "include_inputs_for_metrics": "use include_for_metrics=['inputs']",
    "include_tokens_per_second": "use include_num_input_tokens_seen",
    "jit_mode_eval": "leave it out",
    "logging_dir": "leave it out",
    "mp_parameters": "leave it out",
    "no_cuda": "use use_cpu",
    "overwrite_output_dir": "leave it out",
    "past_index": "leave it out",
    "per_gpu_eval_batch_size": "use per_device_eval_batch_size",
    "per_gpu_train_batch_size": "use per_device_train_batch_size",
    "push_to_hub_model_id": "leave it out",
    "push_to_hub_organization": "leave it out",
    "push_to_hub_token": "leave it out",
    "ray_scope": "leave it out",
    "save_safetensors": "leave it out, weights are always written as safetensors",
    "sharded_ddp": "leave it out",
    "split_batches": "leave it out",
    "torchdynamo": "use torch_compile_backend",
    "tpu_metrics_debug": "leave it out",
    "tpu_num_cores": "leave it out",
    "use_ipex": "leave it out",
    "use_legacy_prediction_loop": "leave it out",
    "use_mps_device": "leave it out, the device is found by itself",
    "warmup_ratio": "use warmup_steps, which below 1 is a ratio",
    "xpu_backend": "leave it out",
}
"""What the reference library's releases before its fifth took, and what to write today."""


def unknown_argument(name: str, value: object, known: Iterable[str]) -> Problem:
    """The sentence about an argument that is none of `known`."""
    return problem({name: value}, _refusal_of(name, known))


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The name in `known` that `name` is probably a slip of."""
    return next(iter(difflib.get_close_matches(name.replace("-", "_"), list(known), n=1, cutoff=0.7)), None)


def _refusal_of(name: str, known: Iterable[str]) -> RefusalError:
    if name in NOT_YET:
        return RefusalError("hexloop does not have this argument of the reference library yet", "leave it out")
    if name in OLD_NAMES:
        return RefusalError("only older releases of the reference library have this argument", OLD_NAMES[name])
    meant = nearest(name, [*known, *NOT_YET])
    if meant is None:
        return RefusalError("there is no argument of that name", "leave it out")
    return RefusalError("there is no argument of that name", f"did you mean {meant}?")
