"""What DeepSpeed's engine is told of the way that gradients take, where the user's configuration says nothing of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OPERATION = "gradient_allreduce_op"
"""The entry of its configuration that says which of the two it does, in the versions that know both."""

CHOSEN = (OPERATION, "prescale_gradients", "gradient_predivide_factor")
"""Entries by which somebody has chosen the scale of gradients already."""

NARROW = ("fp16", "amp", "torch_autocast")
"""Sections of formats in which a gradient that is smaller by the number of processes may be 0."""

WAYS = ("reduce_scatter", "use_multi_rank_bucket_allreduce")
"""Entries of ZeRO's section by which somebody has chosen how gradients travel."""


def adding_up(config: Mapping[str, Any], model: Any) -> dict[str, Any] | None:
    """`config` for an engine that adds up, as what each process has is its share of a sum; None where it cannot.

    ZeRO 3, ZenFlow and DeepCompile only take means. Experts' gradients, whose parameters DeepSpeed marks with
    `allreduce = False`, meet in some of the processes alone. Under ZeRO 1 and 2 everything is reduced where it lies: by
    itself DeepSpeed copies it first, reduces all of the copy, too, and copies each process's own part back.
    """
    zero = _section(config, "zero_optimization")
    stage = zero.get("stage", 0)
    if (
        stage == 3
        or "zenflow" in zero
        or any(name in config for name in CHOSEN)
        or any(_section(config, name).get("enabled", False) for name in NARROW)
        or _section(config, "compile").get("deepcompile", False)
        or any(not getattr(parameter, "allreduce", True) for parameter in model.parameters())
    ):
        return None
    adding = {**config, OPERATION: "sum"}
    if stage > 0 and not any(name in zero for name in WAYS):
        adding["zero_optimization"] = {**zero, "reduce_scatter": False}
    return adding


def left_in_place(config: Mapping[str, Any], device_type: str) -> dict[str, Any]:
    """`config` for an engine that takes the gradients of ZeRO 3 from where the backward pass left them.

    By itself DeepSpeed copies each into a buffer before it sorts them by process in another. That keeps a device's
    memory from falling to pieces; a processor's does not.
    """
    zero = _section(config, "zero_optimization")
    kept = any(name in zero for name in ("contiguous_gradients", "reduce_scatter", "zenflow"))
    if zero.get("stage", 0) != 3 or device_type != "cpu" or kept:
        return dict(config)
    return {**config, "zero_optimization": {**zero, "contiguous_gradients": False}}


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    return found if isinstance(found, Mapping) else {}
