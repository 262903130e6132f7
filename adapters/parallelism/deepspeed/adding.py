"""Whether DeepSpeed's engine can add the processes' gradients up, where by itself it takes their mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OPERATION = "gradient_allreduce_op"
"""The entry of its configuration that says which of the two it does, in the versions that know both."""

CHOSEN = (OPERATION, "prescale_gradients", "gradient_predivide_factor")
"""Entries by which somebody has chosen the scale of gradients already."""

NARROW = ("fp16", "amp", "torch_autocast")
"""Sections of formats in which a gradient that is smaller by the number of processes may be 0."""


def adds_gradients(config: Mapping[str, Any], model: Any) -> bool:
    """Whether an engine by `config` may be told to add up, as what each process has is its share of a sum.

    ZeRO 3, ZenFlow and DeepCompile only take means. Experts' gradients, whose parameters DeepSpeed marks with
    `allreduce = False`, meet in some of the processes alone.
    """
    zero = _section(config, "zero_optimization")
    return not (
        any(name in config for name in CHOSEN)
        or any(_section(config, name).get("enabled", False) for name in NARROW)
        or zero.get("stage", 0) == 3
        or "zenflow" in zero
        or _section(config, "compile").get("deepcompile", False)
        or any(not getattr(parameter, "allreduce", True) for parameter in model.parameters())
    )


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    return found if isinstance(found, Mapping) else {}
