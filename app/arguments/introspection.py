"""What a class of arguments takes, read off the class: its arguments, their types and defaults, and its rules."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any

from hexloop.app.arguments.declare import DECLARATION, Declaration, Rule


def annotations_of(cls: type) -> dict[str, Any]:
    """The type of each annotated name, the most derived class's word being last.

    A class whose annotations cannot be resolved from here (they name something local to a function) has no say.
    """
    kinds: dict[str, Any] = {}
    for owner in reversed(cls.__mro__):
        try:
            kinds |= inspect.get_annotations(owner, eval_str=True)
        except NameError:
            continue
    return kinds


def takes(cls: type[Any], name: str) -> bool:
    """Whether `cls(...)` takes an argument of that name, if only because it takes any."""
    parameters = inspect.signature(cls.__init__).parameters
    return names_itself(cls, name) or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def names_itself(cls: Any, name: str) -> bool:
    """Whether `cls` has an argument of that name."""
    field = cls.__dataclass_fields__.get(name)
    return (field is not None and field.init) or name in inspect.signature(cls.__init__).parameters


def default_of(cls: type[Any], name: str) -> Any:
    """The value that the argument has where none is given."""
    field = cls.__dataclass_fields__[name]
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


@cache
def declarations(cls: type) -> Mapping[str, tuple[Declaration, Any]]:
    """The arguments of `cls`: what makes each one, and the type that the most derived class gives it.

    A subclass that declares a name again as a plain field changes its default and type; the checks stay.
    """
    kinds = annotations_of(cls)
    return {
        field.name: (field.metadata[DECLARATION], kinds[field.name])
        for owner in reversed(cls.__mro__)
        for field in vars(owner).get("__attrs_attrs__", ())
        if DECLARATION in field.metadata
    }


@cache
def rules(cls: type) -> tuple[Rule, ...]:
    """The rules of `cls` and of all it derives from; one that is defined again under the same name is replaced."""
    members = {name: member for owner in reversed(cls.__mro__) for name, member in vars(owner).items()}
    return tuple(member for member in members.values() if isinstance(member, Rule))
