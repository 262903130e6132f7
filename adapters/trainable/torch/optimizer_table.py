"""The optimizers by the reference library's names: a row makes one, or says what to install or to choose instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NoReturn, TypeAlias

from attrs import frozen
from torch.optim import SGD, Adagrad, AdamW, RMSprop

from hexloop.adapters.trainable.torch.optimizer_options import further_options
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import did_you_mean


@frozen
class Wanted:
    """What the arguments say about an optimizer, and what it is for."""

    name: str
    learning_rate: float
    betas: tuple[float, float]
    epsilon: float
    device_type: str
    model: Any = None


Chosen: TypeAlias = tuple[type[Any], dict[str, Any]]
"""An optimizer's class, and its arguments."""

Row: TypeAlias = Callable[[Wanted], Chosen]
"""Raises ConfigurationError where the optimizer cannot be made here."""

FUSED_ON = ("cpu", "cuda", "mps", "xpu")
"""Types of device for which torch has a fused AdamW."""


def choose_optimizer(
    name: str,
    learning_rate: float,
    betas: tuple[float, float],
    epsilon: float,
    further: str | None,
    device_type: str,
    model: Any = None,
) -> Chosen:
    """The class of the optimizer that `name` stands for, and its arguments; `further` ones are "name=value,...".

    Raises ConfigurationError for a name whose optimizer hexloop does not make, with what to install or choose, and for
    further arguments that the optimizer does not have.
    """
    if name not in OPTIMIZERS:
        remedy = did_you_mean(name, OPTIMIZERS, f"choose one of {', '.join(MADE)}.", spell=repr)
        raise ConfigurationError([f"You chose optim={name!r}, but there is no optimizer of that name; {remedy}"])
    optimizer_class, arguments = OPTIMIZERS[name](Wanted(name, learning_rate, betas, epsilon, device_type, model))
    return optimizer_class, {**arguments, **further_options(optimizer_class, further)}


def _adamw(wanted: Wanted) -> Chosen:
    return AdamW, {"lr": wanted.learning_rate, "betas": wanted.betas, "eps": wanted.epsilon}


def _adamw_fused(wanted: Wanted) -> Chosen:
    optimizer_class, arguments = _adamw(wanted)
    return optimizer_class, {**arguments, "fused": wanted.device_type in FUSED_ON}


def _plain(optimizer_class: type[Any]) -> Row:
    """An optimizer that takes of the arguments only the learning rate."""
    return lambda wanted: (optimizer_class, {"lr": wanted.learning_rate})


def _adafactor(wanted: Wanted) -> Chosen:
    """The reference library's own class.

    Torch's Adafactor is another algorithm: it always scales the rate by the size of the weights and cuts it to
    1 / sqrt(step), which are the two things (scale_parameter, relative_step) that the reference's Trainer turns off.
    """
    try:
        from transformers.optimization import Adafactor
    except ImportError:
        _refuse(
            wanted.name,
            "it is a class of transformers, which is not installed",
            "install hexloop[transformers], or choose adamw_torch",
        )
    return Adafactor, {"lr": wanted.learning_rate, "scale_parameter": False, "relative_step": False}


def _of_package(package: str, spelled: str, options: str = "'lr': 1e-4") -> Row:
    """An optimizer of a package that hexloop does not set up by name yet, which can be passed as it is."""

    def row(wanted: Wanted) -> NoReturn:
        _refuse(
            wanted.name,
            f"hexloop does not set up the optimizers of {package} by name yet",
            f"install {package} and pass optimizer_cls_and_kwargs=({spelled}, {{{options}}}) to the Trainer, "
            f"or choose one of {', '.join(MADE)}",
        )

    return row


def _not_here(because: str, remedy: str) -> Row:
    """An optimizer that hexloop will not make."""

    def row(wanted: Wanted) -> NoReturn:
        _refuse(wanted.name, because, remedy)

    return row


def _refuse(name: str, because: str, remedy: str) -> NoReturn:
    raise ConfigurationError([f"You chose optim={name!r}, but {because}; {remedy}."])


_IN_BACKWARD = _not_here(
    "it takes its steps within the backward pass, which hexloop does not let it do yet",
    "choose adafactor to save memory",
)
_TWO_SETS_OF_WEIGHTS = _not_here(
    "it has to be told when training ends and evaluation begins, which hexloop does not do yet", "choose adamw_torch"
)
BITS_8, BITS_32 = "'lr': 1e-4, 'optim_bits': 8", "'lr': 1e-4, 'optim_bits': 32"
PAGED_8, PAGED_32 = f"{BITS_8}, 'is_paged': True", f"{BITS_32}, 'is_paged': True"
GROUPS = "'lr': 1e-4, 'params': groups"

OPTIMIZERS: Mapping[str, Row] = MappingProxyType(
    {
        "adamw_torch": _adamw,
        "adamw_torch_fused": _adamw_fused,
        "sgd": _plain(SGD),
        "adagrad": _plain(Adagrad),
        "rmsprop": _plain(RMSprop),
        "adafactor": _adafactor,
        "adamw_torch_xla": _not_here("it is for TPUs, on which hexloop does not train", "choose adamw_torch"),
        "adamw_torch_npu_fused": _not_here("it is for Ascend's devices, which hexloop has not", "choose adamw_torch"),
        "adamw_hf": _not_here("the reference library removed it for torch's own", "choose adamw_torch"),
        "adamw_apex_fused": _not_here("torch's own took the place of Apex's", "choose adamw_torch_fused"),
        "adamw_anyprecision": _not_here(
            "its package, torchdistx, is no longer kept up", "choose adamw_torch with bf16=True, or stable_adamw"
        ),
        "adamw_torch_4bit": _of_package("torchao", "torchao.optim.AdamW4bit"),
        "adamw_torch_8bit": _of_package("torchao", "torchao.optim.AdamW8bit"),
        "adamw_bnb_8bit": _of_package("bitsandbytes", "bitsandbytes.optim.AdamW", BITS_8),
        "adamw_8bit": _of_package("bitsandbytes", "bitsandbytes.optim.AdamW", BITS_8),
        "paged_adamw_32bit": _of_package("bitsandbytes", "bitsandbytes.optim.AdamW", PAGED_32),
        "paged_adamw_8bit": _of_package("bitsandbytes", "bitsandbytes.optim.AdamW", PAGED_8),
        "ademamix": _of_package("bitsandbytes", "bitsandbytes.optim.AdEMAMix", BITS_32),
        "ademamix_8bit": _of_package("bitsandbytes", "bitsandbytes.optim.AdEMAMix", BITS_8),
        "paged_ademamix_32bit": _of_package("bitsandbytes", "bitsandbytes.optim.AdEMAMix", PAGED_32),
        "paged_ademamix_8bit": _of_package("bitsandbytes", "bitsandbytes.optim.AdEMAMix", PAGED_8),
        "lion_32bit": _of_package("bitsandbytes", "bitsandbytes.optim.Lion", BITS_32),
        "lion_8bit": _of_package("bitsandbytes", "bitsandbytes.optim.Lion", BITS_8),
        "paged_lion_32bit": _of_package("bitsandbytes", "bitsandbytes.optim.Lion", PAGED_32),
        "paged_lion_8bit": _of_package("bitsandbytes", "bitsandbytes.optim.Lion", PAGED_8),
        "rmsprop_bnb": _of_package("bitsandbytes", "bitsandbytes.optim.RMSprop", BITS_32),
        "rmsprop_bnb_8bit": _of_package("bitsandbytes", "bitsandbytes.optim.RMSprop", BITS_8),
        "rmsprop_bnb_32bit": _of_package("bitsandbytes", "bitsandbytes.optim.RMSprop", BITS_32),
        "galore_adamw": _of_package("galore-torch", "galore_torch.GaLoreAdamW", GROUPS),
        "galore_adamw_8bit": _of_package("galore-torch", "galore_torch.GaLoreAdamW8bit", GROUPS),
        "galore_adafactor": _of_package("galore-torch", "galore_torch.GaLoreAdafactor", GROUPS),
        "galore_adamw_layerwise": _IN_BACKWARD,
        "galore_adamw_8bit_layerwise": _IN_BACKWARD,
        "galore_adafactor_layerwise": _IN_BACKWARD,
        "apollo_adamw": _of_package("apollo-torch", "apollo_torch.APOLLOAdamW", GROUPS),
        "apollo_adamw_layerwise": _IN_BACKWARD,
        "lomo": _IN_BACKWARD,
        "adalomo": _IN_BACKWARD,
        "grokadamw": _of_package("grokadamw", "grokadamw.GrokAdamW"),
        "schedule_free_adamw": _TWO_SETS_OF_WEIGHTS,
        "schedule_free_radam": _TWO_SETS_OF_WEIGHTS,
        "schedule_free_sgd": _TWO_SETS_OF_WEIGHTS,
        "stable_adamw": _of_package("torch-optimi", "optimi.StableAdamW"),
    }
)
"""Every name that the reference library's `OptimizerNames` had in its fourth and fifth releases."""

MADE = ("adamw_torch", "adamw_torch_fused", "sgd", "adagrad", "rmsprop", "adafactor")
"""The names of those that hexloop makes."""
