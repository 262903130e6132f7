"""What a class takes, whether attrs or dataclasses made it."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, get_args, get_origin

import attrs

from hexloop.app.arguments.group import Arguments
from hexloop.app.arguments.introspection import declarations
from hexloop.domain.errors import ConfigurationError

MISSING: Any = dataclasses.MISSING


@attrs.frozen
class Field:
    """One argument of a class: its name in a call, its type, its default.

    default: MISSING where there is none, or only a factory. factory: makes the default; None where there is no factory.
    computed: whether the default depends on the other values. checked: whether the class converts and checks the value
    by itself, and says more about a wrong one than its type does.
    """

    name: str
    kind: Any
    metadata: Mapping[Any, Any]
    default: Any = MISSING
    factory: Callable[[], Any] | None = None
    computed: bool = False
    checked: bool = False

    @property
    def required(self) -> bool:
        """Whether a call without this argument fails."""
        return self.default is MISSING and self.factory is None and not self.computed


def HfArg(  # noqa: N802 - the reference library's name
    *,
    aliases: str | list[str] | None = None,
    help: str | None = None,
    default: Any = MISSING,
    default_factory: Any = MISSING,
    metadata: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """A dataclass field with further spellings of its option ("-e", ["--example", "-e"]) and a help text."""
    said = {"aliases": aliases, "help": help}
    told = {**(metadata or {}), **{name: value for name, value in said.items() if value is not None}}
    return dataclasses.field(metadata=told, default=default, default_factory=default_factory, **kwargs)


def fields_of(cls: type[Any]) -> list[Field]:
    """What `cls(...)` takes, in the order of its declaration.

    Raises ConfigurationError where `cls` is neither an attrs class nor a dataclass, or a type cannot be resolved.
    """
    if dataclasses.is_dataclass(cls):
        return list(_of_dataclass(cls))
    if isinstance(cls, type) and attrs.has(cls):
        return list(_of_attrs(cls))
    raise ConfigurationError(
        [f"You chose to parse {cls!r}, which is no class with fields; make it an attrs class or a dataclass."]
    )


def _of_dataclass(cls: type[Any]) -> Iterator[Field]:
    kinds = _kinds_of(cls, [field.name for field in dataclasses.fields(cls)])
    checked = declarations(cls) if issubclass(cls, Arguments) else {}
    for field in dataclasses.fields(cls):
        if field.init:
            yield Field(
                field.name,
                kinds.get(field.name, field.type),
                field.metadata,
                field.default,
                None if field.default_factory is MISSING else field.default_factory,  # type: ignore[arg-type]
                checked=field.name in checked,
            )


def _of_attrs(cls: type[Any]) -> Iterator[Field]:
    kinds = _kinds_of(cls, [field.name for field in attrs.fields(cls)])
    for field in attrs.fields(cls):
        if not field.init:
            continue
        known: dict[str, Any] = {
            "name": field.alias,
            "kind": kinds.get(field.name, field.type),
            "metadata": field.metadata,
        }
        default: Any = field.default
        if default is attrs.NOTHING:
            yield Field(**known)
        elif not isinstance(default, attrs.Factory):  # type: ignore[arg-type]  # declared as a function
            yield Field(**known, default=default)
        elif default.takes_self:
            yield Field(**known, computed=True)
        else:
            yield Field(**known, factory=default.factory)


def _kinds_of(cls: type[Any], fields: list[str]) -> dict[str, Any]:
    """The type of each annotated name. Raises ConfigurationError where that of a field cannot be resolved."""
    kinds: dict[str, Any] = {}
    for owner in reversed(cls.__mro__):
        try:
            kinds |= inspect.get_annotations(owner, eval_str=True)
        except NameError as error:
            if any(name in fields for name in inspect.get_annotations(owner)):
                raise ConfigurationError(
                    [
                        f"You chose to parse {cls.__name__}, but the types of the fields of {owner.__name__} cannot be "
                        f"resolved ({error}); define the class, and what its types name, at the top of a module."
                    ]
                ) from None
    return {name: get_args(kind)[0] if get_origin(kind) is Annotated else kind for name, kind in kinds.items()}
