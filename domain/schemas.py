"""Schemas of JSON documents: attrs classes, read strictly, with the first problems in one message.

A number is not converted: `true` is not a count, "1" is not a number and 1.5 is not an integer. Ranges are annotations
of the fields; see `hexloop.domain.ranges`. An entry that no field has is refused, except in classes derived from
`Open`. A field with the metadata `KEY` has another name in the document.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, TypeAlias, TypeVar, Union, cast, get_args, get_origin

import attrs

from hexloop.domain.errors import CheckpointError
from hexloop.domain.json_documents import only_value
from hexloop.domain.ranges import Between, Holding
from hexloop.domain.wording import MOST_LISTED, first_listed, listed
from hexloop.ports.state import Part

Document = TypeVar("Document")

LONGEST = 80
"""Characters of a wrong value that a message shows."""

KEY = "key"
"""The entry of a field's metadata with its name in the document, for names that Python reserves."""


class Open:
    """Base of the schemas of documents that have further entries, such as the options of any optimizer."""


Problem: TypeAlias = tuple[str, str]
"""The place of a wrong value, such as `.files['a'].size`, and what is wrong with it."""

Read: TypeAlias = Callable[[Any], Any]


class _WrongError(ValueError):
    """What is wrong with a value, or in it."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(problems)
        self.problems = problems

    def within(self, place: str) -> list[Problem]:
        """Return the problems of a value that is at a place in another one."""
        return [(f"{place}{inner}", reason) for inner, reason in self.problems]


def read_document(values: Mapping[str, Any], schema: type[Document], where: str) -> Document:
    """Return the document with these entries as an instance of the attrs class `schema`.

    where: names the document and its file in messages.
    Raises CheckpointError with the first problems, each with its field, if an entry is missing, unknown or not valid.
    """
    try:
        return structured(values, schema)
    except ValueError as error:
        raise CheckpointError(f"{where} is invalid: {error}.") from None


def read_part(parts: Iterable[Part], name: str, schema: type[Document]) -> Document:
    """Return the value of the JSON part `name`, which must be the only one, as an instance of `schema`.

    Raises ValueError with the first problems, each with its field.
    """
    return structured(only_value(parts, name), schema, name)


def structured(value: Any, schema: type[Document], path: str = "") -> Document:
    """Return a JSON value as an instance of `schema`, an attrs class or any annotation of its fields.

    path: comes before the names of fields. Raises ValueError with the first problems, each with its field.
    """
    try:
        read: Document = _reader(cast(Hashable, schema))(value)
    except _WrongError as error:
        places = ((f"{path}{place}".removeprefix("."), reason) for place, reason in error.problems)
        message = first_listed(f"{place}: {reason}" if place else reason for place, reason in places)
    else:
        return read
    raise ValueError(message)


def shown(value: object) -> str:
    """Return a value for a message, cut if it is long."""
    text = ascii(value[:LONGEST]) if isinstance(value, str) else _shortened(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _shortened(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > 4 * LONGEST:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, dict | list) and len(value) > LONGEST:
        return f"a {'list' if isinstance(value, list) else 'dictionary'} of {len(value)} entries"
    return _SHORTENED.repr(value).encode("ascii", "backslashreplace").decode()


_SHORTENED = reprlib.Repr()
_SHORTENED.maxlevel, _SHORTENED.maxlist, _SHORTENED.maxtuple, _SHORTENED.maxdict = 4, 20, 20, 20
_SHORTENED.maxstring, _SHORTENED.maxlong, _SHORTENED.maxother = LONGEST, 4 * LONGEST, LONGEST


# Kinds of values


def _refuse(value: object, expected: str) -> _WrongError:
    return _WrongError([("", f"{shown(value)} is not {expected}")])


@cache
def _reader(kind: Any) -> Read:
    """Return what checks a value of a kind, and converts JSON objects to the classes that they stand for."""
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if attrs.has(kind):
        return _of_class(kind)
    container, inner = get_origin(kind) or kind, get_args(kind)
    if container is Annotated:
        return _annotated(_reader(inner[0]), kind.__metadata__)
    if container in (UnionType, Union) and len(inner) == 2 and NoneType in inner:
        return _optional(_reader(inner[inner[0] is NoneType]))
    if container in (list, Sequence):
        return _list(_reader(*inner or (Any,)))
    if container is tuple:
        return _many(_reader(inner[0])) if inner[-1] is Ellipsis else _fixed([*map(_reader, inner)])
    if container in (dict, Mapping):
        return _dictionary(*map(_reader, inner or (str, Any)))
    raise TypeError(f"{kind} is not a kind of value that a document has")


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise _refuse(value, "a whole number")
    return value


def _number(value: Any) -> float:
    if type(value) is not float and (type(value) is not int or abs(value) > 2**1000):
        raise _refuse(value, "a number")
    return value


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise _refuse(value, "true or false")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise _refuse(value, "text")
    return value


def _anything(value: Any) -> Any:
    return value


_SIMPLE: Mapping[Any, Read] = {int: _integer, float: _number, bool: _boolean, str: _text, Any: _anything}


def _annotated(read: Read, bounds: Sequence[object]) -> Read:
    """Check a value of a range, or under a condition."""

    def read_within(value: Any) -> Any:
        checked = read(value)
        for each in bounds:
            if isinstance(each, Between) and not each.least <= checked <= each.most:
                raise _refuse(value, f"between {each.least} and {each.most}")
            if isinstance(each, Holding) and not each.holds(checked):
                raise _refuse(value, each.wanted)
        return checked

    return read_within


def _optional(read: Read) -> Read:
    return lambda value: None if value is None else read(value)


def _list(read: Read) -> Read:
    def read_list(value: Any) -> list[Any]:
        if type(value) is not list:
            raise _refuse(value, "a list")
        return value if read is _anything else _each(enumerate(value), read)

    return read_list


def _many(read: Read) -> Read:
    def read_tuple(value: Any) -> tuple[Any, ...]:
        if type(value) not in (list, tuple):
            raise _refuse(value, "a list")
        return tuple(value) if read is _anything else tuple(_each(enumerate(value), read))

    return read_tuple


def _fixed(reads: Sequence[Read]) -> Read:
    """Check a list with a kind for each item."""

    def read_tuple(value: Any) -> tuple[Any, ...]:
        if type(value) not in (list, tuple):
            raise _refuse(value, "a list")
        if len(value) != len(reads):
            raise _WrongError([("", f"it has {len(value)} entries, not {len(reads)}")])
        pairs = zip(reads, value, strict=True)
        return tuple(_each(enumerate(pairs), lambda pair: pair[0](pair[1])))

    return read_tuple


def _dictionary(read_key: Read, read: Read) -> Read:
    def read_dictionary(value: Any) -> dict[str, Any]:
        if type(value) is not dict or not all(type(key) is str for key in value):
            raise _refuse(value, "a JSON object")
        if read_key is not _text:
            _each(((key, key) for key in value), read_key)
        return value if read is _anything else dict(zip(value, _each(value.items(), read), strict=True))

    return read_dictionary


def _each(entries: Iterable[tuple[Any, Any]], read: Read) -> list[Any]:
    """Check the values of a list or an object. The error has the first that are wrong: checking stops there."""
    checked, problems = list[Any](), list[Problem]()
    for place, value in entries:
        try:
            checked.append(read(value))
        except _WrongError as error:
            problems += error.within(f"[{place if isinstance(place, int) else shown(place)}]")
            if len(problems) > MOST_LISTED:
                break
    if problems:
        raise _WrongError(problems)
    return checked


def _of_class(kind: Any) -> Read:
    """Return what reads an attrs class from a JSON object."""
    is_open = issubclass(kind, Open)

    @cache
    def fields() -> tuple[Sequence[tuple[str, str, Read, bool]], frozenset[str]]:
        """Return the fields, when they are needed, because a class may hold others of its kind; and their keys."""
        found = [*_fields_of(kind)]
        return found, frozenset(key for key, *_ in found)

    def read_object(value: Any) -> Any:
        if type(value) is not dict:
            raise _refuse(value, "a JSON object")
        (known, keys), given, problems = fields(), {}, list[Problem]()
        for key, name, read, is_required in known:
            if key in value:
                try:
                    given[name] = read(value[key])
                except _WrongError as error:
                    problems += error.within(f".{key}")
            elif is_required:
                problems.append((f".{key}", "it is missing"))
        if not (is_open or value.keys() <= keys):
            problems.append(("", f"unknown entries {listed(sorted(value.keys() - keys), ', ', shown)}"))
        if problems:
            raise _WrongError(problems)
        try:
            return kind(**given)
        except ValueError as error:
            raise _WrongError([("", f"not valid ({error})")]) from None

    return read_object


def _fields_of(kind: Any) -> Iterable[tuple[str, str, Read, bool]]:
    """Yield the name of each field in the document and for the class, what reads it, and whether it is required."""
    for each in attrs.fields(attrs.resolve_types(kind)):
        if each.init:
            key, is_required = each.metadata.get(KEY, each.name), each.default is attrs.NOTHING
            yield key, each.alias, _reader(each.type), is_required
