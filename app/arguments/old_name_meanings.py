"""What single arguments of earlier releases amount to today, and their values out of arguments of today."""

from __future__ import annotations

import math
import os
from typing import Any

from hexloop.app.arguments.checks import each_one_of, one_of
from hexloop.app.arguments.choices import DebugOption
from hexloop.app.arguments.old_name_kinds import Given
from hexloop.domain.wording import RefusalError

FAIRSCALE = {
    "simple": "shard_grad_op",
    "zero_dp_2": "shard_grad_op",
    "zero_dp_3": "full_shard",
    "offload": "offload",
    "auto_wrap": "auto_wrap",
}
"""The words of `sharded_ddp`, and those of `fsdp` that say the same."""


def warmup_steps(ratio: float, _: Given) -> Given:
    """Of `warmup_ratio`: steps, which below 1 are a ratio of the run."""
    if not 0 <= ratio <= 1:
        raise RefusalError("a ratio lies between 0 and 1", "give warmup_steps a number of steps, or a ratio below 1")
    return {"warmup_steps": min(ratio, math.nextafter(1.0, 0.0))} if ratio else {}


def warmup_ratio(args: Any) -> float:
    """The ratio among `warmup_steps`; 0 where they are a count."""
    return args.warmup_steps if args.warmup_steps < 1 else 0.0


def backend(value: str, _: Given) -> Given:
    """Of the backends of mixed precision: nothing, as there is one."""
    one_of("auto", "torch", "native", "amp", "cuda_amp", "cpu_amp", "apex")(value)
    if value == "apex":
        raise RefusalError("Apex is superseded by torch's own mixed precision", "set fp16=True alone, or bf16=True")
    return {}


def apex_level(value: str, _: Given) -> Given:
    """Of Apex's levels: nothing, as there is no Apex."""
    one_of("O0", "O1", "O2", "O3")(value)
    return {}


def safetensors(on: bool, _: Given) -> Given:
    """Of `save_safetensors`: nothing, as there is no other format."""
    if not on:
        raise RefusalError("a pickle can run any code as it is loaded", "leave it out: weights go to safetensors files")
    return {}


def inputs_too(on: bool, given: Given) -> Given:
    """The inputs, beside what else metrics are computed from."""
    others = [name for name in given.get("include_for_metrics") or () if name != "inputs"]
    return {"include_for_metrics": ["inputs", *others]} if on else {}


def count_tokens(on: bool, given: Given) -> Given:
    """All tokens, unless others are counted."""
    counted = given.get("include_num_input_tokens_seen", "no")
    return {"include_num_input_tokens_seen": "all"} if on and counted in ("no", False, None) else {}


def tpu_debug(on: bool, given: Given) -> Given:
    """The TPU's metrics, beside what else is debugged."""
    others = given.get("debug") or []
    words = others.split() if isinstance(others, str) else list(others)
    wanted = [word for word in words if word != DebugOption.TPU_METRICS_DEBUG]
    return {"debug": [*wanted, DebugOption.TPU_METRICS_DEBUG]} if on else {}


def of_organization(organization: str, given: Given) -> Given:
    """The model's name on the hub, owned by the organization."""
    name = given.get("hub_model_id") or os.path.basename(os.path.normpath(given.get("output_dir") or "trainer_output"))
    owner, slash, rest = name.partition("/")
    if slash and owner != organization:
        raise RefusalError(f"hub_model_id says {name!r}", "write hub_model_id alone")
    return {"hub_model_id": f"{organization}/{rest or owner}"} if organization else {}


def model_name(args: Any) -> str | None:
    """The model's name on the hub, without its owner."""
    return (args.hub_model_id or "").rpartition("/")[2] or None


def organization(args: Any) -> str | None:
    """The owner of the model on the hub."""
    return (args.hub_model_id or "").rpartition("/")[0] or None


def fsdp_of_fairscale(value: str, _: Given) -> Given:
    """Of fairscale's words: those of torch's own sharding."""
    words = value.split()
    each_one_of(*FAIRSCALE)(words)
    return {"fsdp": " ".join(FAIRSCALE[word] for word in words)} if words else {}
