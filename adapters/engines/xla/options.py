"""The options of FSDP on XLA, in `fsdp_config`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from hexloop.adapters.engines.arguments import EngineArguments
from hexloop.adapters.trainable.torch.units import Units
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import did_you_mean, parse_truth, shown

KEYS = (
    *("xla", "xla_fsdp_v2", "xla_fsdp_settings", "xla_fsdp_grad_ckpt"),
    *("min_num_params", "transformer_layer_cls_to_wrap"),
)


@frozen
class XlaFsdpOptions:
    """The options of FSDP on XLA.

    units: the modules whose weights are gathered together. recompute: discard the activations of a unit in the forward
    pass and recompute them in the backward pass.
    """

    units: Units = field(factory=Units)
    recompute: bool = False


def read_options(args: EngineArguments) -> XlaFsdpOptions:
    """Return the options. Raises ConfigurationError with all problems."""
    config: Mapping[str, Any] = args.fsdp_config if isinstance(args.fsdp_config, Mapping) else {}
    given = {name.removeprefix("fsdp_"): value for name, value in config.items() if value not in (None, False, {}, 0)}
    choices = f"choose among {', '.join(KEYS)}."
    problems = [
        f"You set fsdp_config[{name!r}]={shown(value)}, but FSDP on XLA has no such setting; "
        f"{did_you_mean(name, KEYS, choices)}"
        for name, value in given.items()
        if name not in KEYS
    ]
    if not _truth(given, "xla_fsdp_v2", problems):
        problems.append(
            "You chose FSDP on XLA in its first version, which shards a model over several processes; hexloop has the "
            "second one, which drives all devices from one process. Set xla_fsdp_v2 to True in fsdp_config."
        )
    if settings := given.get("xla_fsdp_settings"):
        problems.append(
            f"You set xla_fsdp_settings={shown(settings)} in fsdp_config, which are options of the first version of "
            "FSDP on XLA; the second one has none. Leave them out."
        )
    classes = given.get("transformer_layer_cls_to_wrap")
    names = [classes] if isinstance(classes, str) else classes or []
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        problems.append(
            f"You set transformer_layer_cls_to_wrap={shown(classes)} in fsdp_config, but it takes the name of a class, "
            "or a list of names."
        )
        names = []
    least = str(given.get("min_num_params", 0))
    if not least.isdecimal():
        problems.append(f"You set min_num_params={shown(least)} in fsdp_config, but it takes a number; give 0 or more.")
        least = "0"
    options = XlaFsdpOptions(Units(tuple(names) or None, int(least)), _truth(given, "xla_fsdp_grad_ckpt", problems))
    if problems:
        raise ConfigurationError(problems)
    return options


def _truth(given: Mapping[str, Any], name: str, problems: list[str]) -> bool:
    value = given.get(name, False)
    truth = value if isinstance(value, bool) else parse_truth(str(value))
    if truth is None:
        problems.append(
            f"You set fsdp_config[{name!r}]={shown(value)}, but it takes a truth value; give true or false."
        )
    return bool(truth)
