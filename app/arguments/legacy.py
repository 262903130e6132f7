"""Arguments of earlier releases of transformers: what each means today, in the order in which they are applied."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import attrs

from hexloop.app.arguments.choices import DebugOption, ShardedDDPOption
from hexloop.app.arguments.conversion import at_least, converter, each_one_of, one_of
from hexloop.domain.wording import RefusalError

Given: TypeAlias = Mapping[str, Any]
"""Current arguments by name, as far as the caller passed them."""


@attrs.frozen
class LegacyArgument:
    """An argument of earlier releases.

    kind: the type of its values. None is accepted as well and has no effect.
    write: what to write today, for the warning.
    becomes: returns the current arguments for a value and the other given arguments. Raises `RefusalError`.
    reads: returns its value from current arguments.
    adds: whether the result of `becomes` includes the other given arguments instead of competing with them.
    bare: its value if it stands on the command line without one; None if it needs one.
    """

    kind: Any
    write: str
    becomes: Callable[[Any, Given], Given]
    reads: Callable[[Any], Any]
    adds: bool = False
    bare: object = attrs.field()

    @bare.default
    def _true_if_bool(self) -> object:
        return True if self.kind is bool else None

    def current(self, value: object, given: Given) -> Given:
        """Return the current arguments for a value, which may be written as text. Raises `RefusalError`."""
        converted = converter.structure(value, self.kind | None)
        return {} if converted is None else self.becomes(converted, given)


def _renamed(name: str, kind: Any, unset: Any = None) -> LegacyArgument:
    """An argument that has a new name; the value `unset` has no effect."""

    def becomes(value: Any, _: Given) -> Given:
        return {} if value == unset else {name: value}

    return LegacyArgument(kind, f"write {name}", becomes, lambda args: getattr(args, name))


def _switch(name: str, setting: Any, spelled: str) -> LegacyArgument:
    """A truth value that selects one value of a current argument."""
    return LegacyArgument(
        bool,
        f"write {spelled}",
        lambda on, _: {name: setting} if on else {},
        lambda args: getattr(args, name) == setting,
    )


def _without_effect(kind: Any, write: str, default: Any) -> LegacyArgument:
    """An argument that changed how something was computed, but not the result."""
    return LegacyArgument(kind, write, lambda value, _: {}, lambda _: default)


def _removed(kind: Any, default: Any, because: str, remedy: str, write: str = "leave it out") -> LegacyArgument:
    """An argument whose feature is gone: any value but its default is refused."""

    def becomes(value: Any, _: Given) -> Given:
        if value != default:
            raise RefusalError(because, remedy)
        return {}

    return LegacyArgument(kind, write, becomes, lambda _: default)


def _key_of(mapping: str, key: str, kind: Any, default: Any = None) -> LegacyArgument:
    """An argument that became a key of a mapping; its default has no effect."""

    def becomes(value: Any, given: Given) -> Given:
        if value == default:
            return {}
        others = given.get(mapping) or {}
        if isinstance(others, str):
            others = converter.structure(others, dict[str, Any])
        if hasattr(others, "to_dict"):  # an object does not tell which of its values were given
            others = others.to_dict()
        elif others.get(key, value) != value:
            raise RefusalError(f"{mapping} has {others[key]!r}", f"leave one of the two out, and write {mapping}")
        return {mapping: {**others, key: value}}

    def reads(args: Any) -> Any:
        values = getattr(args, mapping) or {}
        return values.get(key, default) if isinstance(values, dict) else getattr(values, key)

    return LegacyArgument(kind, f"write {mapping}={{{key!r}: ...}}", becomes, reads, adds=True)


_FAIRSCALE: Mapping[str, str] = {
    ShardedDDPOption.SIMPLE: "shard_grad_op",
    ShardedDDPOption.ZERO_DP_2: "shard_grad_op",
    ShardedDDPOption.ZERO_DP_3: "full_shard",
    ShardedDDPOption.OFFLOAD: "offload",
    ShardedDDPOption.AUTO_WRAP: "auto_wrap",
}
"""The options of `sharded_ddp`, and the equivalent options of `fsdp`."""


def _fairscale_becomes(value: Any, _: Given) -> Given:
    """Take options separated by spaces, a list of them, or a truth value, which stands for "simple"."""
    if isinstance(value, list | tuple):
        value = " ".join(str(getattr(each, "value", each)) for each in value)
    words = {"true": ["simple"], "false": []}.get(str(value).lower(), str(getattr(value, "value", value)).split())
    words = [{"cpu_offload": "offload"}.get(word, word) for word in words]
    each_one_of(*_FAIRSCALE)(words)
    return {"fsdp": " ".join(_FAIRSCALE[word] for word in words)} if words else {}


def _warmup_ratio_becomes(ratio: float, _: Given) -> Given:
    if not 0 <= ratio <= 1:
        raise RefusalError("a ratio is between 0 and 1", "give warmup_steps a number of steps, or a ratio below 1")
    return {"warmup_steps": min(ratio, math.nextafter(1.0, 0.0))} if ratio else {}


def _backend_becomes(value: str, _: Given) -> Given:
    one_of("auto", "torch", "native", "amp", "cuda_amp", "cpu_amp", "apex")(value)
    return {}


def _cores_become(value: int, _: Given) -> Given:
    at_least(1)(value)
    return {}


def _apex_level_becomes(value: str, _: Given) -> Given:
    one_of("O0", "O1", "O2", "O3")(value.replace("0", "O", 1) if value.startswith("0") else value)
    return {}


def _sagemaker_becomes(value: Any, _: Given) -> Given:
    if value not in ("", "{}", {}):  # what SageMaker passes where nothing is parallel
        raise RefusalError(
            "SageMaker's model parallelism is no longer supported",
            "leave it out, and shard the model by fsdp or deepspeed",
        )
    return {}


def _metric_inputs_become(on: bool, given: Given) -> Given:
    others = [name for name in given.get("include_for_metrics") or () if name != "inputs"]
    return {"include_for_metrics": ["inputs", *others]} if on else {}


def _token_rate_becomes(on: bool, given: Given) -> Given:
    counted = given.get("include_num_input_tokens_seen", "no")
    return {"include_num_input_tokens_seen": "all"} if on and counted in ("no", False, None) else {}


def _tpu_debug_becomes(on: bool, given: Given) -> Given:
    others = given.get("debug") or []
    options = others.split() if isinstance(others, str) else list(others)
    kept = [option for option in options if option != DebugOption.TPU_METRICS_DEBUG]
    return {"debug": [*kept, DebugOption.TPU_METRICS_DEBUG]} if on else {}


def _organization_becomes(organization: str, given: Given) -> Given:
    name = given.get("hub_model_id") or os.path.basename(os.path.normpath(given.get("output_dir") or "trainer_output"))
    owner, slash, rest = name.partition("/")
    if slash and owner != organization:
        raise RefusalError(f"hub_model_id is {name!r}", "write hub_model_id alone")
    return {"hub_model_id": f"{organization}/{rest or owner}"} if organization else {}


_MIXED_PRECISION_BACKEND = LegacyArgument(
    str, "leave it out: mixed precision is torch's own, turned on by fp16 or bf16", _backend_becomes, lambda _: "auto"
)

LEGACY_ARGUMENTS: dict[str, LegacyArgument] = {
    "evaluation_strategy": _renamed("eval_strategy", str),
    "per_gpu_train_batch_size": _renamed("per_device_train_batch_size", int, unset=0),
    "per_gpu_eval_batch_size": _renamed("per_device_eval_batch_size", int, unset=0),
    "no_cuda": _switch("use_cpu", True, "use_cpu"),
    "use_mps_device": LegacyArgument(
        bool,
        "leave it out: Apple's GPU is detected automatically",
        lambda on, _: {},
        lambda args: args.device.type == "mps",
    ),
    "warmup_ratio": LegacyArgument(
        float,
        "write warmup_steps, which below 1 is a ratio of the run",
        _warmup_ratio_becomes,
        lambda args: args.warmup_steps if args.warmup_steps < 1 else 0.0,
    ),
    "adafactor": _switch("optim", "adafactor", "optim='adafactor'"),
    "group_by_length": _switch(
        "train_sampling_strategy", "group_by_length", "train_sampling_strategy='group_by_length'"
    ),
    "include_inputs_for_metrics": LegacyArgument(
        bool,
        "write include_for_metrics=['inputs']",
        _metric_inputs_become,
        lambda args: "inputs" in args.include_for_metrics,
        adds=True,
    ),
    "include_tokens_per_second": LegacyArgument(
        bool,
        "write include_num_input_tokens_seen='all', which counts tokens and logs their rate",
        _token_rate_becomes,
        lambda args: args.include_num_input_tokens_seen != "no",
        adds=True,
    ),
    "torchdynamo": _renamed("torch_compile_backend", str),
    "fp16_backend": _MIXED_PRECISION_BACKEND,
    "half_precision_backend": _MIXED_PRECISION_BACKEND,
    "fp16_opt_level": LegacyArgument(
        str, "leave it out: it was for Apex, which called fp16=True O1", _apex_level_becomes, lambda _: "O1"
    ),
    "save_safetensors": _without_effect(bool, "leave it out: weights are always written as safetensors", True),
    "push_to_hub_token": _renamed("hub_token", str),
    "push_to_hub_model_id": LegacyArgument(
        str,
        "write hub_model_id",
        lambda value, _: {"hub_model_id": value},
        lambda args: (args.hub_model_id or "").rpartition("/")[2] or None,
    ),
    "push_to_hub_organization": LegacyArgument(
        str,
        "write hub_model_id='organization/model'",
        _organization_becomes,
        lambda args: (args.hub_model_id or "").rpartition("/")[0] or None,
        adds=True,
    ),
    "dispatch_batches": _key_of("accelerator_config", "dispatch_batches", bool),
    "split_batches": _key_of("accelerator_config", "split_batches", bool),
    "fsdp_min_num_params": _key_of("fsdp_config", "min_num_params", int, default=0),
    "fsdp_transformer_layer_cls_to_wrap": _key_of("fsdp_config", "transformer_layer_cls_to_wrap", str),
    "sharded_ddp": LegacyArgument(
        Any,
        "write fsdp, torch's own implementation of fairscale's sharding",
        _fairscale_becomes,
        lambda args: "",
        bare="simple",
    ),
    "xpu_backend": _renamed("ddp_backend", str),
    "tpu_metrics_debug": LegacyArgument(
        bool,
        "write debug='tpu_metrics_debug'",
        _tpu_debug_becomes,
        lambda args: DebugOption.TPU_METRICS_DEBUG in args.debug,
        adds=True,
    ),
    "tpu_num_cores": LegacyArgument(
        int, "leave it out: the launcher starts a process for each core", _cores_become, lambda _: None
    ),
    "mp_parameters": LegacyArgument(Any, "leave it out", _sagemaker_becomes, lambda _: ""),
    "ray_scope": _removed(str, "last", "hexloop does not support hyperparameter search with Ray", "leave it out"),
    "use_ipex": _without_effect(bool, "leave it out: torch itself is optimized for Intel's processors", False),
    "use_legacy_prediction_loop": _without_effect(
        bool, "leave it out: there is one loop for evaluation and prediction, with the same results", False
    ),
}
"""By name. A value of None has no effect."""

EARLIER_VALUES: Mapping[str, Mapping[str, str]] = {
    "optim": {"adamw_hf": "adamw_torch", "adamw_apex_fused": "adamw_torch_fused"},
}
"""Values that arguments had in earlier releases: what each means today."""

ONLY_IF_GIVEN = ("save_safetensors",)
"""Legacy names that have a value only if one was given: libraries look whether the argument exists."""

DISCOURAGED_ARGUMENTS = {
    "logging_dir": "pass loggers=[TensorBoard(folder)] to the Trainer, or set TENSORBOARD_LOGGING_DIR",
    "overwrite_output_dir": "delete the folder, or resume from it",
    "jit_mode_eval": "set torch_compile=True",
    "past_index": "let the model keep its memory itself",
}
"""Arguments of earlier releases that are still arguments, as nothing replaces them: what to do instead."""
