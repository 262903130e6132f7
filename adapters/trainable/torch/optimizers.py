"""Optimizers by the names that transformers uses: one row per name."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from importlib.util import find_spec
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, NoReturn, TypeAlias

from attrs import evolve, frozen
from torch import nn
from torch.optim import Optimizer

from hexloop.adapters.trainable.torch.decay_groups import parameter_groups, step_equal_groups_at_once
from hexloop.adapters.trainable.torch.group_rules import RuledGroups, own_names
from hexloop.adapters.trainable.torch.optimizer_arguments import parse_optim_args
from hexloop.adapters.trainable.torch.projected import ProjectedGroups, refuse_settings
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.installation import how_to_install
from hexloop.domain.wording import Problem, did_you_mean, enumeration


@frozen
class OptimizerSpec:
    """What the training arguments say about an optimizer, and the device type that it is for.

    warmup_steps: a number of steps, or a ratio of the run below 1. adam_reaches_all: whether Adam's betas and epsilon
    reach every optimizer that has them, and not only those to which transformers passes them.
    model: the model whose parameters it is for, if known. target_modules: those that GaLore and APOLLO project.
    """

    name: str
    learning_rate: float
    betas: tuple[float, float]
    epsilon: float
    device_type: str
    weight_decay: float = 0.0
    warmup_steps: float = 0
    adam_reaches_all: bool = True
    model: Any = None
    target_modules: Any = None


ClassAndOptions: TypeAlias = tuple[Any, dict[str, Any]]
"""The class of an optimizer, or a factory, and its keyword arguments."""

Options: TypeAlias = Callable[[OptimizerSpec], dict[str, Any]]
"""Returns the keyword arguments of an optimizer besides its learning rate."""


def adam(spec: OptimizerSpec) -> dict[str, Any]:
    """Return Adam's options."""
    return {"betas": spec.betas, "eps": spec.epsilon}


def nothing(spec: OptimizerSpec) -> dict[str, Any]:
    """Return no options: the optimizer takes only the learning rate from the training arguments."""
    return {}


@frozen(kw_only=True)
class Row:
    """How the optimizer of one name is made, and what is special about it, as plain data.

    target: its class, or a factory (see `build_optimizer`), or where it is, as "package.module:name", which is imported
    only if it is chosen.
    options: its keyword arguments besides the learning rate. further: options of `optim_args`, with their defaults,
    that its class does not take by itself. of_targets: options of the groups with the weights of target modules.
    package: the distribution that contains it. extra: the extra of hexloop that installs the package.
    refused: why hexloop does not make it at all, and what to do instead.
    only_on: the device types that it runs on; any if empty. because: why it does not run on others.
    remedy: what to do where it does not run.

    Traits. layer_wise: it updates the weights during the backward pass. takes_model: its first argument is the model
    instead of parameter groups. switches_modes: it has `train()` and `eval()`, which replace the weights.
    needs_targets: it treats the weights of some modules differently, which `optim_target_modules` names. tensor_rates:
    the learning rate in its groups is a tensor. state_bits: the bits of an element of its state. several: it consists
    of several optimizers.
    """

    target: str | type[Any] = ""
    options: Options = nothing
    further: Mapping[str, Any] = MappingProxyType({})
    of_targets: Options = nothing
    package: str = "torch"
    extra: str = ""
    refused: tuple[str, str] | None = None
    only_on: tuple[str, ...] = ()
    because: str = ""
    remedy: str = "choose adamw_torch"
    layer_wise: bool = False
    takes_model: bool = False
    switches_modes: bool = False
    needs_targets: bool = False
    tensor_rates: bool = False
    state_bits: int = 32
    several: bool = False
    joint: str = ""

    def make(self, spec: OptimizerSpec, further: str | None = None) -> ClassAndOptions:
        """Return the class and its keyword arguments. further: `optim_args`.

        Raises ConfigurationError if the package is missing, the device type is not one that the optimizer runs on, or
        `further` has options that it does not take.
        """
        if self.refused is not None:
            _refuse(spec.name, f"is not supported: {self.refused[0]}", self.refused[1], ImportError)
        optimizer_class = self._optimizer_class(spec.name)
        if self.only_on and spec.device_type not in self.only_on:
            devices = enumeration(self.only_on, "or")
            because = f"is not supported on the device {spec.device_type}: it runs on {devices} only, as {self.because}"
            _refuse(spec.name, because, self.remedy, None)
        options = {"lr": spec.learning_rate, **self.options(spec)}
        given = parse_optim_args(optimizer_class, further, options, self.further) if further else {}
        made = {**options, **self.further, **given}
        return optimizer_class, self._with_targets(spec, made) if self.needs_targets else made

    def _with_targets(self, spec: OptimizerSpec, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return options with the parameter groups of the model, in which the projection's settings are."""
        settings = {name: options[name] for name in self.further}
        refuse_settings(settings, spec.name)
        of_targets = {name: options.get(name, value) for name, value in self.of_targets(spec).items()}
        if spec.model is None:
            raise ConfigurationError(f"optim={spec.name!r} projects weights of a model; pass the model as well.")
        decays = spec.adam_reaches_all
        groups = ProjectedGroups(
            spec.model, spec.target_modules, {**settings, **of_targets}, spec.weight_decay, spec.name, decays
        )
        return {**{name: value for name, value in options.items() if name not in settings}, "params": groups}

    def _optimizer_class(self, name: str) -> Any:
        if not isinstance(self.target, str):
            return self.target
        try:
            with log_handlers_unchanged():
                return resolve_name(self.target)
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            is_absent = missing in (self.target.partition(".")[0].partition(":")[0], self.package.replace("-", "_"))
            because = "is not installed" if is_absent else f"cannot be imported ({error})"
        except (ImportError, AttributeError) as error:
            because = f"cannot be imported ({error})"
        installation = how_to_install(self.extra or self.package, self.package)
        because = f"is not supported: it is of {self.package}, which {because}"
        _refuse(name, because, f"{installation}, or {self.remedy}", ImportError)


def _refuse(name: str, because: str, remedy: str, kind: type[Exception] | None) -> NoReturn:
    raise ConfigurationError(Problem(f"optim={name!r} {because}; {remedy}.", ("optim",), kind))


# What several rows share

FUSED_ON = ("cpu", "cuda", "hpu", "mps", "xpu")
"""Device types for which torch has a fused AdamW."""

ON_GPU = ("cuda", "xpu")


def _fused(spec: OptimizerSpec) -> dict[str, Any]:
    return {**adam(spec), "fused": spec.device_type in FUSED_ON}


def _adafactor(spec: OptimizerSpec) -> dict[str, Any]:
    return {"scale_parameter": False, "relative_step": False}


def _adam_if_all(spec: OptimizerSpec) -> dict[str, Any]:
    return adam(spec) if spec.adam_reaches_all else {}


def _grokadamw(spec: OptimizerSpec) -> dict[str, Any]:
    own = {"alpha_init": 0.98, "lamb": 2.0, "gamma": 0.1, "grokking_signal_decay_rate": 0.1, "gradient_clipping": 1.0}
    return {**own, **_adam_if_all(spec)}


def _torchao(name: str, bits: int) -> Row:
    return Row(
        target=f"torchao.optim:{name}",
        options=lambda spec: {"block_size": 256, "bf16_stochastic_round": False, **adam(spec)},
        package="torchao",
        extra="torchao",
        tensor_rates=True,
        state_bits=bits,
    )


def _bitsandbytes(name: str, options: Options, bits: int, paged: bool | None = False) -> Row:
    """Return the row of an optimizer of bitsandbytes. paged: None if its class does not take the argument."""
    further = {"optim_bits": bits} if paged is None else {"optim_bits": bits, "is_paged": paged}
    return Row(
        target=f"bitsandbytes.optim:{name}",
        options=lambda spec: {**options(spec), **further},
        package="bitsandbytes",
        extra="bitsandbytes",
        state_bits=bits,
    )


def _lion(spec: OptimizerSpec) -> dict[str, Any]:
    return {"betas": spec.betas}


def _ademamix(spec: OptimizerSpec) -> dict[str, Any]:
    return {"betas": (*spec.betas, 0.9999), "alpha": 5.0, "eps": spec.epsilon}


def _schedule_free(name: str, with_adam: bool = True, warms_up: bool = True) -> Row:
    def options(spec: OptimizerSpec) -> dict[str, Any]:
        return {
            **(adam(spec) if with_adam else {}),
            "weight_decay": spec.weight_decay,
            **({"warmup_steps": spec.warmup_steps} if warms_up else {}),
            "weight_lr_power": 2.0,
            "r": 0.0,
        }

    return Row(
        target=f"schedulefree:{name}",
        options=options,
        package="schedulefree",
        extra="schedulefree",
        switches_modes=True,
    )


def _stable_adamw(spec: OptimizerSpec) -> dict[str, Any]:
    """Return the options of StableAdamW, without its Triton kernel where there is no GPU or no Triton."""
    options = {**adam(spec), "weight_decay": spec.weight_decay, "decouple_lr": False, "max_lr": None, "kahan_sum": None}
    has_kernel = spec.device_type in ON_GPU and find_spec("triton") is not None
    return options if has_kernel else {**options, "triton": False}


def _galore(name: str, options: Options, **traits: Any) -> Row:
    """Return the row of an optimizer of galore-torch: its settings are those of the groups that it projects."""
    return Row(
        target=f"galore_torch:{name}",
        options=options,
        further={"rank": 128, "update_proj_gap": 200, "scale": 0.25, "proj_type": "std"},
        package="galore-torch",
        extra="galore",
        needs_targets=True,
        **traits,
    )


def _galore_adamw(spec: OptimizerSpec) -> dict[str, Any]:
    """Return the options of galore-torch's AdamW, which otherwise warns that torch has one, too."""
    return {**_adam_if_all(spec), "no_deprecation_warning": True}


_GALORE_ADAMW = _galore("GaLoreAdamW", _galore_adamw)
_GALORE_ADAMW_8BIT = _galore(
    "GaLoreAdamW8bit",
    _adam_if_all,
    only_on=("cuda",),
    because="galore-torch waits for a CUDA device in each of its steps",
    remedy="choose galore_adamw",
    state_bits=8,
)
_GALORE_ADAFACTOR = _galore("GaLoreAdafactor", _adafactor)
_APOLLO_ADAMW = Row(
    target="apollo_torch:APOLLOAdamW",
    options=_adam_if_all,
    of_targets=adam,  # transformers passes them to these groups only
    further={
        "rank": 128,
        "proj": "random",
        "scale_type": "channel",
        "update_proj_gap": 200,
        "scale": 1.0,
        "proj_type": "std",
    },
    package="apollo-torch",
    extra="apollo",
    needs_targets=True,
)


def _layer_wise(row: Row) -> Row:
    """Return a row with the trait that each parameter is updated in the backward pass; see `layerwise`."""
    return evolve(row, layer_wise=True)


def _lomo(name: str, options: Options = nothing) -> Row:
    return Row(
        target=f"hexloop.adapters.trainable.torch.lomo:{name}",
        options=options,
        package="lomo-optim",
        extra="lomo",
        layer_wise=True,
    )


_ADAMW_8BIT = _bitsandbytes("AdamW", adam, 8)

OPTIMIZERS: Mapping[str, Row] = MappingProxyType(
    {
        "adamw_torch": Row(target="torch.optim:AdamW", options=adam),
        "adamw_torch_fused": Row(target="torch.optim:AdamW", options=_fused),
        "sgd": Row(target="torch.optim:SGD"),
        "adagrad": Row(target="torch.optim:Adagrad"),
        "rmsprop": Row(target="torch.optim:RMSprop"),
        # torch's Adafactor is a different algorithm: it always scales the rate by the size of the weights and limits it
        # to 1 / sqrt(step). These are the two features that transformers' Trainer switches off.
        "adafactor": Row(
            target="transformers.optimization:Adafactor",
            options=_adafactor,
            package="transformers",
            extra="transformers",
        ),
        "adamw_torch_xla": Row(
            target="torch_xla.amp.syncfree:AdamW",
            options=adam,
            package="torch_xla",
            extra="xla",
            only_on=("xla",),
            because="its steps are operations of XLA",
        ),
        "adamw_torch_npu_fused": Row(
            target="torch_npu.optim:NpuFusedAdamW",
            options=adam,
            package="torch_npu",
            only_on=("npu",),
            because="its step is a kernel of Ascend's devices",
            remedy="choose adamw_torch_fused",
        ),
        "adamw_anyprecision": Row(
            target="hexloop.adapters.trainable.torch.any_precision:AnyPrecisionAdamW", options=adam, package="hexloop"
        ),
        "adamw_torch_4bit": _torchao("AdamW4bit", 4),
        "adamw_torch_8bit": _torchao("AdamW8bit", 8),
        "adamw_torch_fp8": _torchao("AdamWFp8", 8),
        "adamw_bnb_8bit": _ADAMW_8BIT,
        "adamw_8bit": _ADAMW_8BIT,
        "paged_adamw_32bit": _bitsandbytes("AdamW", adam, 32, paged=True),
        "paged_adamw_8bit": _bitsandbytes("AdamW", adam, 8, paged=True),
        "ademamix": _bitsandbytes("AdEMAMix", _ademamix, 32),
        "ademamix_8bit": _bitsandbytes("AdEMAMix", _ademamix, 8),
        "paged_ademamix_32bit": _bitsandbytes("AdEMAMix", _ademamix, 32, paged=True),
        "paged_ademamix_8bit": _bitsandbytes("AdEMAMix", _ademamix, 8, paged=True),
        "lion_32bit": _bitsandbytes("Lion", _lion, 32),
        "lion_8bit": _bitsandbytes("Lion", _lion, 8),
        "paged_lion_32bit": _bitsandbytes("Lion", _lion, 32, paged=True),
        "paged_lion_8bit": _bitsandbytes("Lion", _lion, 8, paged=True),
        "rmsprop_bnb": _bitsandbytes("RMSprop", nothing, 32, paged=None),
        "rmsprop_bnb_8bit": _bitsandbytes("RMSprop", nothing, 8, paged=None),
        "rmsprop_bnb_32bit": _bitsandbytes("RMSprop", nothing, 32, paged=None),
        "galore_adamw": _GALORE_ADAMW,
        "galore_adamw_8bit": _GALORE_ADAMW_8BIT,
        "galore_adafactor": _GALORE_ADAFACTOR,
        "galore_adamw_layerwise": _layer_wise(_GALORE_ADAMW),
        "galore_adamw_8bit_layerwise": _layer_wise(_GALORE_ADAMW_8BIT),
        "galore_adafactor_layerwise": _layer_wise(_GALORE_ADAFACTOR),
        "apollo_adamw": _APOLLO_ADAMW,
        "apollo_adamw_layerwise": _layer_wise(_APOLLO_ADAMW),
        "lomo": _lomo("Lomo"),
        "adalomo": _lomo("AdaLomo"),
        "grokadamw": Row(
            target="grokadamw:GrokAdamW",
            options=_grokadamw,
            package="grokadamw",
            extra="grokadamw",
            joint="it clips the gradients of all parameters together",
        ),
        "schedule_free_adamw": _schedule_free("AdamWScheduleFree"),
        "schedule_free_radam": _schedule_free("RAdamScheduleFree", warms_up=False),
        "schedule_free_sgd": _schedule_free("SGDScheduleFree", with_adam=False),
        "stable_adamw": Row(target="optimi:StableAdamW", options=_stable_adamw, package="torch-optimi", extra="optimi"),
        "muon": Row(target="hexloop.adapters.trainable.torch.muon:MuonWithAdamW", options=_fused, several=True),
    }
)
"""One row per name: those in `OptimizerNames` of transformers, and hexloop's own. To add an optimizer, add a row."""

ALIASES: Mapping[str, str] = MappingProxyType({"adamw_hf": "adamw_torch", "adamw_apex_fused": "adamw_torch_fused"})
"""Names of earlier releases of transformers, whose optimizers are gone, and the names that replace them."""


def choose_optimizer(
    name: str,
    learning_rate: float,
    betas: tuple[float, float],
    epsilon: float,
    further: str | None,
    device_type: str,
    *,
    installed: Callable[[str], Any] = lambda name: None,
    **of_run: Any,
) -> ClassAndOptions:
    """Return the class and the keyword arguments of the optimizer called `name`.

    Args:
        name: the name of the optimizer, as in `optim`.
        learning_rate: the peak learning rate.
        betas: the decay rates of Adam's means.
        epsilon: the constant in Adam's denominator.
        further: more keyword arguments, as "name=value,...".
        device_type: the kind of the device, such as "cuda".
        installed: returns the row, or the class, of an optimizer in an installed package, by name; None if there is
            none.
        **of_run: the other attributes of an `OptimizerSpec`.

    Raises:
        ConfigurationError: if the name is unknown, if the optimizer is not available (the message says what to install
            or to choose instead), or if it does not accept one of the `further` arguments.
    """
    spec = OptimizerSpec(name, learning_rate, betas, epsilon, device_type, **of_run)
    return row_named(name, installed).make(spec, further)


def row_named(name: str, installed: Callable[[str], Any] = lambda name: None) -> Row:
    """Return the row of the optimizer called `name`. Raises ConfigurationError if there is none.

    installed: as in `choose_optimizer`. An installed package cannot replace the rows of `OPTIMIZERS`.
    """
    row = OPTIMIZERS.get(ALIASES.get(name, name)) or _row_of(installed(name))
    if row is None:
        remedy = did_you_mean(name, OPTIMIZERS, f"choose one of {', '.join(OPTIMIZERS)}.", spell=repr)
        raise ConfigurationError(f"There is no optimizer optim={name!r}; {remedy}")
    return row


def _row_of(found: Any) -> Row | None:
    """Return the row of what an installed package names: a row, or a class, whose signature says what reaches it."""
    if found is None or isinstance(found, Row):
        return found
    parameters = inspect.signature(found).parameters

    def options(spec: OptimizerSpec) -> dict[str, Any]:
        known = {**adam(spec), "weight_decay": spec.weight_decay}
        return {name: value for name, value in known.items() if name in parameters}

    return Row(target=found, options=options, package=found.__module__.partition(".")[0])


# Construction

GROUP_OPTIONS = ("params", "model", "optimizer_dict")
"""Options that replace the parameter groups as the first argument. If there are several, the last counts."""


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
        first = first_arguments[-1]
        if isinstance(first, ProjectedGroups):
            first = first.decayed(decayed, weight_decay)
        optimizer = optimizer_class(first, **others)
    elif hasattr(optimizer_class, "parts_of"):  # it divides the parameters among several optimizers
        optimizer = RuledGroups((), (optimizer_class, others), own_names(model, decayed), weight_decay).build(model)
    else:
        optimizer = optimizer_class(parameter_groups(model, decayed, weight_decay, keeps_empty), **others)
        step_equal_groups_at_once(optimizer)
    complete(model, optimizer_class, others, optimizer)
    return optimizer


def complete(model: nn.Module, optimizer_class: Any, options: Mapping[str, Any], optimizer: Any) -> None:
    """Set what an optimizer of this class, which was made with these options, needs to know of a model."""
    if "bitsandbytes" in str(optimizer_class) and options.get("optim_bits") == 8:
        _keep_embeddings_in_32_bits(model, optimizer)


def settle_warmup(optimizer: Any, total_steps: int) -> None:
    """Replace a warmup that is a ratio of the run, in an optimizer's own groups, by its number of steps."""
    for group in getattr(optimizer, "param_groups", ()):
        if 0 < group.get("warmup_steps", 0) < 1:
            group["warmup_steps"] = math.ceil(group["warmup_steps"] * total_steps)


def refuse_ratio(optimizer: Any) -> None:
    """Raise ConfigurationError for a warmup of an optimizer that is a ratio of a run of unknown length."""
    for group in getattr(optimizer, "param_groups", ()):
        if 0 < group.get("warmup_steps", 0) < 1:
            ratio = group["warmup_steps"]
            raise ConfigurationError(
                f"{type(optimizer).__name__} counts the steps of its warmup, and warmup_steps={ratio} is a ratio of "
                "the run, which only the standard create_scheduler makes a number; give a number of steps."
            )


def _keep_embeddings_in_32_bits(model: nn.Module, optimizer: Any) -> None:
    """Let bitsandbytes keep 32-bit state of embedding weights, as transformers does: 8 bits are unstable there.

    The optimizer gets a manager of its own, with what the global one has been told so far. That one would keep every
    model in memory, and it knows parameters by their id, which a parameter of a later model may have again.
    """
    told = optimizer.mng
    optimizer.mng = own = object.__new__(type(told))
    vars(own).update({name: copy(value) for name, value in vars(told).items()})
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            own.register_module_override(module, "weight", {"optim_bits": 32})


@contextmanager
def log_handlers_unchanged() -> Iterator[None]:
    """Undo what an import does to the root logger: some packages call `logging.basicConfig`."""
    root = logging.getLogger()
    handlers, level = [*root.handlers], root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
