"""How arguments are declared: fields with checks, rules over several of them, and groups of both.

A group of arguments is a plain class marked with `argument_group`. A class marked with `arguments_class` combines the
groups it derives from into one attrs class, which looks like a dataclass from outside. The second half of this module
reads declarations back from such a class.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import cache, lru_cache, partial
from typing import Any, TypeVar, dataclass_transform

import attrs

from hexloop.app.arguments.conversion import Check, converter, finite
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import Problem, RefusalError

T = TypeVar("T")

DECLARATION = "hexloop.declaration"
"""The key of a field's metadata that holds its `Declaration`."""

GROUP = "_declared_here"
"""The attribute of a group that holds the fields it declares, by name."""

_ATTRS_FIELD = type(attrs.field())


@attrs.frozen
class Declaration:
    """What makes a field an argument.

    prepare: converts other values that callers may pass to a value that the field's type accepts.
    check: called with the converted value, unless it is None.
    twin: an alias of the argument; setting one sets both.
    bare: the value of the command-line option if it has no value; None if it needs one.
    """

    prepare: Callable[[Any], Any]
    check: Check | None
    twin: str | None
    bare: str | None = None

    def accepted(self, value: object, kind: Any) -> Any:
        """Return `value` converted to the type `kind`, and checked. Raises `RefusalError`."""
        try:
            value = converter.structure(self.prepare(value), kind)
        except ExceptionGroup as errors:
            raise _first_refusal(errors) from None
        if value is not None:
            finite(value)
            if self.check is not None:
                self.check(value)
        return value


def _first_refusal(errors: ExceptionGroup[Exception]) -> Exception:
    """Return the first error of cattrs about the contents of a list or mapping."""
    first = errors.exceptions[0]
    return _first_refusal(first) if isinstance(first, ExceptionGroup) else first


def argument(
    *,
    default: Any = attrs.NOTHING,
    factory: Callable[[], Any] | None = None,
    help: str,
    prepare: Callable[[Any], Any] = lambda value: value,
    check: Check | None = None,
    twin: str | None = None,
    bare: str | None = None,
    kw_only: bool = True,
) -> Any:
    """Declare an argument: its default, its help text, and the values it accepts (see `Declaration`)."""
    metadata = {"help": help, DECLARATION: Declaration(prepare, check, twin, bare)}
    return attrs.field(default=attrs.Factory(factory) if factory else default, metadata=metadata, kw_only=kw_only)


@attrs.frozen
class ArgumentRule:
    """A condition on several arguments: `check` is called with the object and raises `RefusalError` if it is broken."""

    names: tuple[str, ...]
    check: Callable[[Any], None]


def rule(*names: str) -> Callable[[Callable[[Any], None]], ArgumentRule]:
    """Make a method of a group a rule over the arguments `names`: all that it reads, or that derive what it reads.

    It is not called if one of them is invalid by itself.
    """
    return lambda check: ArgumentRule(names, check)


class ArgumentGroup:
    """Base of groups of arguments."""

    def _derive(self) -> None:
        """Derive unset values from others. A group that overrides this calls `super()._derive()` first."""


@dataclass_transform(kw_only_default=True, field_specifiers=(argument,))
def argument_group(cls: type[T]) -> type[T]:
    """Make `cls` a group: the `arguments_class` derived from it gets the fields that it declares."""
    declared = {name: value for name, value in vars(cls).items() if isinstance(value, _ATTRS_FIELD)}
    for name in declared:
        delattr(cls, name)
    setattr(cls, GROUP, declared)
    return cls


@dataclass_transform(kw_only_default=True, field_specifiers=(argument,))
def arguments_class(cls: type[T]) -> type[T]:
    """Make `cls` an attrs class with its own arguments and those of the groups it derives from, the last base's first.

    The groups are not attrs classes themselves: generating twenty of those takes longer than everything else.
    """
    argument_group(cls)
    finished = [owner for base in cls.__mro__[1:] if attrs.has(base) for owner in base.__mro__]
    arguments: dict[str, Any] = {}
    for owner in reversed(cls.__mro__):
        if owner not in finished:
            arguments |= vars(owner).get(GROUP, {})
    return attrs.define(slots=False, repr=False, these=arguments)(cls)


def show_as_dataclass(cls: type) -> None:
    """Give the attrs class `cls` the fields, and the defaults as class attributes, that a dataclass has.

    `dataclasses.fields`, `replace`, `asdict` and `is_dataclass` then work on it, and `@dataclass` subclasses inherit.
    """
    kinds = annotations_of(cls)
    shown = [(field.name, kinds.get(field.name, Any), _as_dataclass_field(field, kinds)) for field in attrs.fields(cls)]
    model = dataclasses.make_dataclass(cls.__name__, shown, init=False, repr=False, eq=False)
    for name in ("__dataclass_fields__", "__dataclass_params__"):
        setattr(cls, name, getattr(model, name))
    for field in attrs.fields(cls):
        if field.default is not attrs.NOTHING and not _is_factory(field.default):
            setattr(cls, field.name, field.default)


def _as_dataclass_field(field: attrs.Attribute[Any], kinds: Mapping[str, Any]) -> Any:
    """Return the dataclass field for `field`. transformers' parser passes its metadata to argparse."""
    metadata = {key: value for key, value in field.metadata.items() if key != DECLARATION}
    declaration = field.metadata.get(DECLARATION)
    if declaration is not None and (declaration.bare is not None or kinds[field.name] == bool | None):
        metadata |= {"nargs": "?", "const": declaration.bare or True}
    made: dict[str, Any] = {"metadata": metadata, "init": field.init, "kw_only": bool(field.kw_only)}
    default: Any = field.default
    if not _is_factory(default):
        made["default"] = dataclasses.MISSING if default is attrs.NOTHING else default
    else:
        made["default_factory"] = partial(_refuse_default, field.name) if default.takes_self else default.factory
    return dataclasses.field(**made)


def _refuse_default(name: str) -> None:
    raise TypeError(f"the default of {name} is computed from the object, which a dataclass cannot do: give {name}")


def _is_factory(default: object) -> bool:
    return isinstance(default, attrs.Factory)  # type: ignore[arg-type]  # declared as a function, for checkers' sake


def annotations_of(cls: type, needed: Collection[str] = ()) -> dict[str, Any]:
    """Return the type of each annotated name; the most derived class takes precedence.

    A class whose annotations cannot be resolved here, because they name something local to a function, is skipped.
    Raises ConfigurationError if one of the names `needed` is among its annotations.
    """
    kinds: dict[str, Any] = {}
    for owner in reversed(cls.__mro__):
        try:
            kinds |= inspect.get_annotations(owner, eval_str=True)
        except NameError as error:
            if any(name in needed for name in inspect.get_annotations(owner)):
                problem = (
                    f"{cls.__name__} cannot be parsed: the types of the fields of {owner.__name__} cannot be "
                    f"resolved ({error}); define the class, and what its types name, at the top of a module."
                )
                raise ConfigurationError(Problem(problem, kind=RuntimeError)) from None
    return kinds


def takes(cls: type[Any], name: str) -> bool:
    """Return whether `cls(...)` takes an argument of that name, by name or as one of any."""
    return has_argument(cls, name) or any(each.kind is each.VAR_KEYWORD for each in _parameters(cls.__init__).values())


def has_argument(cls: Any, name: str) -> bool:
    """Return whether `cls` has an argument of that name."""
    field = cls.__dataclass_fields__.get(name)
    return (field is not None and field.init) or name in _parameters(cls.__init__)


@lru_cache(maxsize=256)
def _parameters(constructor: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(constructor).parameters


@cache
def declaring_class(cls: type, name: str) -> type | None:
    """Return the most derived class of `cls` and its bases that declares an argument of that name."""
    return next((owner for owner in cls.__mro__ if name in inspect.get_annotations(owner)), None)


def default_of(cls: type[Any], name: str) -> Any:
    """Return the default of an argument."""
    field = cls.__dataclass_fields__[name]
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


@cache
def declarations(cls: type) -> Mapping[str, tuple[Declaration, Any]]:
    """Return the declaration of each argument of `cls`, and the type that the most derived class gives it.

    A subclass that declares a name again as a plain field changes its default and type, but keeps the checks.
    """
    kinds = annotations_of(cls)
    return {
        field.name: (field.metadata[DECLARATION], kinds[field.name])
        for owner in reversed(cls.__mro__)
        for field in vars(owner).get("__attrs_attrs__", ())
        if DECLARATION in field.metadata
    }


PLAIN = frozenset({type(None), bool, int, float, str})
"""The types of values that cannot be changed, and are written as they are."""


@cache
def accepted_defaults(cls: type) -> Mapping[str, object]:
    """Return the plain defaults of `cls` that are accepted and need no conversion. They are checked once."""
    found, fields = {}, cls.__dataclass_fields__  # type: ignore[attr-defined]
    for name, (declaration, kind) in declarations(cls).items():
        default = fields[name].default
        with suppress(RefusalError):
            if type(default) in PLAIN and declaration.accepted(default, kind) is default:
                found[name] = default
    return found


@cache
def rules(cls: type) -> tuple[ArgumentRule, ...]:
    """Return the rules of `cls` and its bases; one that a subclass defines under the same name replaces the base's."""
    members = {name: member for owner in reversed(cls.__mro__) for name, member in vars(owner).items()}
    return tuple(member for member in members.values() if isinstance(member, ArgumentRule))
