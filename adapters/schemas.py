"""Schemas of JSON documents: attrs classes, read strictly, with the first problems in one message.

A number is not converted: `true` is not a count, "1" is not a number and 1.5 is not an integer. Ranges are annotations
of the fields; see `hexloop.domain.ranges`. An entry that no field has is refused, except in classes derived from
`Open`. A field with the metadata `KEY` has another name in the document.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import attrs
from cattrs import BaseConverter, Converter
from cattrs.errors import (
    BaseValidationError,
    ClassValidationError,
    ForbiddenExtraKeysError,
    IterableValidationError,
    IterableValidationNote,
)
from cattrs.gen import make_dict_structure_fn, override

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


class _WrongValueError(ValueError):
    """A value that a field does not take; the message shows both."""


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
        return _CONVERTER.structure(value, schema)
    except (BaseValidationError, _WrongValueError) as error:
        message = first_listed(f"{place}: {reason}" if place else reason for place, reason in _problems(error, path))
    raise ValueError(message)


def unstructured(value: Any) -> Any:
    """Return an instance of an attrs class as a dictionary of its fields, and so on for what it holds."""
    return _CONVERTER.unstructure(value)


def shown(value: object) -> str:
    """Return a value for a message, cut if it is long."""
    text = ascii(value[:LONGEST]) if isinstance(value, str) else _text(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _text(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > 4 * LONGEST:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, dict | list) and len(value) > LONGEST:
        return f"a {'list' if isinstance(value, list) else 'dictionary'} of {len(value)} entries"
    return _SHORTENED.repr(value).encode("ascii", "backslashreplace").decode()


_SHORTENED = reprlib.Repr()
_SHORTENED.maxlevel, _SHORTENED.maxlist, _SHORTENED.maxtuple, _SHORTENED.maxdict = 4, 20, 20, 20
_SHORTENED.maxstring, _SHORTENED.maxlong, _SHORTENED.maxother = LONGEST, 4 * LONGEST, LONGEST


# Problems with their fields


def _problems(error: BaseException, path: str) -> Iterator[tuple[str, str]]:
    """Yield each wrong field in an error of cattrs, with the reason."""
    if isinstance(error, ClassValidationError | IterableValidationError):
        with_notes, without = error.group_exceptions()
        for inner, note in with_notes:
            if isinstance(note, IterableValidationNote):
                place = f"{path}[{note.index if isinstance(note.index, int) else shown(note.index)}]"
            else:
                place = f"{path}.{_name_in_document(error.cl, note.name)}".removeprefix(".")
            yield from _problems(inner, place)
        for inner in without:
            yield from _problems(inner, path)
    else:
        yield path, _reason(error)


def _name_in_document(kind: Any, name: str) -> str:
    """Return the name that a field has in the document."""
    found: str = attrs.fields_dict(kind)[name].metadata.get(KEY, name)
    return found


def _reason(error: BaseException) -> str:
    if isinstance(error, KeyError):
        return "it is missing"
    if isinstance(error, ForbiddenExtraKeysError):
        return f"unknown entries {listed(sorted(error.extra_fields), ', ', shown)}"
    return str(error) if isinstance(error, _WrongValueError) else f"not valid ({error})"


def _refuse(value: object, expected: str) -> _WrongValueError:
    return _WrongValueError(f"{shown(value)} is not {expected}")


# Kinds of values


def _integer(value: object, _: Any) -> int:
    if type(value) is not int:
        raise _refuse(value, "a whole number")
    return value


def _number(value: object, _: Any) -> float:
    if type(value) is not float and (type(value) is not int or abs(value) > 2**1000):
        raise _refuse(value, "a number")
    return value


def _boolean(value: object, _: Any) -> bool:
    if type(value) is not bool:
        raise _refuse(value, "true or false")
    return value


def _string(value: object, _: Any) -> str:
    if type(value) is not str:
        raise _refuse(value, "text")
    return value


def _annotated(value: object, kind: Any) -> Any:
    """Check a value of a range, or under a condition."""
    checked: Any = _CONVERTER.structure(value, kind.__origin__)
    for bounds in kind.__metadata__:
        if isinstance(bounds, Between) and not bounds.least <= checked <= bounds.most:
            raise _refuse(value, f"between {bounds.least} and {bounds.most}")
        if isinstance(bounds, Holding) and not bounds.holds(checked):
            raise _refuse(value, bounds.wanted)
    return checked


def _is_annotated(kind: Any) -> bool:
    return get_origin(kind) is Annotated


def _is_optional(kind: Any) -> bool:
    return get_origin(kind) in (UnionType, Union) and type(None) in get_args(kind) and len(get_args(kind)) == 2


def _optional(value: object, kind: Any) -> Any:
    (inner,) = (each for each in get_args(kind) if each is not type(None))
    return None if value is None else _CONVERTER.structure(value, inner)


def _list(value: object, kind: Any) -> list[Any]:
    if type(value) is not list:
        raise _refuse(value, "a list")
    (inner,) = get_args(kind) or (Any,)
    return value if inner is Any else _each(enumerate(value), lambda _: inner)


def _tuple(value: Any, kind: Any) -> tuple[Any, ...]:
    """Check a list of any length, or one with a kind for each item."""
    if type(value) not in (list, tuple):
        raise _refuse(value, "a list")
    kinds = get_args(kind)
    if kinds[-1] is Ellipsis:
        return tuple(_each(enumerate(value), lambda _: kinds[0]))
    if len(value) != len(kinds):
        raise _WrongValueError(f"it has {len(value)} entries, not {len(kinds)}")
    return tuple(_each(enumerate(value), lambda place: kinds[place]))


def _dictionary(value: object, kind: Any) -> dict[str, Any]:
    if type(value) is not dict or not all(type(key) is str for key in value):
        raise _refuse(value, "a JSON object")
    _, inner = get_args(kind) or (str, Any)
    return value if inner is Any else dict(zip(value, _each(value.items(), lambda _: inner), strict=True))


def _each(entries: Iterable[tuple[Any, Any]], kind_of: Callable[[Any], Any]) -> list[Any]:
    """Check the values of a list or an object; the error has the first that are wrong, with their places.

    Checking stops there: an error takes a hundred times the memory of the value that it is about.

    kind_of: returns the kind of the value at a place.
    """
    checked, errors = list[Any](), list[Exception]()
    for place, value in entries:
        try:
            checked.append(_CONVERTER.structure(value, kind_of(place)))
        except Exception as error:
            error.add_note(IterableValidationNote("", place, Any))
            errors.append(error)
            if len(errors) > MOST_LISTED:
                break
    if errors:
        raise IterableValidationError("", errors, list)
    return checked


def _of_class(kind: Any, converter: BaseConverter) -> Callable[[Any, Any], Any]:
    """Return what reads an attrs class from a JSON object."""
    names: Any = {each.name: override(rename=each.metadata[KEY]) for each in attrs.fields(kind) if KEY in each.metadata}
    read = make_dict_structure_fn(kind, converter, _cattrs_forbid_extra_keys=not issubclass(kind, Open), **names)

    def read_object(value: object, _: Any) -> Any:
        if type(value) is not dict:
            raise _refuse(value, "a JSON object")
        return read(value, kind)

    return read_object


def _is_container(container: type, kind: Any) -> bool:
    return (get_origin(kind) or kind) is container


def _converter() -> Converter:
    made = Converter(forbid_extra_keys=True)
    for kind, hook in ((int, _integer), (float, _number), (bool, _boolean), (str, _string)):
        made.register_structure_hook(kind, hook)
    made.register_structure_hook_factory(attrs.has, _of_class)
    for container, read in ((list, _list), (tuple, _tuple), (dict, _dictionary)):
        made.register_structure_hook_func(partial(_is_container, container), read)
    made.register_structure_hook_func(_is_optional, _optional)
    made.register_structure_hook_func(_is_annotated, _annotated)
    return made


_CONVERTER = _converter()
