"""Reads values from Python, JSON, YAML and the command line as the types of fields, and checks them.

The converter is stricter than that of cattrs (text is not a list, a number is not text, `True` is not a number), but
accepts the spellings of all sources: numbers and truth values may be text, mappings and lists JSON text, and a float
without a fraction an integer. Everything raises `RefusalError` for a value it cannot use.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin

from cattrs import BaseConverter, Converter
from cattrs.cols import list_structure_factory, mapping_structure_factory

from hexloop.app.arguments.choices import USUAL_NAMES, further_choices
from hexloop.domain.regular_files import read_file
from hexloop.domain.wording import RefusalError, did_you_mean, enumeration, parse_truth, split_assignments

Check: TypeAlias = Callable[[Any], None]
"""A check of one value: raises `RefusalError` if the value is not allowed."""

Hook: TypeAlias = Callable[[object, Any], Any]

NONE_WORDS = ("none", "null")
"""The words for None, in lower case."""


def to_bool(value: object) -> bool:
    """Return a truth value, given as such or as a word such as "yes"."""
    if isinstance(value, bool):
        return value
    truth = parse_truth(value) if isinstance(value, str) else None
    if truth is None:
        raise RefusalError("it takes a truth value", "give true or false")
    return truth


def to_int(value: object) -> int:
    """Return a whole number, given as any numeric type or as text."""
    try:
        number = to_float(value)
        if number == int(number):
            return int(number)
    except (ValueError, OverflowError):
        pass
    raise RefusalError("it takes a whole number", "give one")


def whole_number(value: object) -> object:
    """Return a whole number or None as it is. Raises RefusalError for other numbers, and for texts."""
    if value is None or (isinstance(value, Integral) and not isinstance(value, bool)):
        return value
    raise RefusalError("it takes a whole number", "give one")


def to_float(value: object) -> float:
    """Return a number, given as such or as text. An integer stays an integer, so that 500 steps print as 500."""
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
    """Return text, given as such or as a path."""
    if isinstance(value, str):
        return value
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    raise RefusalError("it takes text", "put it in quotes")


def to_member(value: object, kind: type[Enum]) -> Enum | str:
    """Return a member of an enumeration, given as such or as its value; a further choice as it is."""
    try:
        return kind(value)
    except ValueError:
        further = further_choices(kind)
        if isinstance(value, str) and value in further:
            return value
        raise unknown_choice(value, (*(member.value for member in kind), *further)) from None


def to_literal(value: object, kind: Any) -> Any:
    """Return one of the values of a Literal, given as such or as text."""
    for option in get_args(kind):
        if (type(value) is type(option) and value == option) or value == str(option):
            return option
    raise unknown_choice(value, get_args(kind))


def mapping_or_file(value: Any) -> Any:
    """Return the mapping in a JSON file if `value` is its path, else `value` itself, which a hook then checks."""
    if not isinstance(value, str | os.PathLike) or str(value).lstrip().startswith("{") or value in ("", *NONE_WORDS):
        return value
    try:
        return json.loads(read_file(value, "recipe_bytes").decode("utf-8"))
    except (OSError, ValueError) as error:
        because = "it takes a mapping, or the path of a readable JSON file"
        kind = type(error) if isinstance(error, OSError) else None
        raise RefusalError(because, "name such a file", kind) from None


def at_least(lowest: int) -> Check:
    """Check that a number is `lowest` or more."""

    def check(value: float) -> None:
        if value < lowest:
            raise RefusalError(f"it must be at least {lowest}", f"give {lowest} or more")

    return check


def above_zero(value: float) -> None:
    """Check that a number is greater than 0."""
    if value <= 0:
        raise RefusalError("it must be greater than 0", "give a positive number")


def below_one(value: float) -> None:
    """Check that a number is in [0, 1)."""
    if not 0 <= value < 1:
        raise RefusalError("it must be at least 0 and less than 1", "give a number in that range")


def unset_or_positive(value: int) -> None:
    """Check that a number of steps is -1, which stands for "not set", or at least 1."""
    if value != -1 and value < 1:
        raise RefusalError("that yields zero training steps", "give 1 or more, or -1 to use num_train_epochs")


def steps_or_ratio(value: float) -> None:
    """Check that a value is a whole number of steps, or a ratio of the run in [0, 1)."""
    remedy = "give a whole number of steps, or a ratio of the run below 1"
    if value < 0:
        raise RefusalError("steps cannot be negative", remedy)
    if value > 1 and value != int(value):
        raise RefusalError("values from 1 on are numbers of steps, which must be whole", remedy)


def seed(value: int) -> None:
    """Check that a number is a seed that every random generator takes: an unsigned 32-bit integer."""
    if not 0 <= value < 2**32:
        raise RefusalError("seeds range from 0 to 4294967295", "give a seed in that range")


def one_of(*options: str) -> Check:
    """Check that a text is one of `options`."""
    check = each_one_of(*options)
    return lambda value: check([value])


def each_one_of(*options: str) -> Check:
    """Check that each text in a list is one of `options`."""

    def check(values: Iterable[str]) -> None:
        for value in values:
            if value not in options:
                raise unknown_choice(value, options)

    return check


def finite(value: object) -> None:
    """Check that no number in a value, or at any depth of a mapping, is NaN or infinite."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise RefusalError("it must be finite", "give a finite number")
    elif isinstance(value, Mapping):
        for inner in value.values():
            finite(inner)


def assignments(value: str) -> None:
    """Check that a text is a comma-separated list of `name=value`, as `optim_args` takes it."""
    for part in split_assignments(value):
        if part.count("=") != 1:
            raise RefusalError(f"{part!r} is not of the form name=value", "write it as 'name=value, other=value'")


def unknown_choice(value: object, options: Iterable[object]) -> RefusalError:
    """Return the refusal of a value that is not among `options`.

    It suggests the option that is meant by a name which is usual elsewhere, or the closest one, or lists them.
    """
    known = [str(option) for option in options]
    usual = USUAL_NAMES.get(str(value).lower())
    if usual is not None and usual[0] in known:
        return RefusalError("there is no such choice", f"did you mean {usual[0]!r}{usual[1]}?")
    listed = enumeration(map(repr, known), "or") if len(known) <= 12 else f"one of {', '.join(known)}"
    return RefusalError("there is no such choice", did_you_mean(str(value), known, f"choose {listed}", spell=repr))


def _mapping_hook(kind: Any, converter: BaseConverter) -> Hook:
    """Convert a mapping, or JSON text of one, in which truth values and numbers may be text, too."""
    inner = mapping_structure_factory(kind, converter)

    def hook(value: object, _: Any) -> Any:
        if isinstance(value, str):
            value = _with_text_resolved(decoded(value))
        if not isinstance(value, Mapping):
            raise RefusalError("it takes a mapping", """give one, or its JSON text such as {"name": 1}""")
        return inner(value, kind)

    return hook


MOST_ENTRIES = 10_000
"""Entries of a list. Each one that is wrong becomes an error of its own, which takes time."""


def _list_hook(kind: Any, converter: BaseConverter) -> Hook:
    """Convert a list or tuple, or JSON text of one."""
    inner = list_structure_factory(kind, converter)

    def hook(value: object, _: Any) -> Any:
        if isinstance(value, str):
            value = decoded(value)
        if not isinstance(value, list | tuple):
            raise RefusalError("it takes a list", """give one, or its JSON text such as ["name"]""")
        if len(value) > MOST_ENTRIES:
            raise RefusalError(f"it takes a list of at most {MOST_ENTRIES} entries", "shorten it")
        return inner(value, kind)

    return hook


def _union_hook(kind: Any, converter: BaseConverter) -> Hook:
    """Convert to the first type that fits. Beside an enumeration or a mapping, `str` only means that it may be text."""
    members = [member for member in get_args(kind) if member is not NoneType]
    if any(_is_written_as_text(member) for member in members):
        members = [member for member in members if member is not str]
    optional = NoneType in get_args(kind)
    none_words = NONE_WORDS if optional and str not in get_args(kind) else ()

    def hook(value: object, _: Any) -> Any:
        if optional and (value is None or (isinstance(value, str) and value.lower() in none_words)):
            return None
        *first, last = sorted(members, key=lambda member: type(value) is not member)
        for member in first:
            try:
                return converter.structure(value, member)
            except Exception:  # a user's type may raise anything; the next type is tried
                continue
        return converter.structure(value, last)

    return hook


def _is_written_as_text(member: Any) -> bool:
    return get_origin(member) is dict or member is dict or (isinstance(member, type) and issubclass(member, Enum))


def decoded(text: str) -> object:
    """Return the value of JSON text, or other text as it is."""
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
    """Convert to a built-in type, or to a type derived from it, such as an enumeration of texts."""

    def hook(value: object, kind: Any) -> Any:
        if issubclass(kind, Enum):
            return to_member(value, kind)
        parsed = parse(value)
        return parsed if kind in (bool, int, float, str) else kind(parsed)

    return hook


def _is(*kinds: Any) -> Callable[[Any], bool]:
    return lambda kind: kind in kinds or get_origin(kind) in kinds


converter = Converter(forbid_extra_keys=True)
converter.register_structure_hook(bool, _scalar(to_bool))
converter.register_structure_hook(int, _scalar(to_int))
converter.register_structure_hook(float, _scalar(to_float))
converter.register_structure_hook(str, _scalar(to_text))
converter.register_structure_hook(Enum, to_member)
converter.register_structure_hook_func(_is(Literal), to_literal)
converter.register_structure_hook_factory(_is(dict), _mapping_hook)
converter.register_structure_hook_factory(_is(list), _list_hook)
converter.register_structure_hook_factory(_is(Union, UnionType), _union_hook)
