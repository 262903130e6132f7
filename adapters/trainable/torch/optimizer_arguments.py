"""The options of an optimizer in `optim_args`: "name=value, ...", typed by the signature of its class."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Mapping
from typing import Any

import torch

from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import RefusalError, did_you_mean, parse_truth, split_assignments

SET_ELSEWHERE = {
    "lr": "lr cannot be set there; use learning_rate",
    "params": "params cannot be set there; override create_optimizer",
    "relative_step": "relative_step computes its own rates, which no schedule can change; pass "
    "optimizers=(Adafactor(..., lr=None), get_adafactor_schedule(optimizer)) to the Trainer",
}
"""Options that `optim_args` cannot set: why, and what to use instead."""

BETAS = ("beta1", "beta2", "beta3")
"""Options that set one of an optimizer's `betas`, if its class has none of that name."""

KINDS = ("bool", "int", "float", "dtype", "str", "tuple")
"""The types of values, as annotations name them."""

DESCRIPTIONS = {
    "bool": "True or False",
    "flag": "True or False",
    "int": "a whole number",
    "float": "a number",
    "dtype": "a type of torch, such as bfloat16",
    "str": "text",
    "tuple": "numbers in brackets, such as (0.9, 0.95)",
    "None": "None",
}


def parse_optim_args(
    optimizer_class: Any,
    text: str | None,
    options: Mapping[str, Any],
    further: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the keyword arguments in "name=value,..." for the class, with the type that its signature names.

    options: the keyword arguments that are set otherwise; their types count, too, and beta1, beta2 and beta3 replace
    one item of their `betas`. further: options, with their defaults, that the class does not take by itself.
    Raises ConfigurationError, with every problem, for an option that the optimizer does not have, and for a value of
    another type.
    """
    signature = inspect.signature(optimizer_class).parameters
    known = {
        name: parameter
        for name, parameter in signature.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    defaults = {**{name: each.default for name, each in known.items()}, **(further or {})}
    betas = [*options["betas"]] if "betas" in options else []
    single = [name for name in BETAS[: len(betas)] if name not in defaults]
    found: dict[str, Any] = {}
    problems = []
    for assignment in split_assignments(text or ""):
        name, _, value = (part.strip() for part in assignment.partition("="))
        if name in SET_ELSEWHERE:
            problems.append(f"You chose optim_args={text!r}, but {SET_ELSEWHERE[name]}.")
            continue
        if name not in defaults and name not in single:
            choices = [each for each in (*defaults, *single) if each not in SET_ELSEWHERE]
            remedy = did_you_mean(name, choices, f"choose among {', '.join(choices)}.")
            problems.append(f"You chose optim_args={text!r}, but {_name(optimizer_class)} has no {name}; {remedy}")
            continue
        annotation = known[name].annotation if name in known else None
        default = 0.0 if name in single else options.get(name, defaults[name])
        try:
            parsed = _parse_value(value, _kinds(default, annotation))
        except RefusalError as refusal:
            problems.append(f"You chose optim_args={text!r}, but {name}={value} is not valid: {refusal}.")
            continue
        if name in single:
            betas[BETAS.index(name)] = parsed
            found["betas"] = tuple(betas)
        else:
            found[name] = parsed
    if problems:
        raise ConfigurationError(problems)
    if "weight_decay" in found:
        logging.getLogger("hexloop").warning(
            "weight_decay in optim_args has no effect: the argument weight_decay sets it for each parameter group."
        )
    return found


def _name(optimizer_class: Any) -> str:
    return str(getattr(optimizer_class, "__name__", optimizer_class))


def _kinds(default: Any, annotation: Any) -> list[str]:
    """Return the types that a value may have: those that the annotation names, else that of the default.

    A whole number as default says that other numbers are not taken, but for 0 without an annotation.
    """
    named = "" if annotation in (None, inspect.Parameter.empty) else _spelled(annotation).lower()
    if "callable" in named:
        return ["None"]
    kinds = ["tuple"] if "tuple" in named else [kind for kind in KINDS if kind in named]
    if not kinds and default not in (None, inspect.Parameter.empty):
        kinds = ["float"] if type(default) is int and default == 0 else [_kind_of(default)]
    if "float" in kinds and "int" in kinds:  # a float takes whole numbers, too
        kinds.remove("int")
    if default is None or "none" in named or "optional" in named:
        kinds.append("None")
    return kinds if kinds not in ([], ["None"]) else ["flag", "int", "float", "None", "tuple", "str"]


def _spelled(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _kind_of(default: Any) -> str:
    if isinstance(default, torch.dtype):
        return "dtype"
    if isinstance(default, list | tuple):
        return "tuple"
    return next((kind for kind in KINDS if type(default).__name__ == kind), "str")


def _parse_value(text: str, kinds: list[str]) -> Any:
    """Return the value of a text, of the first of these types that it spells. Raises RefusalError if there is none."""
    for kind in kinds:
        try:
            return _PARSERS[kind](text)
        except (ValueError, AttributeError):
            continue
    wanted = " or ".join(DESCRIPTIONS[kind] for kind in kinds)
    raise RefusalError(f"it takes {wanted}", "give one")


def _truth(text: str) -> bool:
    truth = parse_truth(text)
    if truth is None:
        raise ValueError(text)
    return truth


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = float(text)  # such as 1e4
        if number % 1:
            raise
        return int(number)


def _number(text: str) -> float:
    number = float(text)
    if math.isnan(number):
        raise ValueError(text)
    return number


def _none(text: str) -> None:
    if text.lower() not in ("none", "null"):
        raise ValueError(text)


def _dtype(text: str) -> torch.dtype:
    found = getattr(torch, text.removeprefix("torch."))
    if not isinstance(found, torch.dtype):
        raise ValueError(text)
    return found


def _tuple(text: str) -> tuple[Any, ...]:
    if text[:1] + text[-1:] not in ("()", "[]"):
        raise ValueError(text)
    return tuple(_parse_value(item.strip(), ["int", "float", "None"]) for item in text[1:-1].split(",") if item.strip())


def _flag(text: str) -> bool:
    """Return what True or False spells; other words and numbers may mean something else to an option without a type."""
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


_PARSERS: Mapping[str, Any] = {
    "bool": _truth, "flag": _flag, "int": _whole, "float": _number, "dtype": _dtype, "str": str, "tuple": _tuple,
    "None": _none,
}  # fmt: skip
