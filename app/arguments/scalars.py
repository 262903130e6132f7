"""Single values: truth values, numbers, text and choices, as they are or as text that says them.

Each function raises `RefusalError` where the value is none of its kind.
"""

from __future__ import annotations

import math
import os
from enum import Enum
from numbers import Integral, Real
from typing import Any, get_args

from hexloop.app.arguments.checks import unknown_choice
from hexloop.domain.wording import RefusalError, parse_truth


def to_bool(value: object) -> bool:
    """A truth value, or one of the words for it."""
    if isinstance(value, bool):
        return value
    truth = parse_truth(value) if isinstance(value, str) else None
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
