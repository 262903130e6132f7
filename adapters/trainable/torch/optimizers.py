"""Optimizers by the names that transformers uses, the parsing of their options, and the parameter groups."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Mapping
from functools import wraps
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, NoReturn, TypeAlias
from weakref import ref

from attrs import frozen
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from hexloop.adapters.trainable.torch.any_precision import AnyPrecisionAdamW
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import Problem, did_you_mean, parse_truth


@frozen
class OptimizerSpec:
    """The training arguments that describe an optimizer, and the device type that it is for."""

    name: str
    learning_rate: float
    betas: tuple[float, float]
    epsilon: float
    device_type: str


ClassAndOptions: TypeAlias = tuple[type[Any], dict[str, Any]]
"""The class of an optimizer and its keyword arguments."""

Row: TypeAlias = Callable[[OptimizerSpec], ClassAndOptions]
"""Raises ConfigurationError if the optimizer is not available."""

BUILT_IN = ("adamw_torch", "adamw_torch_fused", "adamw_anyprecision", "sgd", "adagrad", "rmsprop", "adafactor")
"""The names that work without passing a class."""

FUSED_ON = ("cpu", "cuda", "hpu", "mps", "xpu")
"""Device types for which torch has a fused AdamW."""


def choose_optimizer(
    name: str,
    learning_rate: float,
    betas: tuple[float, float],
    epsilon: float,
    further: str | None,
    device_type: str,
) -> ClassAndOptions:
    """Return the class and the keyword arguments of the optimizer called `name`.

    further: more keyword arguments, as "name=value,...".
    Raises ConfigurationError if the name is unknown, if hexloop does not support that optimizer (the message says what
    to install or to choose instead), or if the optimizer does not accept one of the `further` arguments.
    """
    if name not in OPTIMIZERS:
        remedy = did_you_mean(name, OPTIMIZERS, f"choose one of {', '.join(BUILT_IN)}.", spell=repr)
        raise ConfigurationError(f"There is no optimizer optim={name!r}; {remedy}")
    spec = OptimizerSpec(name, learning_rate, betas, epsilon, device_type)
    optimizer_class, options = OPTIMIZERS[name](spec)
    return optimizer_class, {**options, **parse_optim_args(optimizer_class, further)}


# The rows of the table


def _adamw(spec: OptimizerSpec, **further: bool) -> ClassAndOptions:
    return AdamW, {"lr": spec.learning_rate, "betas": spec.betas, "eps": spec.epsilon, **further}


def _adamw_of(path: str, remedy: str) -> Row:
    """Return the row of an AdamW with torch's options, at "package.module:name"."""

    def row(spec: OptimizerSpec) -> ClassAndOptions:
        try:
            optimizer_class = resolve_name(path)
        except ImportError:
            package = path.partition(".")[0]
            _refuse(spec.name, f"is not supported: it is of {package}, which cannot be imported", remedy, ImportError)
        return optimizer_class, _adamw(spec)[1]

    return row


def _rate_only(optimizer_class: type[Any]) -> Row:
    """Return the row of an optimizer that takes only the learning rate from the training arguments."""
    return lambda spec: (optimizer_class, {"lr": spec.learning_rate})


def _adafactor(spec: OptimizerSpec) -> ClassAndOptions:
    """Use the class of transformers.

    torch's Adafactor is a different algorithm: it always scales the rate by the size of the weights and limits it to
    1 / sqrt(step). These are the two features (scale_parameter, relative_step) that transformers' Trainer switches off.
    """
    try:
        from transformers.optimization import Adafactor
    except ImportError:
        _refuse(
            spec.name,
            "needs transformers, which is not installed",
            "install hexloop[transformers], or choose adamw_torch",
            ImportError,
        )
    return Adafactor, {"lr": spec.learning_rate, "scale_parameter": False, "relative_step": False}


def _from_package(package: str, path: str, options: str = "'lr': 1e-4") -> Row:
    """Return the row of an optimizer that has to be passed as a class, because hexloop cannot build it by name yet."""
    return _unsupported(
        f"hexloop does not build the optimizers of {package} by name yet",
        f"install {package} and pass optimizer_cls_and_kwargs=({path}, {{{options}}}) to the Trainer, "
        f"or choose one of {', '.join(BUILT_IN)}",
        ImportError,
    )


def _unsupported(because: str, remedy: str, kind: type[Exception] | None = None) -> Row:
    """Return the row of an optimizer that hexloop does not support. kind: a further class of the error."""

    def row(spec: OptimizerSpec) -> NoReturn:
        _refuse(spec.name, f"is not supported: {because}", remedy, kind)

    return row


def _refuse(name: str, because: str, remedy: str, kind: type[Exception] | None) -> NoReturn:
    raise ConfigurationError(Problem(f"optim={name!r} {because}; {remedy}.", ("optim",), kind))


_IN_BACKWARD = _unsupported(
    "it updates the weights during the backward pass, which hexloop does not allow yet",
    "choose adafactor to save memory",
    ImportError,
)
_SCHEDULE_FREE = _unsupported(
    "it must be switched between training and evaluation mode, which hexloop does not do yet",
    "choose adamw_torch",
    ImportError,
)
BITS_8, BITS_32 = "'lr': 1e-4, 'optim_bits': 8", "'lr': 1e-4, 'optim_bits': 32"
PAGED_8, PAGED_32 = f"{BITS_8}, 'is_paged': True", f"{BITS_32}, 'is_paged': True"
GROUPS = "'lr': 1e-4, 'params': groups"

OPTIMIZERS: Mapping[str, Row] = MappingProxyType(
    {
        "adamw_torch": _adamw,
        "adamw_torch_fused": lambda spec: _adamw(spec, fused=spec.device_type in FUSED_ON),
        "sgd": _rate_only(SGD),
        "adagrad": _rate_only(Adagrad),
        "rmsprop": _rate_only(RMSprop),
        "adafactor": _adafactor,
        "adamw_torch_xla": _adamw_of("torch_xla.amp.syncfree:AdamW", "install hexloop[xla], or choose adamw_torch"),
        "adamw_torch_npu_fused": _adamw_of("torch_npu.optim:NpuFusedAdamW", "install it, or choose adamw_torch_fused"),
        "adamw_anyprecision": lambda spec: (AnyPrecisionAdamW, _adamw(spec)[1]),
        "adamw_torch_4bit": _from_package("torchao", "torchao.optim.AdamW4bit"),
        "adamw_torch_8bit": _from_package("torchao", "torchao.optim.AdamW8bit"),
        "adamw_bnb_8bit": _from_package("bitsandbytes", "bitsandbytes.optim.AdamW", BITS_8),
        "adamw_8bit": _from_package("bitsandbytes", "bitsandbytes.optim.AdamW", BITS_8),
        "paged_adamw_32bit": _from_package("bitsandbytes", "bitsandbytes.optim.AdamW", PAGED_32),
        "paged_adamw_8bit": _from_package("bitsandbytes", "bitsandbytes.optim.AdamW", PAGED_8),
        "ademamix": _from_package("bitsandbytes", "bitsandbytes.optim.AdEMAMix", BITS_32),
        "ademamix_8bit": _from_package("bitsandbytes", "bitsandbytes.optim.AdEMAMix", BITS_8),
        "paged_ademamix_32bit": _from_package("bitsandbytes", "bitsandbytes.optim.AdEMAMix", PAGED_32),
        "paged_ademamix_8bit": _from_package("bitsandbytes", "bitsandbytes.optim.AdEMAMix", PAGED_8),
        "lion_32bit": _from_package("bitsandbytes", "bitsandbytes.optim.Lion", BITS_32),
        "lion_8bit": _from_package("bitsandbytes", "bitsandbytes.optim.Lion", BITS_8),
        "paged_lion_32bit": _from_package("bitsandbytes", "bitsandbytes.optim.Lion", PAGED_32),
        "paged_lion_8bit": _from_package("bitsandbytes", "bitsandbytes.optim.Lion", PAGED_8),
        "rmsprop_bnb": _from_package("bitsandbytes", "bitsandbytes.optim.RMSprop", BITS_32),
        "rmsprop_bnb_8bit": _from_package("bitsandbytes", "bitsandbytes.optim.RMSprop", BITS_8),
        "rmsprop_bnb_32bit": _from_package("bitsandbytes", "bitsandbytes.optim.RMSprop", BITS_32),
        "galore_adamw": _from_package("galore-torch", "galore_torch.GaLoreAdamW", GROUPS),
        "galore_adamw_8bit": _from_package("galore-torch", "galore_torch.GaLoreAdamW8bit", GROUPS),
        "galore_adafactor": _from_package("galore-torch", "galore_torch.GaLoreAdafactor", GROUPS),
        "galore_adamw_layerwise": _IN_BACKWARD,
        "galore_adamw_8bit_layerwise": _IN_BACKWARD,
        "galore_adafactor_layerwise": _IN_BACKWARD,
        "apollo_adamw": _from_package("apollo-torch", "apollo_torch.APOLLOAdamW", GROUPS),
        "apollo_adamw_layerwise": _IN_BACKWARD,
        "lomo": _IN_BACKWARD,
        "adalomo": _IN_BACKWARD,
        "grokadamw": _from_package("grokadamw", "grokadamw.GrokAdamW"),
        "schedule_free_adamw": _SCHEDULE_FREE,
        "schedule_free_radam": _SCHEDULE_FREE,
        "schedule_free_sgd": _SCHEDULE_FREE,
        "stable_adamw": _from_package("torch-optimi", "optimi.StableAdamW"),
    }
)
"""One row per name in `OptimizerNames` of transformers. To add an optimizer, add a row."""

# Options, as the argument optim_args holds them

SET_ELSEWHERE = {
    "lr": "lr cannot be set there; use learning_rate",
    "params": "params cannot be set there; override create_optimizer",
    "relative_step": "relative_step computes its own rates, which no schedule can change; pass "
    "optimizers=(Adafactor(..., lr=None), get_adafactor_schedule(optimizer)) to the Trainer",
}
"""Options that `optim_args` cannot set: why, and what to use instead."""


def parse_optim_args(optimizer_class: type[Any], text: str | None) -> dict[str, Any]:
    """Return the keyword arguments in "name=value,...". Raises ConfigurationError if the optimizer does not take one.

    A value is read as a truth value, a number or a text, according to the type of the argument's default.
    """
    parameters = inspect.signature(optimizer_class).parameters
    found: dict[str, Any] = {}
    problems = []
    for assignment in filter(None, (text or "").replace(" ", "").split(",")):
        name, _, value = assignment.partition("=")
        if name in SET_ELSEWHERE:
            problems.append(f"You chose optim_args={text!r}, but {SET_ELSEWHERE[name]}.")
        elif name not in parameters:
            remedy = did_you_mean(name, parameters, f"choose among {', '.join(parameters)}.")
            problems.append(f"You chose optim_args={text!r}, but {optimizer_class.__name__} has no {name}; {remedy}")
        else:
            found[name] = _parse_value(value, parameters[name].default)
    if problems:
        raise ConfigurationError(problems)
    if "weight_decay" in found:
        logging.getLogger("hexloop").warning(
            "weight_decay in optim_args has no effect: the argument weight_decay sets it for each parameter group."
        )
    return found


def _parse_value(text: str, default: Any) -> Any:
    if isinstance(default, bool):
        return bool(parse_truth(text))
    if text.lower() in ("true", "false", "none"):
        return {"true": True, "false": False, "none": None}[text.lower()]
    for number in (float,) if isinstance(default, float) else (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


# Parameter groups and construction

NO_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")
"""Names of parameters without weight decay, as in transformers. Those of a LayerNorm have none either."""

GROUP_OPTIONS = ("params", "model", "optimizer_dict")
"""Options that replace the parameter groups as the first argument. If there are several, the last counts."""


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


def build_optimizer(
    model: nn.Module,
    optimizer_class: Any,
    options: Mapping[str, Any],
    decayed: list[str],
    weight_decay: float,
    keeps_empty: bool = True,
) -> Any:
    """Return the optimizer of the model's trainable parameters, in the groups of `parameter_groups`.

    If `optimizer_class` is not a subclass of torch's Optimizer it is a factory: it is called without arguments, and its
    result with the model and the options. An optimizer with its own first argument passes it as one of the options
    "params" (parameter groups), "model" or "optimizer_dict" (one optimizer per parameter).
    """
    if not (isinstance(optimizer_class, type) and issubclass(optimizer_class, Optimizer)):
        return optimizer_class()(model, **options)
    first_arguments = [options[name] for name in GROUP_OPTIONS if name in options]
    others = {name: value for name, value in options.items() if name not in GROUP_OPTIONS}
    if first_arguments:
        optimizer = optimizer_class(first_arguments[-1], **others)
    else:
        optimizer = optimizer_class(parameter_groups(model, decayed, weight_decay, keeps_empty), **others)
        step_equal_groups_at_once(optimizer)
    if "bitsandbytes" in str(optimizer_class) and others.get("optim_bits") == 8:
        _keep_embeddings_in_32_bits(model)
    return optimizer


def _keep_embeddings_in_32_bits(model: nn.Module) -> None:
    """Let bitsandbytes keep 32-bit state of embedding weights, as transformers does: 8 bits are unstable there."""
    manager = resolve_name("bitsandbytes.optim:GlobalOptimManager").get_instance()
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            manager.register_module_override(module, "weight", {"optim_bits": 32})


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
