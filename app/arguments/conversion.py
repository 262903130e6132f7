"""From what a file, a command line or a caller gives to what a field's type says: one cattrs converter.

It is strict where cattrs is lax (text is no list, a number is no text, `True` is no number) and lax where sources
differ: numbers and truth values may come as text, mappings and lists as JSON text, a whole float as an integer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin

from cattrs import BaseConverter, Converter
from cattrs.cols import list_structure_factory, mapping_structure_factory

from hexloop.app.arguments.scalars import to_bool, to_float, to_int, to_literal, to_member, to_text
from hexloop.domain.wording import RefusalError

Hook: TypeAlias = Callable[[object, Any], Any]

NOTHING = ("none", "null")
"""What stands for None, in small letters."""


def mapping_hook(kind: Any, converter: BaseConverter) -> Hook:
    """A mapping, or the JSON text of one, in which truth values and numbers may be text too."""
    inner = mapping_structure_factory(kind, converter)

    def hook(value: object, _: Any) -> Any:
        if isinstance(value, str):
            value = _with_text_resolved(_decoded(value))
        if not isinstance(value, Mapping):
            raise RefusalError("it takes a mapping", """give one, or its JSON text such as {"name": 1}""")
        return inner(value, kind)

    return hook


def list_hook(kind: Any, converter: BaseConverter) -> Hook:
    """A list or tuple, or the JSON text of one."""
    inner = list_structure_factory(kind, converter)

    def hook(value: object, _: Any) -> Any:
        if isinstance(value, str):
            value = _decoded(value)
        if not isinstance(value, list | tuple):
            raise RefusalError("it takes a list", """give one, or its JSON text such as ["name"]""")
        return inner(value, kind)

    return hook


def mapping_or_file(value: Any) -> Any:
    """A mapping as it is, and the one in a JSON file where text names it; anything else is for a hook to refuse."""
    if not isinstance(value, str | os.PathLike) or str(value).lstrip().startswith("{") or value in ("", *NOTHING):
        return value
    try:
        with open(value, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        raise RefusalError(
            "it takes a mapping, or the path of a JSON file that can be read", "name such a file"
        ) from None


def union_hook(kind: Any, converter: BaseConverter) -> Hook:
    """One of several types. Beside an enumeration or a mapping, `str` is only how that may be spelled."""
    members = [member for member in get_args(kind) if member is not NoneType]
    if any(_spelled_as_text(member) for member in members):
        members = [member for member in members if member is not str]
    optional = NoneType in get_args(kind)
    words_for_none = NOTHING if optional and str not in get_args(kind) else ()

    def hook(value: object, _: Any) -> Any:
        if optional and (value is None or (isinstance(value, str) and value.lower() in words_for_none)):
            return None
        *first, last = sorted(members, key=lambda member: type(value) is not member)
        for member in first:
            try:
                return converter.structure(value, member)
            except Exception:  # whatever the hook of a user's type raises, the next type is asked
                continue
        return converter.structure(value, last)

    return hook


def _spelled_as_text(member: Any) -> bool:
    return get_origin(member) is dict or member is dict or (isinstance(member, type) and issubclass(member, Enum))


def _decoded(text: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _with_text_resolved(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_text_resolved(inner) for key, inner in value.items()}
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if isinstance(value, str) and value[:1].isdigit():
        try:
            return to_float(value)
        except RefusalError:
            return value
    return value


def _scalar(parse: Callable[[object], Any]) -> Hook:
    """The hook of a built-in type, and of what derives from it, such as an enumeration of texts or numbers."""

    def hook(value: object, kind: Any) -> Any:
        if issubclass(kind, Enum):
            return to_member(value, kind)
        parsed = parse(value)
        return parsed if kind in (bool, int, float, str) else kind(parsed)

    return hook


def _is(*kinds: Any) -> Callable[[Any], bool]:
    return lambda kind: kind in kinds or get_origin(kind) in kinds


def _converter() -> Converter:
    made = Converter(forbid_extra_keys=True)
    made.register_structure_hook(bool, _scalar(to_bool))
    made.register_structure_hook(int, _scalar(to_int))
    made.register_structure_hook(float, _scalar(to_float))
    made.register_structure_hook(str, _scalar(to_text))
    made.register_structure_hook(Enum, to_member)
    made.register_structure_hook_func(_is(Literal), to_literal)
    made.register_structure_hook_factory(_is(dict), mapping_hook)
    made.register_structure_hook_factory(_is(list), list_hook)
    made.register_structure_hook_factory(_is(Union, UnionType), union_hook)
    return made


converter = _converter()
