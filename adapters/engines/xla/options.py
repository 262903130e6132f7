"""The options of FSDP on XLA, in `fsdp_config`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from attrs import field, frozen

from hexloop.adapters.engines.arguments import EngineArguments
from hexloop.adapters.trainable.torch.units import Units
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import RefusalError, did_you_mean, parse_truth, shown

KEYS = (
    *("xla", "xla_fsdp_v2", "xla_fsdp_settings", "xla_fsdp_grad_ckpt"),
    *("min_num_params", "transformer_layer_cls_to_wrap"),
)


@frozen
class XlaFsdpOptions:
    """The options of FSDP on XLA.

    units: the modules whose weights are gathered together. recompute: discard the activations of a unit in the forward
    pass and recompute them in the backward pass. settings: of the first version, keywords of torch_xla's
    `XlaFullyShardedDataParallel`.
    """

    units: Units = field(factory=Units)
    recompute: bool = False
    settings: Mapping[str, Any] = field(factory=dict)


def read_options(args: EngineArguments) -> XlaFsdpOptions:
    """Return the options. Raises ConfigurationError with all problems."""
    config: Mapping[str, Any] = args.fsdp_config if isinstance(args.fsdp_config, Mapping) else {}
    given = {name.removeprefix("fsdp_"): value for name, value in config.items() if value not in (None, False, {}, 0)}
    choices = f"choose among {', '.join(KEYS)}."
    problems = [
        f"You set fsdp_config[{name!r}]={shown(value)}, but FSDP on XLA has no such setting; "
        f"{did_you_mean(name, KEYS, choices)}"
        for name, value in given.items()
        if name not in KEYS
    ]
    settings = given.get("xla_fsdp_settings", {})
    if _truth(given, "xla_fsdp_v2", problems) and settings:
        problems.append(
            f"You set xla_fsdp_settings={shown(settings)} in fsdp_config, which are options of the first version of "
            "FSDP on XLA; the second one has none. Leave them out."
        )
        settings = {}
    classes = given.get("transformer_layer_cls_to_wrap")
    names = [classes] if isinstance(classes, str) else classes or []
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        problems.append(
            f"You set transformer_layer_cls_to_wrap={shown(classes)} in fsdp_config, but it takes the name of a class, "
            "or a list of names."
        )
        names = []
    least = str(given.get("min_num_params", 0))
    if not least.isdecimal():
        problems.append(f"You set min_num_params={shown(least)} in fsdp_config, but it takes a number; give 0 or more.")
        least = "0"
    options = XlaFsdpOptions(
        Units(tuple(names) or None, int(least)),
        _truth(given, "xla_fsdp_grad_ckpt", problems),
        _settings(settings, problems),
    )
    if problems:
        raise ConfigurationError(problems)
    return options


def _truth(given: Mapping[str, Any], name: str, problems: list[str]) -> bool:
    value = given.get(name, False)
    truth = value if isinstance(value, bool) else parse_truth(str(value))
    if truth is None:
        problems.append(
            f"You set fsdp_config[{name!r}]={shown(value)}, but it takes a truth value; give true or false."
        )
    return bool(truth)


# The settings of the first version

HALVES = ("float32", "bfloat16", "float16")
"""The formats that torch_xla's FSDP computes in, by torch's names."""


def _switch(value: Any) -> bool:
    truth = value if isinstance(value, bool) else parse_truth(str(value))
    if truth is None:
        raise RefusalError("it takes a truth value", "give true or false")
    return truth


def _format(value: Any) -> torch.dtype:
    name = str(value).removeprefix("torch.")
    if name not in HALVES:
        raise RefusalError("it takes one of torch's formats", f"choose {', '.join(HALVES[:-1])} or {HALVES[-1]}")
    found: torch.dtype = getattr(torch, name)
    return found


def _megabytes(value: Any) -> int:
    if isinstance(value, bool) or not str(value).isdecimal():
        raise RefusalError("it takes a number of megabytes", "give a whole number, 0 or more")
    return int(value)


def _refused(because: str, remedy: str) -> Callable[[Any], Any]:
    def read(value: Any) -> None:
        if value not in (None, False):
            raise RefusalError(because, remedy)

    return read


_GROUPS = _refused("hexloop shards the model over all processes", "leave it out")
_OWN = _refused("the configuration of a run holds no functions", "set min_num_params or transformer_layer_cls_to_wrap")

READERS: Mapping[str, Callable[[Any], Any]] = {
    "compute_dtype": _format,
    "buffer_dtype": _format,
    **dict.fromkeys(
        (
            *("reshard_after_forward", "disable_reshard_on_root", "execute_sharding_on_init", "sync_on_finalization"),
            *("optimization_barrier_in_forward", "optimization_barrier_in_backward", "fp32_reduce_scatter"),
            *("shard_param_on_dim_0", "pin_layout_in_collective_ops"),
        ),
        _switch,
    ),
    "reduce_scatter_bucket_size_mb": _megabytes,
    "flatten_parameters": _refused(
        "weight decay applies to some of the parameters that it would join, and optimizers then update all alike",
        "leave it out",
    ),
    "coalesce_all_gather_ops": _refused("it fails in torch_xla 2.9", "leave it out"),
    **dict.fromkeys(("sharding_groups", "sharding_rank", "sharding_world_size"), _GROUPS),
    **dict.fromkeys(("auto_wrap_policy", "auto_wrapper_callable", "param_init_fn"), _OWN),
}
"""What reads each of torch_xla's keywords. Those that are refused are taken with the value that turns them off."""


def _settings(given: Any, problems: list[str]) -> dict[str, Any]:
    """Return the keywords; adds to `problems`."""
    if not isinstance(given, Mapping):
        problems.append(f"You set xla_fsdp_settings={shown(given)} in fsdp_config, but it takes a mapping.")
        return {}
    found = {}
    for name, value in given.items():
        spelled = f"You set xla_fsdp_settings[{name!r}]={shown(value)} in fsdp_config"
        if name not in READERS:
            remedy = did_you_mean(str(name), READERS, f"choose among {', '.join(READERS)}.")
            problems.append(f"{spelled}, but FSDP on XLA has no such setting; {remedy}")
            continue
        try:
            found[name] = READERS[name](value)
        except RefusalError as refusal:
            problems.append(f"{spelled}, but {refusal}.")
    return {name: value for name, value in found.items() if value is not None}


def settings_by_torch(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return `xla_fsdp_settings` as transformers' `args.xla_fsdp_config` has them: formats as torch's types."""
    found = dict(config.get("xla_fsdp_settings") or {})
    for name in ("compute_dtype", "buffer_dtype"):
        found |= {name: getattr(torch, str(found[name]).removeprefix("torch."), found[name])} if name in found else {}
    return found
