"""Training arguments of the reference library, made hexloop's."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, TypeVar

from hexloop.app.arguments.construction import problems_of
from hexloop.app.arguments.introspection import takes
from hexloop.app.arguments.names import OF_SEQ2SEQ, unknown_argument
from hexloop.app.arguments.old_names import OLD_NAMES
from hexloop.app.arguments.training import TrainingArguments
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import RefusalError, problem

T = TypeVar("T", bound=TrainingArguments)


def adopted(args: Any, cls: type[T]) -> T | TrainingArguments:
    """`args` themselves where they are hexloop's, else arguments of the class `cls` that say the same.

    Raises ConfigurationError where they are no training arguments, and with everything in them that is not known here:
    an argument, or a method that a subclass of theirs defines anew.
    """
    if isinstance(args, TrainingArguments):
        return args
    if not _are_the_reference_s(args):
        refusal = RefusalError(
            "a Trainer takes TrainingArguments, hexloop's or the reference library's", "make such an object"
        )
        raise ConfigurationError([problem({"args": args}, refusal)])
    given = {field.name: getattr(args, field.name) for field in dataclasses.fields(args) if field.init}
    asked = {name: value for name, value in given.items() if not _is_default(args, name, value)}
    unheeded = {name for name in OF_SEQ2SEQ if name not in asked} | OLD_NAMES.keys()
    unknown = {name: value for name, value in given.items() if name not in unheeded and not takes(cls, name)}
    known = {name: value for name, value in asked.items() if name not in unknown}
    problems = [unknown_argument(name, value, ()) for name, value in unknown.items()] + _defined_anew(args)
    if problems:
        problems = [f"{each} Or derive {type(args).__name__} from hexloop.TrainingArguments." for each in problems]
        raise ConfigurationError([*problems, *problems_of(lambda: cls(**known))])
    return cls(**known)


def _are_the_reference_s(args: Any) -> bool:
    """By the names of its classes, so that the library need not be there."""
    return dataclasses.is_dataclass(args) and any(_is_the_reference_s(owner) for owner in inspect.getmro(type(args)))


def _is_the_reference_s(owner: type) -> bool:
    return owner.__module__.split(".")[0] == "transformers"


def _is_default(args: Any, name: str, value: object) -> bool:
    field = args.__dataclass_fields__[name]
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return bool(value is default or value == default)


def _defined_anew(args: Any) -> list[str]:
    """A problem for each method and property of the reference library's that a subclass of it defines anew."""
    return [
        f"You gave args of the class {owner.__name__}, which defines {name} anew, but hexloop would not call it."
        for owner in type(args).__mro__
        if owner is not object and not _is_the_reference_s(owner)
        for name, member in vars(owner).items()
        if (inspect.isfunction(member) or isinstance(member, property))
        and hasattr(TrainingArguments, name)
        and not name.startswith("__")
    ]
