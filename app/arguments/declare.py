"""How arguments are declared: a field with its help and checks, a rule over several of them, and a group of both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

import attrs

from hexloop.app.arguments.checks import Check, finite
from hexloop.app.arguments.conversion import converter

T = TypeVar("T")

DECLARATION = "hexloop.declaration"
"""The key in a field's metadata under which its `Declaration` is found."""

GROUP = "_declared_here"
"""The attribute of a group that holds the fields it declares, by name."""

FIELD = type(attrs.field())


@attrs.frozen
class Declaration:
    """What makes a field an argument.

    prepare: turns what callers may also write into a value of the field's type.
    checks: asked one after the other about a value of the field's type, unless it is None.
    twin: another name of the same thing; setting one sets both.
    bare: what its option on a command line stands for without a value; None where it needs one.
    """

    prepare: Callable[[Any], Any]
    checks: tuple[Check, ...]
    twin: str | None
    bare: str | None = None

    def accepted(self, value: object, kind: Any) -> Any:
        """`value` as a value of the type `kind`, checked. Raises `RefusalError`."""
        try:
            value = converter.structure(self.prepare(value), kind)
        except ExceptionGroup as errors:
            raise _first_refusal(errors) from None
        if value is not None:
            for check in (finite, *self.checks):
                check(value)
        return value


def argument(
    *,
    default: Any = attrs.NOTHING,
    factory: Callable[[], Any] | None = None,
    help: str,
    prepare: Callable[[Any], Any] = lambda value: value,
    checks: tuple[Check, ...] = (),
    twin: str | None = None,
    bare: str | None = None,
    kw_only: bool = True,
) -> Any:
    """A field of an argument group: its default, its help text, and what it accepts (see `Declaration`)."""
    metadata = {"help": help, DECLARATION: Declaration(prepare, checks, twin, bare)}
    return attrs.field(default=attrs.Factory(factory) if factory else default, metadata=metadata, kw_only=kw_only)


@attrs.frozen
class Rule:
    """A condition on several arguments: `check` is given the object, and raises `RefusalError` where it is broken."""

    names: tuple[str, ...]
    check: Callable[[Any], None]


def rule(*names: str) -> Callable[[Callable[[Any], None]], Rule]:
    """Make a method of a group a rule over the arguments `names`: all that it reads, or that what it reads comes from.

    It is not asked while one of them is wrong in itself.
    """
    return lambda check: Rule(names, check)


@dataclass_transform(kw_only_default=True, field_specifiers=(argument,))
def argument_group(cls: type[T]) -> type[T]:
    """Make `cls`, a subclass of `Arguments`, a group: what it declares goes to the `arguments_class` made of it."""
    declared = {name: value for name, value in vars(cls).items() if isinstance(value, FIELD)}
    for name in declared:
        delattr(cls, name)
    setattr(cls, GROUP, declared)
    return cls


@dataclass_transform(kw_only_default=True, field_specifiers=(argument,))
def arguments_class(cls: type[T]) -> type[T]:
    """Make `cls` an attrs class with its own arguments and those of all groups it derives from, the last base's first.

    The groups are no attrs classes themselves: to make twenty more of those takes longer than all the rest.
    """
    argument_group(cls)
    finished = [owner for base in cls.__mro__[1:] if attrs.has(base) for owner in base.__mro__]
    arguments: dict[str, Any] = {}
    for owner in reversed(cls.__mro__):
        if owner not in finished:
            arguments |= vars(owner).get(GROUP, {})
    return attrs.define(slots=False, repr=False, these=arguments)(cls)


def _first_refusal(errors: ExceptionGroup[Exception]) -> Exception:
    """What cattrs says first about the contents of a list or mapping."""
    first = errors.exceptions[0]
    return _first_refusal(first) if isinstance(first, ExceptionGroup) else first
