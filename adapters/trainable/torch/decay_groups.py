"""The two parameter groups of transformers, with and without weight decay, and one kernel call for both."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import wraps
from typing import Any
from weakref import ref

from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

NO_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")
"""Names of parameters without weight decay, as in transformers. Those of a LayerNorm have none either."""


def decayed_names(model: nn.Module) -> list[str]:
    """Return the names of the parameters with weight decay: all except biases and normalization weights."""
    normalized = tuple(name for name, module in model.named_modules() if isinstance(module, nn.LayerNorm))
    return [
        name
        for name, _ in model.named_parameters()
        if not NO_DECAY.search(name.lower()) and name.rpartition(".")[0] not in normalized
    ]


def parameter_groups(
    model: nn.Module, decayed: list[str], weight_decay: float, keeps_empty: bool = True
) -> list[dict[str, Any]]:
    """Return the trainable parameters in two groups, with and without weight decay, as in transformers.

    There are two even where the decay is 0 or a group is empty, unless `keeps_empty` is False.
    """
    chosen = set(decayed)
    trainable = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for name, parameter in trainable if name in chosen], "weight_decay": weight_decay},
        {"params": [parameter for name, parameter in trainable if name not in chosen], "weight_decay": 0.0},
    ]
    return groups if keeps_empty else [group for group in groups if group["params"]] or groups[:1]


# Two groups in one kernel call

BY_ELEMENT = frozenset({Adam, AdamW, SGD, Adagrad, RMSprop})
"""Optimizers whose update of a parameter depends on no other parameter of its group."""

PLAIN = frozenset({float, int, bool, str, tuple, type(None)})
"""Types of options that can be compared without waiting for a device."""


def step_equal_groups_at_once(optimizer: Optimizer) -> None:
    """Let an optimizer with two groups update both in one call of its kernel while their options are equal.

    The results are the same. A call costs as much host time as many parameters do, and without weight decay the groups
    of `parameter_groups` are always equal. Hooks of the optimizer's step see both groups. Does nothing for optimizers
    that are not `BY_ELEMENT`.
    """
    below_hooks = getattr(type(optimizer).step, "__wrapped__", None)  # torch wraps `step` to call hooks around it
    if type(optimizer) not in BY_ELEMENT or below_hooks is None:
        return

    @wraps(below_hooks)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        groups = self.param_groups
        if len(groups) != 2 or not _equal_options(*groups):
            return below_hooks(self, *args, **kwargs)
        first, second = groups
        self.param_groups = [{**first, "params": [*first["params"], *second["params"]]}]
        try:
            return below_hooks(self, *args, **kwargs)
        finally:
            self.param_groups = groups

    hooked: Any = Optimizer.profile_hook_step(step)
    owner = ref(optimizer)  # with a method, the optimizer would refer to itself

    @wraps(hooked)
    def step_of_owner(*args: Any, **kwargs: Any) -> Any:
        return hooked(owner(), *args, **kwargs)

    step_of_owner.__func__ = hooked  # type: ignore[attr-defined]  # torch's schedules wrap it
    optimizer.step = step_of_owner  # type: ignore[method-assign]


def _equal_options(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two groups have the same options. Different tensors or objects count as different."""
    if one.keys() != other.keys():
        return False
    for name, value in one.items():
        own = other[name]
        if (
            own is not value
            and name != "params"
            and (type(own) is not type(value) or type(value) not in PLAIN or own != value)
        ):
            return False
    return True
