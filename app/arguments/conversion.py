"""From what a file, a command line or a caller gives to what a field's type says: one cattrs converter.

It is strict where cattrs is lax (text is no list, a number is no text, `True` is no number) and lax where sources
differ: numbers and truth values may come as text, mappings and lists as JSON text, a whole float as an integer.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from enum import Enum
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin

from cattrs import BaseConverter, Converter
from cattrs.cols import list_structure_factory, mapping_structure_factory

from hexloop.app.arguments.checks import unknown_choice
from hexloop.app.arguments.problems import RefusalError

Hook: TypeAlias = Callable[[object, Any], Any]

TRUTH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
NOTHING = ("none", "null")


def to_bool(value: object) -> bool:
    """A truth value, or one of the words for it."""
    if isinstance(value, bool):
        return value
    truth = TRUTH.get(value.lower()) if isinstance(value, str) else None
    if truth is None:
        raise RefusalError("it takes a truth value", "give true or false")
    return truth


def to_int(value: object) -> int:
    """A whole number, of whatever numeric type, or the text of one."""
    refusal = RefusalError("it takes a whole number", "give one")
    try:
        number = to_float(value)
    except RefusalError:
        raise refusal from None
    if not math.isfinite(number) or number != int(number):
        raise refusal
    return int(number)


def to_float(value: object) -> float:
    """A number or the text of one; an integer stays an integer, so that a count of steps prints as one."""
    if isinstance(value, str):
        for parse in (int, float):
            try:
                return parse(value)
            except ValueError:
                continue
    elif isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    elif isinstance(value, Real) and not isinstance(value, bool):
        return float(value)
    raise RefusalError("it takes a number", "give one")


def to_text(value: object) -> str:
    """Text, or a path."""
    if isinstance(value, str):
        return value
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    raise RefusalError("it takes text", "put it in quotes")


def to_member(value: object, kind: type[Enum]) -> Enum:
    """A member of an enumeration, or the value that selects one."""
    try:
        return kind(value)
    except ValueError:
        raise unknown_choice(value, [str(member.value) for member in kind]) from None


def to_literal(value: object, kind: Any) -> Any:
    """One of the values that a Literal lists, or the text of one."""
    for option in get_args(kind):
        if (type(value) is type(option) and value == option) or value == str(option):
            return option
    raise unknown_choice(value, map(str, get_args(kind)))


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
