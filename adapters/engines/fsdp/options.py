"""FSDP's options, read from `fsdp`, `fsdp_config` and the variables that `accelerate launch` sets."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from hexloop.adapters.engines.arguments import EngineArguments
from hexloop.adapters.engines.fsdp.units import KEEPING, STRATEGIES, Formats, FsdpOptions
from hexloop.adapters.trainable.torch.loss import HALVES, MIXED
from hexloop.adapters.trainable.torch.units import Units
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import RefusalError, did_you_mean, enumeration, parse_truth, shown

FREEING = {keeping: freeing for freeing, keeping in KEEPING.items()}

POLICIES = ("transformer_based_wrap", "size_based_wrap", "no_wrap")
PREFETCHES = ("backward_pre", "backward_post", "no_prefetch")
STATE_DICTS = ("full_state_dict", "sharded_state_dict")

DTYPES = {"fp32": torch.float32, **HALVES}
DTYPE_NAMES = {"no": "fp32", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}

ONLY_IN_VERSION_1 = ("backward_prefetch", "limit_all_gathers", "use_orig_params")
"""Options without effect in version 2, which always does what is best."""

VARIABLE_PREFIX = "FSDP_"

VARIABLES = (
    "VERSION", "SHARDING_STRATEGY", "RESHARD_AFTER_FORWARD", "OFFLOAD_PARAMS", "MIN_NUM_PARAMS", "AUTO_WRAP_POLICY",
    "TRANSFORMER_CLS_TO_WRAP", "BACKWARD_PREFETCH", "STATE_DICT_TYPE", "FORWARD_PREFETCH", "USE_ORIG_PARAMS",
    "CPU_RAM_EFFICIENT_LOADING", "SYNC_MODULE_STATES", "ACTIVATION_CHECKPOINTING", "ACTIVATION_CHECKPOINTING_OFFLOAD",
    "IGNORED_MODULES",
)  # fmt: skip
"""Environment variables, without their prefix, that accelerate's `--fsdp_...` options set."""


def read_options(args: EngineArguments) -> FsdpOptions:
    """Return the options; `fsdp_config` takes precedence over accelerate's variables.

    The variables count only if the argument `fsdp` does not turn FSDP on. Raises ConfigurationError with all problems.
    """
    problems: list[str] = []
    launched = {} if args.fsdp else _launched(problems)
    config = read_keys(_mapping(args.fsdp_config), lambda name: f"fsdp_config[{name!r}]", problems)
    version = config.get("version", launched.get("version", 2))
    if version == 2 and launched.get("sharding_strategy") == "full_shard" and "reshard_after_forward" in launched:
        del launched["sharding_strategy"]  # accelerate's launcher sets both, whatever was asked of it
    for found in (launched, config):
        _combine_strategy(found, version, problems)
    values = {**launched, **_from_words(args.fsdp or "", config, problems), **config, "version": version}
    options = _options(args, values, problems)
    if problems:
        raise ConfigurationError(problems)
    return options


def consolidates(args: EngineArguments) -> bool:
    """Return whether rank 0 is to write the whole weights.

    accelerate's variable does not count: its launcher asks for the full state dict by default.
    """
    return read_keys(_mapping(args.fsdp_config), str, []).get("state_dict_type") == "full_state_dict"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _launched(problems: list[str]) -> dict[str, Any]:
    """Return the options in the variables of `accelerate launch`."""
    values = {name: os.environ.get(f"{VARIABLE_PREFIX}{name}", "") for name in VARIABLES}
    given = {name.lower(): value for name, value in values.items() if value not in ("", "None")}
    found = read_keys(given, lambda name: f"the environment variable {VARIABLE_PREFIX}{name.upper()}", problems)
    return {"version": 1, **found}


def _combine_strategy(found: dict[str, Any], version: int, problems: list[str]) -> None:
    """Combine the two ways of choosing a strategy: by name, or by whether weights are freed after the forward pass."""
    reshard, strategy = found.pop("reshard_after_forward", None), found.get("sharding_strategy")
    if reshard is None or (version == 1 and isinstance(reshard, bool) and strategy is not None):
        return  # version 1 uses the strategy
    named = strategy or "full_shard"
    chosen = reshard if isinstance(reshard, str) else (FREEING if reshard else KEEPING).get(named, named)
    if strategy not in (None, chosen):
        problems.append(
            f"You set FSDP's sharding_strategy={strategy!r} and reshard_after_forward={reshard!r}, which contradict "
            "each other; keep one of them."
        )
    found["sharding_strategy"] = chosen


def _from_words(words: str, config: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """Return the options that the words in `fsdp` stand for, checked against the configuration."""
    found: dict[str, Any] = {}
    strategies = [word for word in words.split() if word in STRATEGIES]
    if len(set(strategies)) > 1:
        problems.append(f"You chose fsdp={shown(words)}, which names several strategies; keep one of {strategies}.")
    if strategies and words != "full_shard":  # which is also what fsdp=True stands for
        found["sharding_strategy"] = strategies[0]
    if "offload" in words.split():
        found["cpu_offload"] = True
    for key, value in found.items():
        if config.get(key, value) != value:
            problems.append(
                f"You chose fsdp={shown(words)} and set {key}={config[key]!r} in fsdp_config, which contradict each "
                "other; keep one of them."
            )
    return found


def _options(args: EngineArguments, found: Mapping[str, Any], problems: list[str]) -> FsdpOptions:
    _warn_of_no_effect(found)
    if found.get("activation_checkpointing") and args.activation_checkpointing:
        problems.append(
            "You chose activation_checkpointing=True and set it in fsdp_config, too; keep only the latter, which "
            "gathers weights once less."
        )
    accumulation = getattr(args.accelerator_config, "gradient_accumulation_kwargs", None) or {}
    return FsdpOptions(
        units=_units(found, problems),
        version=found["version"],
        strategy=found.get("sharding_strategy", "full_shard"),
        mesh=_mesh(args, found, problems),
        formats=_formats(args, found.get("mixed_precision")),
        offload=found.get("cpu_offload", False),
        recompute=found.get("activation_checkpointing", False),
        forward_prefetch=found.get("forward_prefetch", False),
        backward_prefetch=found.get("backward_prefetch") or "backward_pre",
        limit_all_gathers=found.get("limit_all_gathers", True),
        synchronise_each=bool(accumulation.get("sync_each_batch", True)),
    )


def _warn_of_no_effect(found: Mapping[str, Any]) -> None:
    if found["version"] == 2 and (unused := [key for key in ONLY_IN_VERSION_1 if found.get(key) not in (None, True)]):
        warnings.warn(f"FSDP 2 does not use {', '.join(unused)}: these have no effect.", stacklevel=2)
    if found["version"] == 1 and found.get("use_orig_params") is False:
        warnings.warn(
            "use_orig_params=False has no effect: with FSDP 1 hexloop always keeps the model's own parameters, because "
            "weight decay applies to only some of them.",
            stacklevel=2,
        )


def _units(found: Mapping[str, Any], problems: list[str]) -> Units:
    least, classes = found.get("min_num_params", 0), found.get("transformer_layer_cls_to_wrap")
    by_size = least > 0 and classes is None
    policy = found.get("auto_wrap_policy", "size_based_wrap" if by_size else "transformer_based_wrap")
    if policy == "size_based_wrap" and least == 0:
        problems.append(
            "You set FSDP's auto_wrap_policy='size_based_wrap' without a size; set min_num_params to the smallest "
            "number of parameters of a unit."
        )
    if policy != "transformer_based_wrap" and classes is not None:
        problems.append(
            f"You set FSDP's transformer_layer_cls_to_wrap={list(classes)} and auto_wrap_policy={policy!r}, which "
            "contradict each other; keep one of them."
        )
    if policy == "no_wrap":
        return Units(())
    return Units(classes, least if policy == "size_based_wrap" else 0)


def _mesh(args: EngineArguments, found: Mapping[str, Any], problems: list[str]) -> tuple[int, int] | None:
    """Return replicas and ranks of each, None for one replica. A hybrid has one replica a machine by default."""
    strategy, size = found.get("sharding_strategy", "full_shard"), args.world_size
    given: tuple[int, int] | None = found.get("device_mesh")
    if strategy == "no_shard":
        return (size, 1)
    if not strategy.startswith("hybrid"):
        if given is not None:
            problems.append(
                f"You set FSDP's device_mesh={list(given)}, but {strategy} has one replica of the model; choose "
                "hybrid_shard, or leave device_mesh out."
            )
        return None
    if given is None:
        local = args.distributed_environment.local_world_size or size  # 0: the launcher does not state it
        given = (size // local, local) if size % local == 0 else (1, size)
    if given[0] * given[1] != size:
        problems.append(
            f"You set FSDP's device_mesh={list(given)}, but there are {size} processes; choose numbers whose product "
            "is that."
        )
    return given


def _formats(args: EngineArguments, given: Mapping[str, str] | None) -> Formats:
    """Return the given dtypes; else mixed precision gathers weights in its format and reduces gradients in float32."""
    if given is None and args.mixed_precision in MIXED:
        around = "bf16" if args.mixed_precision == "fp8" else args.mixed_precision
        given = {"param_dtype": around, "reduce_dtype": "fp32"}
    chosen = {name: DTYPES[format] for name, format in (given or {}).items()}
    return Formats(*map(chosen.get, FORMAT_KEYS))


Reader = Callable[[Any], Any]
"""From a value in `fsdp_config` to what it means; raises RefusalError."""


def _truth(value: Any) -> bool:
    found = value if isinstance(value, bool) else parse_truth(str(value))
    if found is None:
        raise RefusalError("it takes a truth value", "write true or false")
    return found


def _choice(choices: tuple[str, ...], numbered: bool = False) -> Reader:
    """Return a reader of one of some words, in any letter case; or of its number, from 1."""

    def read(value: Any) -> str:
        word = str(getattr(value, "value", value)).strip().lower().rpartition(".")[2]
        if numbered and word.isdigit() and 1 <= int(word) <= len(choices):
            return choices[int(word) - 1]
        if word not in choices:
            raise RefusalError("there is no such choice", f"choose {enumeration(choices, 'or')}")
        return word

    return read


def _count(value: Any) -> int:
    text = str(value).strip()
    if isinstance(value, bool) or not text.isdigit():
        raise RefusalError("it takes a number, 0 or more", "write a whole number")
    return int(text)


def _class_names(value: Any) -> tuple[str, ...] | None:
    """Return names given as a list or separated by commas; None for an empty value."""
    listed = value.split(",") if isinstance(value, str) else list(value or ())
    if not all(isinstance(each, str) for each in listed):
        raise RefusalError("it takes names of classes", "write a list of strings")
    return tuple(each.strip() for each in listed if each.strip()) or None


def _version(value: Any) -> int:
    if str(value) not in ("1", "2"):
        raise RefusalError("torch's FSDP has the versions 1 and 2", "write 1 or 2")
    return int(value)


def _reshard(value: Any) -> bool | str:
    """Return a truth value, or a strategy, as configurations of version 1 have it."""
    try:
        return _truth(value)
    except RefusalError:
        return str(_choice(STRATEGIES, numbered=True)(value))


def _mesh_shape(value: Any) -> tuple[int, int]:
    if not (isinstance(value, list | tuple) and len(value) == 2 and all(type(n) is int and n > 0 for n in value)):
        raise RefusalError("it takes two numbers", "write [replicas of the model, processes of each]")
    return value[0], value[1]


FORMAT_KEYS = ("param_dtype", "reduce_dtype", "buffer_dtype", "output_dtype")
"""In the order of the fields of `Formats`."""


def _format_names(value: Any) -> dict[str, str]:
    """Return the names of the dtypes, from one for everything or a mapping."""
    if not isinstance(value, Mapping):
        name = _format_name(value)
        return {} if name == "fp32" else {"param_dtype": name, "reduce_dtype": "fp32"}
    if unknown := value.keys() - set(FORMAT_KEYS):
        raise RefusalError(f"it has no key {enumeration(sorted(map(repr, unknown)))}", f"choose among {FORMAT_KEYS}")
    return {key: _format_name(name) for key, name in value.items() if name is not None}


def _format_name(value: Any) -> str:
    name = str(value).removeprefix("torch.").lower()
    return str(_choice(tuple(DTYPES))(DTYPE_NAMES.get(name, name)))


def _only(unset: tuple[Any, ...], because: str, remedy: str) -> Reader:
    """Return a reader that refuses every value that asks for something."""

    def read(value: Any) -> None:
        if not (value in unset or str(value).strip().lower() in ("", "false", "none", "0")):
            raise RefusalError(because, remedy)

    return read


_XLA = _only((None, False, {}), "it is for FSDP on XLA", "leave it out, or set xla to True in fsdp_config")

READERS: dict[str, Reader] = {
    "version": _version,
    "sharding_strategy": _choice(STRATEGIES, numbered=True),
    "reshard_after_forward": _reshard,
    "cpu_offload": _truth,
    "auto_wrap_policy": _choice(POLICIES, numbered=True),
    "transformer_layer_cls_to_wrap": _class_names,
    "min_num_params": _count,
    "backward_prefetch": _choice(PREFETCHES, numbered=True),
    "forward_prefetch": _truth,
    "limit_all_gathers": _truth,
    "use_orig_params": _truth,
    "sync_module_states": _truth,
    "cpu_ram_efficient_loading": _truth,
    "activation_checkpointing": _truth,
    "state_dict_type": _choice(STATE_DICTS),
    "mixed_precision": _format_names,
    "device_mesh": _mesh_shape,
    "activation_checkpointing_offload": _only(
        (None, False), "hexloop keeps no activations in host memory", "set activation_checkpointing"
    ),
    "ignored_modules": _only((None, ()), "hexloop shards every module", "leave it out"),
    "xla": _XLA,
    "xla_fsdp_v2": _XLA,
    "xla_fsdp_settings": _XLA,
    "xla_fsdp_grad_ckpt": _XLA,
}
"""The keys of `fsdp_config`."""

SPELLINGS = {
    "offload_params": "cpu_offload",
    "transformer_cls_to_wrap": "transformer_layer_cls_to_wrap",
    "transformer_cls_names_to_wrap": "transformer_layer_cls_to_wrap",
    "backward_prefetch_policy": "backward_prefetch",
    "mixed_precision_policy": "mixed_precision",
}
"""Other names that accelerate has for some keys."""


def read_keys(given: Mapping[str, Any], spelled: Callable[[str], str], problems: list[str]) -> dict[str, Any]:
    """Return what each key means; adds to `problems` what is wrong. spelled: how messages write a key."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        key = name if name in READERS else name.removeprefix("fsdp_")
        key = SPELLINGS.get(key, key)
        if key not in READERS:
            remedy = did_you_mean(key, READERS, f"choose among {', '.join(READERS)}.")
            problems.append(f"You set {spelled(name)}={shown(value)}, but FSDP has no such setting; {remedy}")
            continue
        if value is None:
            continue
        try:
            read = READERS[key](value)
        except RefusalError as refusal:
            problems.append(f"You set {spelled(name)}={shown(value)}, but {refusal}.")
            continue
        if key in found and found[key] != read:
            problems.append(
                f"You set {spelled(name)}={shown(value)}, but the same key in another spelling has another value; "
                "keep one."
            )
        found[key] = read
    return found
