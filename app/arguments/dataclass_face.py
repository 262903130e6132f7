"""How an attrs class looks like a dataclass: by the two attributes that `dataclasses` goes by, made by that module."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import attrs

from hexloop.app.arguments.declare import DECLARATION
from hexloop.app.arguments.introspection import annotations_of


def show_as_dataclass(cls: type) -> None:
    """Give the attrs class `cls` the fields, and the defaults as class attributes, that a dataclass of its kind has.

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
    """What stands in a dataclass for `field`. Its metadata are handed to argparse by the reference library's parser."""
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
