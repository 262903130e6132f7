"""The making of an optimizer over a model, and which parameters weight decay leaves out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

UNDECAYED = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")
"""Names of parameters that weight decay leaves out, besides all those of a LayerNorm; the reference library's rule."""

INSTEAD_OF_GROUPS = ("params", "model", "optimizer_dict")
"""Options that an optimizer is made over, instead of the groups; of several the last counts."""


def decayed_names(model: nn.Module) -> list[str]:
    """The names of the parameters that weight decay applies to: no bias, no normalisation."""
    normalised = tuple(name for name, module in model.named_modules() if isinstance(module, nn.LayerNorm))
    return [
        name
        for name, _ in model.named_parameters()
        if not UNDECAYED.search(name.lower()) and name.rpartition(".")[0] not in normalised
    ]


def parameter_groups(model: nn.Module, decayed: list[str], weight_decay: float) -> list[dict[str, Any]]:
    """The trainable parameters in two groups: with weight decay, and without; in one where nothing is decayed.

    An optimizer's step costs its host as much for a group as for many parameters, so a second group is made only
    where it makes a difference.
    """
    chosen = set(decayed)
    trainable = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if weight_decay == 0:
        return [{"params": [parameter for _, parameter in trainable], "weight_decay": 0.0}]
    return [
        {"params": [parameter for name, parameter in trainable if name in chosen], "weight_decay": weight_decay},
        {"params": [parameter for name, parameter in trainable if name not in chosen], "weight_decay": 0.0},
    ]


def make_optimizer(
    model: nn.Module,
    optimizer_class: Any,
    options: Mapping[str, Any],
    decayed: list[str],
    weight_decay: float,
) -> Any:
    """The optimizer over the model's trainable parameters.

    What is no class of optimizers is a factory: it is called without an argument, and what it gives with the model and
    the options. An optimizer that is made over something of its own names it among the options: "params" (groups),
    "model", or "optimizer_dict" (an optimizer for each parameter).
    """
    if not (isinstance(optimizer_class, type) and issubclass(optimizer_class, Optimizer)):
        return optimizer_class()(model, **options)
    over = [options[name] for name in INSTEAD_OF_GROUPS if name in options]
    left = {name: value for name, value in options.items() if name not in INSTEAD_OF_GROUPS}
    return optimizer_class(over[-1] if over else parameter_groups(model, decayed, weight_decay), **left)
