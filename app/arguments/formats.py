"""Training in 8 bits: the values of the argument `fp8`, and the variables of accelerate's launcher.

Precisions in `hexloop.adapters.precision` follow the options.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

import attrs

from hexloop.app.arguments.conversion import converter, mapping_or_file, one_of
from hexloop.app.arguments.declaration import ArgumentGroup, argument, argument_group, rule
from hexloop.app.environment import lower_variable
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import RefusalError, did_you_mean, enumeration, parse_truth, problem

TORCHAO, TRANSFORMER_ENGINE = "torchao", "transformer_engine"
"""The packages that train in fp8, which are also the names of the back ends."""

AUTO = "auto"

BACKENDS = MappingProxyType(
    {
        **dict.fromkeys((TORCHAO, "ao"), TORCHAO),
        **dict.fromkeys((TRANSFORMER_ENGINE, "transformer-engine", "te"), TRANSFORMER_ENGINE),
        **dict.fromkeys((AUTO, "no"), AUTO),  # "no" is accelerate's word for it
    }
)
"""The names of the back ends, with those of accelerate."""

RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp")
"""torchao's recipes: one scale for a tensor, or one for each row, also with gradients of weights in high precision."""

Reader = Callable[[Any], Any]
"""From a value to what it means. Raises RefusalError."""


@attrs.frozen
class Fp8Recipe:
    """How a run trains in fp8: by which package, and with which of the options in `OPTIONS`."""

    backend: str
    options: Mapping[str, Any] = attrs.field(factory=dict)

    @property
    def is_installed(self) -> bool:
        """Whether the package is there."""
        return find_spec(self.backend) is not None


def _kind(kind: Any) -> Reader:
    return lambda value: converter.structure(value, kind)


def _choice(*choices: str, upper: bool = False) -> Reader:
    def read(value: Any) -> str:
        word = str(getattr(value, "value", value))
        word = word.upper() if upper else word.lower()
        one_of(*choices)(word)
        return word

    return read


def _three_truths(value: Any) -> tuple[bool, ...]:
    if not isinstance(value, list | tuple) or len(value) != 3:
        raise RefusalError("it takes three truth values, of the forward product and of both gradients", "give three")
    return tuple(converter.structure(each, bool) for each in value)


def _as_given(value: Any) -> Any:
    return value


OPTIONS: Mapping[str, Mapping[str, Reader]] = MappingProxyType(
    {
        TORCHAO: {
            "recipe": _choice(*RECIPES),
            "emulate": _kind(bool),
            "pad_inner_dim": _kind(bool),
            "enable_fsdp_float8_all_gather": _kind(bool),
            "excluded_modules": _kind(list[str]),
            "config": _as_given,
            "module_filter_func": _as_given,
        },
        TRANSFORMER_ENGINE: {
            "fp8_format": _choice("HYBRID", "E4M3", "E5M2", upper=True),
            "margin": _kind(int),
            "interval": _kind(int),
            "amax_history_len": _kind(int),
            "amax_compute_algo": _choice("max", "most_recent"),
            "override_linear_precision": _three_truths,
            "use_autocast_during_eval": _kind(bool),
            "use_mxfp8_block_scaling": _kind(bool),
        },
    }
)
"""The options of each back end, by the names that accelerate and the packages use.

config, module_filter_func: torchao's configuration and a function that chooses modules, as an AORecipeKwargs has them.
"""

_MSAMP = RefusalError("MS-AMP is no longer maintained, and accelerate has deprecated it", f"choose {TORCHAO!r}")

_CLASSES: Mapping[str, str] = {"AORecipeKwargs": TORCHAO, "TERecipeKwargs": TRANSFORMER_ENGINE}
"""accelerate's recipes by the name of their class, as accelerate need not be installed."""


def _prepare(value: Any) -> Any:
    """Return None, the name of a back end, a mapping or a recipe of accelerate, from what callers may pass."""
    if isinstance(value, bool):
        return AUTO if value else None
    if not isinstance(value, str | os.PathLike):
        return value
    text = str(value).strip()
    if text.startswith("{") or text.endswith(".json"):
        return converter.structure(mapping_or_file(text), dict[str, Any])
    truth = parse_truth(text)
    if text.lower() in ("", "none", "null") or truth is False:
        return None
    return AUTO if truth else BACKENDS.get(text.lower(), text)


def read_recipe(value: Any) -> Fp8Recipe:
    """Return the recipe that a value of `fp8` asks for. Raises RefusalError."""
    kind = type(value).__name__
    if isinstance(value, str):
        return Fp8Recipe(_backend(value))
    if isinstance(value, Mapping):
        backend = _backend(str(value.get("backend", AUTO)))
        return Fp8Recipe(backend, _read_options(backend, {key: value[key] for key in value if key != "backend"}))
    if kind == "FP8RecipeKwargs":  # the deprecated class of the recipes of two packages
        kind = {"TE": "TERecipeKwargs"}.get(str(value.backend).upper(), "MSAMPRecipeKwargs")
    if kind == "MSAMPRecipeKwargs":
        raise _MSAMP
    if kind not in _CLASSES:
        raise RefusalError(
            "it takes the name of a back end, a mapping of options, or accelerate's AORecipeKwargs or TERecipeKwargs",
            f"give one, such as {TORCHAO!r}",
        )
    backend = _CLASSES[kind]
    known = OPTIONS[backend]
    given = {name: each for name, each in vars(value).items() if name in known and each is not None}
    if "config" in given:  # which the recipe has made from these
        given.pop("pad_inner_dim", None)
        given.pop("enable_fsdp_float8_all_gather", None)
    return Fp8Recipe(backend, _read_options(backend, given))


def _backend(name: str) -> str:
    if name.lower() in ("msamp", "ms-amp"):
        raise _MSAMP
    backend = BACKENDS.get(name.lower())
    if backend is None:
        remedy = did_you_mean(name, BACKENDS, f"choose {TORCHAO!r} or {TRANSFORMER_ENGINE!r}", spell=repr)
        raise RefusalError(f"there is no back end {name!r} for it", remedy)
    if backend != AUTO:
        return backend
    return TRANSFORMER_ENGINE if find_spec(TORCHAO) is None and find_spec(TRANSFORMER_ENGINE) else TORCHAO


def _read_options(backend: str, given: Mapping[str, Any]) -> dict[str, Any]:
    readers, found = OPTIONS[backend], {}
    for name, value in given.items():
        if name not in readers:
            remedy = did_you_mean(name, readers, f"choose among {enumeration(readers, 'and')}")
            raise RefusalError(f"{backend} has no option {name!r}", remedy)
        if value is None:
            continue
        try:
            found[name] = readers[name](value)
        except RefusalError as refusal:
            raise RefusalError(f"at its key {name}, {refusal.because}", refusal.remedy) from None
    if found.get("use_mxfp8_block_scaling") and (scaled := {"amax_history_len", "amax_compute_algo"} & found.keys()):
        raise RefusalError("scales of blocks need no history of maxima", f"leave out {enumeration(sorted(scaled))}")
    if found.get("recipe", RECIPES[0]) != RECIPES[0] and found.get("enable_fsdp_float8_all_gather"):
        raise RefusalError(
            f"weights are gathered in 8 bits with the recipe {RECIPES[0]} only",
            f"choose that, or leave enable_fsdp_float8_all_gather out of the recipe {found['recipe']}",
        )
    return found


def _check(value: Any) -> None:
    read_recipe(value)


# The variables of accelerate's launcher

PREFIX = "ACCELERATE_FP8_"

_OVERRIDES = ("OVERRIDE_FPROP", "OVERRIDE_DGRAD", "OVERRIDE_WGRAD")


def launched_recipe() -> Fp8Recipe:
    """Return the recipe in the variables of `accelerate launch`. Raises ConfigurationError for an invalid one."""
    named = lower_variable(f"{PREFIX}BACKEND", AUTO)
    try:
        backend = _backend(named)
    except RefusalError as refusal:
        raise ConfigurationError(problem({f"{PREFIX}BACKEND": named}, refusal)) from None
    found: dict[str, Any] = {}
    for name in OPTIONS[backend]:
        if text := os.environ.get(variable := f"{PREFIX}{name.removeprefix('fp8_').upper()}", "").strip():
            try:
                found |= _read_options(backend, {name: text})
            except RefusalError as refusal:
                raise ConfigurationError(problem({variable: text}, refusal)) from None
    truths = [bool(parse_truth(os.environ.get(f"{PREFIX}{name}", ""))) for name in _OVERRIDES]
    if backend == TRANSFORMER_ENGINE and any(truths):
        found["override_linear_precision"] = tuple(truths)
    return Fp8Recipe(backend, found)


# The argument


@argument_group
class Fp8Arguments(ArgumentGroup):
    """Training in 8 bits.

    Args:
        fp8: mixed precision as with bf16, in which linear layers multiply numbers of 8 bits. `torchao` or
            `transformer_engine` names the package that does it; True takes the one that is installed. A mapping has the
            options as well, such as `{"backend": "torchao", "recipe": "rowwise"}`, and so have accelerate's
            AORecipeKwargs and TERecipeKwargs. Layers whose dimensions are not multiples of 16, and the first and the
            last linear layer, stay as they are. If unset, ACCELERATE_MIXED_PRECISION and the variables
            ACCELERATE_FP8_... decide.
    """

    fp8: Any = argument(
        default=None,
        prepare=_prepare,
        check=_check,
        bare=AUTO,
        help="as bf16, but linear layers multiply in 8 bits: torchao, transformer_engine, or a mapping of options such "
        'as {"backend": "torchao", "recipe": "rowwise"}',
    )

    @property
    def fp8_recipe(self) -> Fp8Recipe | None:
        """How the run trains in fp8, by the argument or accelerate's variables; None if it does not.

        Raises:
            ConfigurationError: if a variable is invalid.
        """
        if self.fp8 is not None:
            return read_recipe(self.fp8)
        return launched_recipe() if getattr(self, "mixed_precision", "no") == "fp8" else None

    @rule("fp8", "fp16")
    def _eight_bits_beside_bf16(self) -> None:
        if self.fp8 is not None and getattr(self, "fp16", False):
            raise RefusalError("beside the layers in fp8, a run computes in bf16", "set only one of them")
