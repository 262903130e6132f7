"""Further options of an optimizer, which the arguments hold as text."""

from __future__ import annotations

import inspect
import logging
from typing import Any

from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import did_you_mean, parse_truth

SAID_ELSEWHERE = {
    "lr": "lr is not set there; use learning_rate",
    "params": "params is not set there; override create_optimizer",
    "relative_step": "relative_step makes a rate of its own, which no schedule moves; pass "
    "optimizers=(Adafactor(..., lr=None), get_adafactor_schedule(optimizer)) to the Trainer",
}
"""Options that `optim_args` cannot set: why, and what does."""


def further_options(optimizer_class: type[Any], text: str | None) -> dict[str, Any]:
    """The arguments that "name=value,..." stands for. Raises ConfigurationError for those that cannot be."""
    parameters = inspect.signature(optimizer_class).parameters
    found: dict[str, Any] = {}
    problems = []
    for assignment in filter(None, (text or "").replace(" ", "").split(",")):
        name, _, value = assignment.partition("=")
        if name in SAID_ELSEWHERE:
            problems.append(f"You chose optim_args={text!r}, but {SAID_ELSEWHERE[name]}.")
        elif name not in parameters:
            remedy = did_you_mean(name, parameters, f"choose among {', '.join(parameters)}.")
            problems.append(f"You chose optim_args={text!r}, but {optimizer_class.__name__} has no {name}; {remedy}")
        else:
            found[name] = _value(value, parameters[name].default)
    if problems:
        raise ConfigurationError(problems)
    if "weight_decay" in found:
        logging.getLogger("hexloop").warning(
            "weight_decay in optim_args has no effect: each parameter group has that of the argument weight_decay."
        )
    return found


def _value(text: str, default: Any) -> Any:
    """The truth value, number or text that an option's text means, by the kind of its default."""
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
