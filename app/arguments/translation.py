"""From what earlier releases were told to what the present one is told, with a warning for each name."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from typing import Any

from hexloop.app.arguments.introspection import declarations, default_of, names_itself
from hexloop.app.arguments.old_names import KEPT, OLD_NAMES
from hexloop.domain.wording import Problem, RefusalError, problem, shown_as


def is_old(cls: type, name: str) -> bool:
    """Whether `name` is one of earlier releases that `cls` takes for another; a subclass may use the name itself."""
    return name in OLD_NAMES and not names_itself(cls, name)


def translated(
    cls: type, given: Mapping[str, Any], known: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], list[Problem]]:
    """`given` with present names only, a warning for each old one, and a problem for each that is refused.

    `known` are arguments that what is given may add to, but does not contradict.
    """
    present = {name: value for name, value in given.items() if not is_old(cls, name)}
    problems = []
    for name in [name for name in OLD_NAMES if name in given and name not in present]:
        old, value = OLD_NAMES[name], given[name]
        _warn(name, f"{name} is an argument of earlier releases; {old.write}.")
        try:
            modern = old.modern(value, {**(known or {}), **present})
            if not old.adds:
                _refuse_contradiction(cls, modern, present)
            for each, meant in modern.items():
                _accepted(cls, each, meant)
        except RefusalError as refusal:
            problems.append(problem({name: value}, refusal))
        else:
            present |= modern
    return present, problems


def warn_of_kept(cls: type, given: Mapping[str, Any]) -> None:
    """A warning for each argument of earlier releases that nothing has replaced, where it asks for something."""
    for name, instead in KEPT.items():
        if name in given and name in declarations(cls) and given[name] != default_of(cls, name):
            _warn(name, f"{name} is an argument of earlier releases; it still works, but better {instead}.")


def _refuse_contradiction(cls: type, modern: Mapping[str, Any], present: Mapping[str, Any]) -> None:
    """Where a present name has a value that is neither its default nor what the old one says, somebody is wrong."""
    for name, meant in modern.items():
        if name not in present:
            continue
        said = _said(cls, name, present[name])
        if said not in (_accepted(cls, name, meant), _said(cls, name, default_of(cls, name))):
            raise RefusalError(
                f"{name} says {shown_as(name, present[name])}", f"leave one of the two out, and write {name}"
            )


def _accepted(cls: type, name: str, value: object) -> Any:
    declaration, kind = declarations(cls)[name]
    return declaration.accepted(value, kind)


def _said(cls: type, name: str, value: object) -> Any:
    """The value that was given for a present name; one that is wrong in itself is told elsewhere."""
    try:
        return _accepted(cls, name, value)
    except RefusalError:
        return _accepted(cls, name, default_of(cls, name))


_OURS = ("hexloop.app.arguments", "hexloop.app.parser", "cattrs", "dataclasses", "attr.", "<attrs")


def _warn(name: str, sentence: str) -> None:
    """Warn at the line outside of this package that led here."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(sentence, FutureWarning, stacklevel=level)


def _is_ours(module: str) -> bool:
    return module.startswith(_OURS)
