"""Schemas of JSON documents: attrs classes, read strictly, with all problems in one message.

A number is not converted: `true` is not a count, "1" is not a number and 1.5 is not an integer. Ranges are annotations
of the fields; see `hexloop.domain.state.Count`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from cattrs import Converter
from cattrs.errors import BaseValidationError, ForbiddenExtraKeysError
from cattrs.v import transform_error

from hexloop.domain.errors import CheckpointError
from hexloop.domain.state import Between

Document = TypeVar("Document")

LONGEST = 80
"""Characters of a wrong value that a message shows."""


class _WrongValueError(ValueError):
    """A value that a field does not take; the message shows both."""


def read_document(values: Mapping[str, Any], schema: type[Document], where: str) -> Document:
    """Return the document with these entries as an instance of the attrs class `schema`.

    where: names the document and its file in messages.
    Raises CheckpointError with every problem, each with its field, if an entry is missing, unknown or not valid.
    """
    try:
        return _CONVERTER.structure(values, schema)
    except BaseValidationError as error:
        problems = transform_error(error, path="", format_exception=_reason)
        raise CheckpointError(f"{where} is invalid: {'; '.join(map(_field_first, problems))}.") from None


def shown(value: object) -> str:
    """Return a value for a message, cut if it is long."""
    text = ascii(value[:LONGEST]) if isinstance(value, str) else _text(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _text(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > 4 * LONGEST:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, dict | list) and len(value) > LONGEST:
        return f"a {'list' if isinstance(value, list) else 'dictionary'} of {len(value)} entries"
    return ascii(value)


def _field_first(problem: str) -> str:
    """Return "<field>: <reason>" for a problem that cattrs reports as "<reason> @ <path>"."""
    reason, _, path = problem.rpartition(" @ ")
    path = path.lstrip(".")
    return f"{path}: {reason}" if path else reason


def _reason(error: BaseException, _: type | None) -> str:
    if isinstance(error, KeyError):
        return f"{error.args[0]} is missing"
    if isinstance(error, ForbiddenExtraKeysError):
        return f"unknown entries {', '.join(sorted(map(shown, error.extra_fields)))}"
    return str(error) if isinstance(error, _WrongValueError) else f"not valid ({error})"


def _refuse(value: object, expected: str) -> _WrongValueError:
    return _WrongValueError(f"{shown(value)} is not {expected}")


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


def _bounded(value: object, kind: Any) -> int:
    whole = _integer(value, int)
    (bounds,) = (each for each in kind.__metadata__ if isinstance(each, Between))
    if not bounds.least <= whole <= bounds.most:
        raise _refuse(value, f"between {bounds.least} and {bounds.most}")
    return whole


def _is_bounded(kind: Any) -> bool:
    return get_origin(kind) is Annotated and any(isinstance(each, Between) for each in kind.__metadata__)


def _is_optional(kind: Any) -> bool:
    return get_origin(kind) in (UnionType, Union) and type(None) in get_args(kind) and len(get_args(kind)) == 2


def _optional(value: object, kind: Any) -> Any:
    (inner,) = (each for each in get_args(kind) if each is not type(None))
    return None if value is None else _CONVERTER.structure(value, inner)


def _list(value: object, kind: Any) -> list[Any]:
    if type(value) is not list:
        raise _refuse(value, "a list")
    (inner,) = get_args(kind) or (Any,)
    if inner is Any:
        return value
    return [_CONVERTER.structure(each, inner) for each in value]


def _dictionary(value: object, kind: Any) -> dict[str, Any]:
    if type(value) is not dict or not all(type(key) is str for key in value):
        raise _refuse(value, "a JSON object")
    _, inner = get_args(kind) or (str, Any)
    return value if inner is Any else {key: _CONVERTER.structure(each, inner) for key, each in value.items()}


def _class_of(kind: Any) -> object:
    return get_origin(kind) or kind


def _converter() -> Converter:
    made = Converter(forbid_extra_keys=True)
    for kind, hook in ((int, _integer), (float, _number), (bool, _boolean), (str, _string)):
        made.register_structure_hook(kind, hook)
    made.register_structure_hook_func(lambda kind: _class_of(kind) is list, _list)
    made.register_structure_hook_func(lambda kind: _class_of(kind) is dict, _dictionary)
    made.register_structure_hook_func(_is_optional, _optional)
    made.register_structure_hook_func(_is_bounded, _bounded)
    return made


_CONVERTER = _converter()
