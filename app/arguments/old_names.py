"""The arguments of the reference library's earlier releases: what each asks for today, in the order they are heeded."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import attrs

from hexloop.app.arguments.checks import unknown_choice
from hexloop.app.arguments.choices import DebugOption
from hexloop.app.arguments.conversion import converter
from hexloop.app.arguments.problems import RefusalError

Given: TypeAlias = Mapping[str, Any]
"""Present arguments by name, as far as they were given."""


@attrs.frozen
class OldName:
    """An argument that earlier releases took.

    kind: the type of its values; None is taken as well and asks for nothing.
    write: what to write today, for the warning.
    becomes: the present arguments that a value and what else was given amount to. Raises `RefusalError`.
    reads: its value, made from arguments of today.
    adds: whether what it becomes contains what else was given, instead of competing with it.
    """

    kind: Any
    write: str
    becomes: Callable[[Any, Given], Given]
    reads: Callable[[Any], Any]
    adds: bool = False

    def modern(self, value: object, given: Given) -> Given:
        """`becomes` of a value that may be written as text. Raises `RefusalError`."""
        converted = converter.structure(value, self.kind | None)
        return {} if converted is None else self.becomes(converted, given)


def _renamed(name: str, kind: Any) -> OldName:
    return OldName(kind, f"write {name}", lambda value, _: {name: value}, lambda args: getattr(args, name))


def _batch_size(name: str) -> OldName:
    return OldName(
        int, f"write {name}", lambda value, _: {name: value} if value else {}, lambda args: getattr(args, name)
    )


def _switch(name: str, setting: Any, spelled: str) -> OldName:
    """Whether one setting of a present argument is on."""
    return OldName(
        bool,
        f"write {spelled}",
        lambda on, _: {name: setting} if on else {},
        lambda args: getattr(args, name) == setting,
    )


def _without_effect(kind: Any, write: str, default: Any) -> OldName:
    """What changed how something was computed, and not what came out."""
    return OldName(kind, write, lambda value, _: {}, lambda _: default)


def _gone(kind: Any, default: Any, because: str, remedy: str) -> OldName:
    """What asks for something that is no more, by any value but its default."""

    def becomes(value: Any, _: Given) -> Given:
        if value != default:
            raise RefusalError(because, remedy)
        return {}

    return OldName(kind, "leave it out", becomes, lambda _: default)


def _warmup_steps(ratio: float, _: Given) -> Given:
    if not 0 <= ratio <= 1:
        raise RefusalError("a ratio lies between 0 and 1", "give warmup_steps a number of steps, or a ratio below 1")
    return {"warmup_steps": min(ratio, math.nextafter(1.0, 0.0))} if ratio else {}


def _warmup_ratio(args: Any) -> float:
    return args.warmup_steps if args.warmup_steps < 1 else 0.0


def _backend(value: str, _: Given) -> Given:
    known = ("auto", "torch", "native", "amp", "cuda_amp", "cpu_amp", "apex")
    if value not in known:
        raise unknown_choice(value, known)
    if value == "apex":
        raise RefusalError("Apex is superseded by torch's own mixed precision", "set fp16=True alone, or bf16=True")
    return {}


def _apex_level(value: str, _: Given) -> Given:
    if value not in ("O0", "O1", "O2", "O3"):
        raise unknown_choice(value, ("O0", "O1", "O2", "O3"))
    return {}


def _inputs_too(on: bool, given: Given) -> Given:
    others = [name for name in given.get("include_for_metrics") or () if name != "inputs"]
    return {"include_for_metrics": ["inputs", *others]} if on else {}


def _count_tokens(on: bool, given: Given) -> Given:
    counted = given.get("include_num_input_tokens_seen", "no")
    return {"include_num_input_tokens_seen": "all"} if on and counted in ("no", False, None) else {}


def _tpu_debug(on: bool, given: Given) -> Given:
    others = given.get("debug") or []
    words = others.split() if isinstance(others, str) else list(others)
    wanted = [word for word in words if word != DebugOption.TPU_METRICS_DEBUG]
    return {"debug": [*wanted, DebugOption.TPU_METRICS_DEBUG]} if on else {}


def _into(mapping: str, key: str, empty: Any = None) -> Callable[[Any, Given], Given]:
    """A value that became a key of a mapping; `empty` asks for nothing."""

    def becomes(value: Any, given: Given) -> Given:
        if value == empty:
            return {}
        others = given.get(mapping) or {}
        if isinstance(others, str):
            others = converter.structure(others, dict[str, Any])
        if hasattr(others, "to_dict"):  # of an object nobody can tell what was said and what is default
            others = others.to_dict()
        elif others.get(key, value) != value:
            raise RefusalError(f"{mapping} says {others[key]!r}", f"leave one of the two out, and write {mapping}")
        return {mapping: {**others, key: value}}

    return becomes


def _from(mapping: str, key: str, default: Any = None) -> Callable[[Any], Any]:
    def reads(args: Any) -> Any:
        values = getattr(args, mapping) or {}
        return values.get(key, default) if isinstance(values, dict) else getattr(values, key)

    return reads


def _of_organization(organization: str, given: Given) -> Given:
    name = given.get("hub_model_id") or os.path.basename(os.path.normpath(given.get("output_dir") or "trainer_output"))
    owner, slash, rest = name.partition("/")
    if slash and owner != organization:
        raise RefusalError(f"hub_model_id says {name!r}", "write hub_model_id alone")
    return {"hub_model_id": f"{organization}/{rest or owner}"} if organization else {}


def _model_name(args: Any) -> str | None:
    return (args.hub_model_id or "").rpartition("/")[2] or None


def _organization(args: Any) -> str | None:
    return (args.hub_model_id or "").rpartition("/")[0] or None


def _fsdp_of_fairscale(value: str, _: Given) -> Given:
    words = {"simple": "shard_grad_op", "zero_dp_2": "shard_grad_op", "zero_dp_3": "full_shard"}
    known = {**words, "offload": "offload", "auto_wrap": "auto_wrap"}
    for word in value.split():
        if word not in known:
            raise unknown_choice(word, known)
    return {"fsdp": " ".join(known[word] for word in value.split())} if value.split() else {}


def _safetensors(on: bool, _: Given) -> Given:
    if not on:
        raise RefusalError("a pickle can run any code as it is loaded", "leave it out: weights go to safetensors files")
    return {}


OLD_NAMES: dict[str, OldName] = {
    "evaluation_strategy": _renamed("eval_strategy", str),
    "per_gpu_train_batch_size": _batch_size("per_device_train_batch_size"),
    "per_gpu_eval_batch_size": _batch_size("per_device_eval_batch_size"),
    "no_cuda": _switch("use_cpu", True, "use_cpu"),
    "use_mps_device": OldName(
        bool,
        "leave it out: Apple's GPU is found by itself",
        lambda on, _: {},
        lambda args: args.device.type == "mps",
    ),
    "warmup_ratio": OldName(
        float, "write warmup_steps, which below 1 is a ratio of the run", _warmup_steps, _warmup_ratio
    ),
    "adafactor": _switch("optim", "adafactor", "optim='adafactor'"),
    "group_by_length": _switch(
        "train_sampling_strategy", "group_by_length", "train_sampling_strategy='group_by_length'"
    ),
    "include_inputs_for_metrics": OldName(
        bool,
        "write include_for_metrics=['inputs']",
        _inputs_too,
        lambda args: "inputs" in args.include_for_metrics,
        adds=True,
    ),
    "include_tokens_per_second": OldName(
        bool,
        "write include_num_input_tokens_seen='all', with which tokens are counted and their rate is logged",
        _count_tokens,
        lambda args: args.include_num_input_tokens_seen != "no",
        adds=True,
    ),
    "torchdynamo": _renamed("torch_compile_backend", str),
    "fp16_backend": OldName(
        str, "leave it out: mixed precision is torch's own, turned on by fp16 or bf16", _backend, lambda _: "auto"
    ),
    "half_precision_backend": OldName(
        str, "leave it out: mixed precision is torch's own, turned on by fp16 or bf16", _backend, lambda _: "auto"
    ),
    "fp16_opt_level": OldName(
        str, "leave it out: it was for Apex alone, and fp16=True is what it called O1", _apex_level, lambda _: "O1"
    ),
    "save_safetensors": OldName(
        bool, "leave it out: weights always go to safetensors files", _safetensors, lambda _: True
    ),
    "push_to_hub_token": _renamed("hub_token", str),
    "push_to_hub_model_id": OldName(str, "write hub_model_id", lambda value, _: {"hub_model_id": value}, _model_name),
    "push_to_hub_organization": OldName(
        str, "write hub_model_id='organization/model'", _of_organization, _organization, adds=True
    ),
    "dispatch_batches": OldName(
        bool,
        "write accelerator_config={'dispatch_batches': ...}",
        _into("accelerator_config", "dispatch_batches"),
        _from("accelerator_config", "dispatch_batches"),
        adds=True,
    ),
    "split_batches": OldName(
        bool,
        "write accelerator_config={'split_batches': ...}",
        _into("accelerator_config", "split_batches"),
        _from("accelerator_config", "split_batches"),
        adds=True,
    ),
    "fsdp_min_num_params": OldName(
        int,
        "write fsdp_config={'min_num_params': ...}",
        _into("fsdp_config", "min_num_params", empty=0),
        _from("fsdp_config", "min_num_params", 0),
        adds=True,
    ),
    "fsdp_transformer_layer_cls_to_wrap": OldName(
        str,
        "write fsdp_config={'transformer_layer_cls_to_wrap': ...}",
        _into("fsdp_config", "transformer_layer_cls_to_wrap"),
        _from("fsdp_config", "transformer_layer_cls_to_wrap"),
        adds=True,
    ),
    "sharded_ddp": OldName(
        str, "write fsdp, torch's own way of what fairscale did", _fsdp_of_fairscale, lambda args: ""
    ),
    "xpu_backend": _renamed("ddp_backend", str),
    "tpu_metrics_debug": OldName(
        bool,
        "write debug='tpu_metrics_debug'",
        _tpu_debug,
        lambda args: DebugOption.TPU_METRICS_DEBUG in args.debug,
        adds=True,
    ),
    "tpu_num_cores": _gone(int, None, "hexloop does not train on TPUs", "leave it out, and train on GPUs or a CPU"),
    "mp_parameters": _gone(
        str, "", "SageMaker's model parallelism is no more", "leave it out, and run the script by itself"
    ),
    "ray_scope": _gone(str, "last", "hexloop does not search for hyperparameters with Ray", "leave it out"),
    "use_ipex": _without_effect(bool, "leave it out: torch itself has the optimizations for Intel's processors", False),
    "jit_mode_eval": _gone(
        bool, False, "torch.jit is superseded by torch.compile", "set torch_compile=True, or leave it out"
    ),
    "use_legacy_prediction_loop": _without_effect(
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
