"""FSDP's options as the keywords of accelerate's `FullyShardedDataParallelPlugin`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from hexloop.adapters.engines.arguments import EngineArguments
from hexloop.adapters.engines.fsdp.options import read_keys, read_options


def plugin_arguments(args: EngineArguments) -> dict[str, Any]:
    """Return the keywords under the names of transformers' `fsdp_plugin_args`.

    Raises ConfigurationError with all problems of the options.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the run has warned already
        options = read_options(args)
    given = args.fsdp_config if isinstance(args.fsdp_config, Mapping) else {}
    config = read_keys(given, str, [])
    units = options.units
    by_class = units.classes is None or units.classes
    policy = "SIZE_BASED_WRAP" if units.least > 0 else "TRANSFORMER_BASED_WRAP" if by_class else "NO_WRAP"
    found: dict[str, Any] = {"fsdp_version": options.version}
    if options.offload:
        found["cpu_offload"] = True
    found["auto_wrap_policy"] = policy
    if units.least > 0:
        found["min_num_params"] = units.least
    if units.classes:
        found["transformer_cls_names_to_wrap"] = ",".join(units.classes)
    found["cpu_ram_efficient_loading"] = bool(config.get("cpu_ram_efficient_loading", False))
    found["state_dict_type"] = str(config.get("state_dict_type", "full_state_dict")).upper()
    if "activation_checkpointing" in config:
        found["activation_checkpointing"] = config["activation_checkpointing"]
    if options.version == 2:
        return {**found, "reshard_after_forward": options.reshard_after_forward}
    found |= {
        "reshard_after_forward": options.strategy,
        "forward_prefetch": options.forward_prefetch,
        "backward_prefetch": str(config.get("backward_prefetch", "no_prefetch")).upper(),
        "use_orig_params": bool(config.get("use_orig_params", True)),
        "sync_module_states": bool(config.get("sync_module_states", True)),
    }
    return {**found, **{name: config[name] for name in ("limit_all_gathers",) if name in config}}
