"""Calls of the user's functions with the arguments that they take, of those that transformers passes by now."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from inspect import Parameter
from typing import Any

from hexloop.domain.errors import ConfigurationError

POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def accepts(function: Callable[..., Any], name: str) -> bool:
    """Return whether a function has a parameter of this name, or takes any keyword."""
    parameters = inspect.signature(function).parameters.values()
    return any(each.name == name or each.kind is each.VAR_KEYWORD for each in parameters)


def most_positional(function: Callable[..., Any]) -> float:
    """Return how many arguments a function takes by position; infinity for any number."""
    kinds = [each.kind for each in inspect.signature(function).parameters.values()]
    return math.inf if Parameter.VAR_POSITIONAL in kinds else sum(kind in POSITIONAL for kind in kinds)


def fitted(function: Callable[..., Any], names: Sequence[str], named: int = 0) -> Callable[..., Any]:
    """Return a function of the values `names`, in this order, that calls `function` with those that it takes.

    They are passed by position, so that the names of its parameters are the user's choice. What does not fit is passed
    by name if there is a parameter of that name, or one for any keyword. named: how many at the end are passed by name
    if they can be.
    """
    parameters = inspect.signature(function).parameters.values()
    takes = {each.name for each in parameters if each.kind in NAMED}
    takes_any = any(each.kind is Parameter.VAR_KEYWORD for each in parameters)
    positions = [each.name for each in parameters if each.kind in POSITIONAL]
    last = {*names[len(names) - named :]}
    count = int(min(most_positional(function), len(names)))
    if takes_any or takes & last:
        count = min(count, len(names) - named)
    count = next((at for at, name in enumerate(positions[:count]) if name in last), count)
    if count == len(names):
        return function
    left = takes - {*positions[:count]}
    by_name = {name: at for at, name in enumerate(names) if at >= count and (takes_any or name in left)}

    def call(*values: Any) -> Any:
        return function(*values[:count], **{name: values[at] for name, at in by_name.items()})

    return call


def fitted_by_name(function: Callable[..., Any], names: Sequence[str], named: int = 0) -> Callable[..., Any]:
    """Return a function like `fitted`, which passes values by name if all parameters have names among `names`.

    That is right also for a function that takes some of them in another order.
    """
    parameters = inspect.signature(function).parameters.values()
    if not all(each.kind in (*NAMED, Parameter.VAR_KEYWORD) for each in parameters):
        return fitted(function, names, named)
    takes = {each.name for each in parameters if each.kind in NAMED}
    if not takes <= {*names}:
        return fitted(function, names, named)
    takes_any = len(takes) < len(parameters)

    def call(*values: Any) -> Any:
        given = zip(names, values, strict=True)
        return function(**{name: value for name, value in given if takes_any or name in takes})

    return call


def refuse_metrics(by_batch: bool, compute: Callable[..., Any] | None) -> None:
    """Raise ConfigurationError if metrics are to be computed by batch, and the function does not support that."""
    if by_batch and compute is not None and not accepts(compute, "compute_result"):
        raise ConfigurationError(
            "batch_eval_metrics=True needs a compute_metrics with a parameter compute_result, which is True for "
            "the last batch; add it, collect what the metrics need at each call, and return them at the last one."
        )
