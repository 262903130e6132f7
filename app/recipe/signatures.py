"""Whether a function can be called with what a recipe gives it, found out without calling it."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping
from inspect import Parameter
from typing import Any

from hexloop.domain.wording import RefusalError, did_you_mean, enumeration

BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def misfits(function: Any, name: str, given: Collection[str]) -> Iterator[tuple[str | None, RefusalError]]:
    """What is wrong with calling `function`, which messages call `name`, with the keywords `given`.

    Each refusal comes with the keyword it is about, or with None where it is about what is not given. Nothing is known
    of functions that do not tell what they take, as some written in C, nor of what a decorator's own function takes
    any keywords for, and may change.
    """
    if not callable(function):
        yield None, RefusalError(f"{name} cannot be called", "name a class or a function")
        return
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return
    if _is_wrapped(function.__init__ if inspect.isclass(function) else function):
        return
    named = [each.name for each in parameters.values() if each.kind in BY_NAME]
    if not any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values()):
        for keyword in given:
            if keyword not in named:
                otherwise = f"it takes {enumeration(named)}" if named else "it takes nothing, so leave it out"
                yield keyword, RefusalError(f"{name} takes no {keyword}", did_you_mean(keyword, named, otherwise))
    yield from ((None, refusal) for refusal in _missing(parameters, name, given))


def _is_wrapped(function: Any) -> bool:
    """Whether `function` stands in front of another, whose signature it shows while it takes any keywords itself."""
    while hasattr(function, "__wrapped__"):
        if inspect.isfunction(function) and function.__code__.co_flags & inspect.CO_VARKEYWORDS:
            return True
        function = function.__wrapped__
    return False


def _missing(parameters: Mapping[str, Parameter], name: str, given: Collection[str]) -> Iterator[RefusalError]:
    required = [each for each in parameters.values() if each.default is Parameter.empty]
    absent = [each.name for each in required if each.kind in BY_NAME and each.name not in given]
    by_position = [each.name for each in required if each.kind is Parameter.POSITIONAL_ONLY]
    if absent:
        yield RefusalError(f"{name} needs {enumeration(absent)} as well", "give what is missing as keys beside call")
    if by_position:
        yield RefusalError(
            f"{name} takes {enumeration(by_position)} by position only, and a recipe's keys are given by name",
            "write a function of your own that calls it",
        )
