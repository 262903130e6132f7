"""The torch optimizers by the reference library's names, and which parameters weight decay leaves out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim import SGD, Adagrad, AdamW, Optimizer, RMSprop

from hexloop.domain.errors import ConfigurationError

UNDECAYED = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")
"""Names of parameters that weight decay leaves out, besides all those of a LayerNorm; the reference library's rule."""


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


def choose_optimizer(
    name: str,
    learning_rate: float,
    betas: tuple[float, float],
    epsilon: float,
    further: str | None,
    device_type: str,
) -> tuple[type[Optimizer], dict[str, Any]]:
    """The class of the optimizer that `name` stands for, and its arguments; `further` ones are "name=value,...".

    Raises ConfigurationError for a name whose optimizer hexloop does not make.
    """
    adam: dict[str, Any] = {"lr": learning_rate, "betas": betas, "eps": epsilon}
    plain: dict[str, Any] = {"lr": learning_rate}
    known: dict[str, tuple[type[Optimizer], dict[str, Any]]] = {
        "adamw_torch": (AdamW, adam),
        "adamw_torch_fused": (AdamW, {**adam, "fused": device_type in ("cpu", "cuda", "mps", "xpu")}),
        "sgd": (SGD, plain),
        "adagrad": (Adagrad, plain),
        "rmsprop": (RMSprop, plain),
    }
    if name not in known:
        raise ConfigurationError(
            [
                f"You chose optim={name!r}, which hexloop does not make itself yet; choose one of "
                f"{', '.join(known)}, or pass optimizers=(optimizer, None) or optimizer_cls_and_kwargs to the Trainer."
            ]
        )
    optimizer_class, arguments = known[name]
    for assignment in filter(None, (further or "").replace(" ", "").split(",")):
        key, _, text = assignment.partition("=")
        arguments[key] = _parse(text)
    return optimizer_class, arguments


def _parse(text: str) -> Any:
    """The number, boolean or text that an option's text means."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def make_optimizer(
    model: nn.Module,
    optimizer_class: type[Any],
    options: Mapping[str, Any],
    decayed: list[str],
    weight_decay: float,
) -> Any:
    """The optimizer over the model's trainable parameters."""
    return optimizer_class(parameter_groups(model, decayed, weight_decay), **options)
