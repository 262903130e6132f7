"""What is asked for of FSDP, from the words of `fsdp`, the keys of `fsdp_config`, and accelerate's variables."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from hexloop.app.arguments import TrainingArguments
from hexloop.app.environment import launched
from hexloop.app.fsdp.keys import STRATEGIES, read_keys
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import shown

PREFIX = "FSDP_"
"""How accelerate's variables begin that say what its `--fsdp_...` options were."""

VARIABLES = (
    "VERSION", "SHARDING_STRATEGY", "RESHARD_AFTER_FORWARD", "OFFLOAD_PARAMS", "MIN_NUM_PARAMS", "AUTO_WRAP_POLICY",
    "TRANSFORMER_CLS_TO_WRAP", "BACKWARD_PREFETCH", "STATE_DICT_TYPE", "FORWARD_PREFETCH", "USE_ORIG_PARAMS",
    "CPU_RAM_EFFICIENT_LOADING", "SYNC_MODULE_STATES", "ACTIVATION_CHECKPOINTING", "ACTIVATION_CHECKPOINTING_OFFLOAD",
    "IGNORED_MODULES",
)  # fmt: skip

OF_THE_FIRST = ("backward_prefetch", "limit_all_gathers", "use_orig_params")
"""What only the first generation is told: the second always does the better of both."""


KEEPING = {"full_shard": "shard_grad_op", "hybrid_shard": "hybrid_shard_zero2"}
"""The strategies that keep gathered weights from the forward to the backward pass, by those that free them."""

FREEING = {keeping: freeing for freeing, keeping in KEEPING.items()}


@frozen
class FsdpSettings:
    """What FSDP is to do.

    version: torch's first or second generation. strategy: one of STRATEGIES. offload: keep what is sharded in host
    memory. policy: by what the units are chosen. classes: the names of their classes, None for the model's own list.
    least: the size from which modules are units, under "size_based_wrap". mesh: copies, and processes for each.
    formats: what is computed in which number format, by the names of torch's options; None: as the precision has it.
    """

    version: int = 2
    strategy: str = "full_shard"
    offload: bool = False
    policy: str = "transformer_based_wrap"
    classes: tuple[str, ...] | None = None
    least: int = 0
    backward_prefetch: str | None = None
    forward_prefetch: bool = False
    limit_all_gathers: bool = True
    recompute: bool = False
    mesh: tuple[int, int] | None = None
    formats: Mapping[str, str] | None = None
    synchronise_each: bool = True


def fsdp_consolidates(args: TrainingArguments) -> bool:
    """Whether the weights are to be put together in one process when they are saved.

    accelerate's variable does not say so: its launcher asks for the full state dict where nobody did.
    """
    given = args.fsdp_config if isinstance(args.fsdp_config, Mapping) else {}
    return read_keys(given, str, []).get("state_dict_type") == "full_state_dict"


def read_fsdp(args: TrainingArguments) -> FsdpSettings:
    """What is asked for; `fsdp_config` goes before accelerate's variables.

    These count where `fsdp` does not turn FSDP on. Raises ConfigurationError with all problems.
    """
    problems: list[str] = []
    told = {} if args.fsdp else _launched(problems)
    given = args.fsdp_config if isinstance(args.fsdp_config, Mapping) else {}
    config = read_keys(given, lambda name: f"fsdp_config[{name!r}]", problems)
    generation = config.get("version", told.get("version", 2))
    if generation == 2 and told.get("sharding_strategy") == "full_shard" and "reshard_after_forward" in told:
        del told["sharding_strategy"]  # accelerate's launcher sets both, whatever it was told
    for base in (told, config):
        _settle_strategy(base, generation, problems)
    found = {**told, **_words(args.fsdp or "", config, problems), **config, "version": generation}
    settings = _settings(args, found, problems)
    if problems:
        raise ConfigurationError(problems)
    return settings


def _launched(problems: list[str]) -> dict[str, Any]:
    """What the variables of `accelerate launch` say."""
    values = {name: os.environ.get(f"{PREFIX}{name}", "") for name in VARIABLES}
    given = {name.lower(): value for name, value in values.items() if value not in ("", "None")}
    found = read_keys(given, lambda name: f"the environment variable {PREFIX}{name.upper()}", problems)
    return {"version": 1, **found}


def _settle_strategy(found: dict[str, Any], generation: int, problems: list[str]) -> None:
    """The one strategy of what may be said in two ways: a strategy, or whether to free weights after a forward pass."""
    reshard, strategy = found.pop("reshard_after_forward", None), found.get("sharding_strategy")
    if reshard is None or (generation == 1 and isinstance(reshard, bool) and strategy is not None):
        return  # the first generation goes by the strategy
    if isinstance(reshard, str):
        said = reshard
    elif reshard:
        said = FREEING.get(strategy or "", strategy or "full_shard")
    else:
        said = KEEPING.get(strategy or "full_shard", strategy or "full_shard")
    if strategy not in (None, said):
        problems.append(
            f"You set FSDP's sharding_strategy={strategy!r} and reshard_after_forward={reshard!r}, which contradict "
            "each other; keep one of them."
        )
    found["sharding_strategy"] = said


def _words(words: str, config: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """What the words of older releases say, checked against the configuration."""
    said: dict[str, Any] = {}
    strategies = [word for word in words.split() if word in STRATEGIES]
    if len(set(strategies)) > 1:
        problems.append(f"You chose fsdp={shown(words)}, but only one strategy can be had; keep one of {strategies}.")
    if strategies and words != "full_shard":  # which is also what fsdp=True stands for
        said["sharding_strategy"] = strategies[0]
    if "offload" in words.split():
        said["cpu_offload"] = True
    for key, value in said.items():
        if config.get(key, value) != value:
            problems.append(
                f"You chose fsdp={shown(words)} and set {key}={config[key]!r} in fsdp_config, which contradict each "
                "other; keep one of them."
            )
    return said


def _settings(args: TrainingArguments, found: Mapping[str, Any], problems: list[str]) -> FsdpSettings:
    generation = found["version"]
    least, classes = found.get("min_num_params", 0), found.get("transformer_layer_cls_to_wrap")
    by_size = least > 0 and classes is None
    policy = found.get("auto_wrap_policy", "size_based_wrap" if by_size else "transformer_based_wrap")
    if policy == "size_based_wrap" and least == 0:
        problems.append(
            "You set FSDP's auto_wrap_policy='size_based_wrap', but not from which size on; set min_num_params too."
        )
    if policy != "transformer_based_wrap" and classes is not None:
        problems.append(
            f"You set FSDP's transformer_layer_cls_to_wrap={list(classes)} and auto_wrap_policy={policy!r}, which "
            "contradict each other; keep one of them."
        )
    if generation == 2 and (ignored := [key for key in OF_THE_FIRST if found.get(key) not in (None, True)]):
        warnings.warn(f"FSDP 2 does without {', '.join(ignored)}: these have no effect.", stacklevel=2)
    if generation == 1 and found.get("use_orig_params") is False:
        warnings.warn(
            "use_orig_params=False has no effect: hexloop always lets FSDP 1 keep the model's own parameters, of which "
            "some are decayed and others are not.",
            stacklevel=2,
        )
    if found.get("activation_checkpointing") and args.activation_checkpointing:
        problems.append(
            "You chose activation_checkpointing=True, and set it in fsdp_config, too; keep the latter, as it gathers "
            "weights once less."
        )
    accumulation = getattr(args.accelerator_config, "gradient_accumulation_kwargs", None) or {}
    return FsdpSettings(
        version=generation,
        strategy=found.get("sharding_strategy", "full_shard"),
        offload=found.get("cpu_offload", False),
        policy=policy,
        classes=classes,
        least=least if policy == "size_based_wrap" else 0,
        backward_prefetch=found.get("backward_prefetch"),
        forward_prefetch=found.get("forward_prefetch", False),
        limit_all_gathers=found.get("limit_all_gathers", True),
        recompute=found.get("activation_checkpointing", False),
        mesh=_mesh(args, found, problems),
        formats=found.get("mixed_precision"),
        synchronise_each=bool(accumulation.get("sync_each_batch", True)),
    )


def _mesh(args: TrainingArguments, found: Mapping[str, Any], problems: list[str]) -> tuple[int, int] | None:
    """Copies, and processes that share one; None where there is one copy. A machine shares one unless it is said."""
    strategy, size = found.get("sharding_strategy", "full_shard"), args.world_size
    given: tuple[int, int] | None = found.get("device_mesh")
    if strategy == "no_shard":
        return (size, 1)
    if not strategy.startswith("hybrid"):
        if given is not None:
            problems.append(
                f"You set FSDP's device_mesh={list(given)}, but {strategy} has one copy of the model; choose "
                "hybrid_shard, or leave it out."
            )
        return None
    if given is None:
        process = launched()
        local = (process.local_world_size if process.world_size == size else 0) or size  # 0: the launcher does not say
        given = (size // local, local) if size % local == 0 else (1, size)
    if given[0] * given[1] != size:
        problems.append(
            f"You set FSDP's device_mesh={list(given)}, but there are {size} processes; choose numbers whose product "
            "that is."
        )
    return given
