"""What a subclass of a contract suite has to override, which an error lists if it does not."""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import Any


def not_overridden(suite: object) -> NotImplementedError:
    """Return the error of a member that a subclass of a suite has to override; it lists all of these.

    A member that has to be overridden raises it, and does nothing else.
    """
    kind = type(suite)
    lines = [f"    {_header(member)}: {_first_line(member)}" for member in _missing(kind)]
    plural = "s" if len(lines) > 1 else ""
    return NotImplementedError(f"{kind.__name__} has to override {len(lines)} member{plural}:\n" + "\n".join(lines))


def _missing(kind: type) -> list[Any]:
    """Return the members that raise the error, those of the first suite first, each in the order of the source."""
    names = dict.fromkeys(name for owner in reversed(kind.__mro__) for name in vars(owner))
    members = [inspect.getattr_static(kind, name) for name in names]
    return [member for member in members if not_overridden.__name__ in _names_in(member)]


def _names_in(member: Any) -> tuple[str, ...]:
    function = inspect.unwrap(member) if callable(member) else None  # pytest wraps fixtures
    return function.__code__.co_names if isinstance(function, FunctionType) else ()


def _header(member: Any) -> str:
    function = inspect.unwrap(member)
    kind = "method" if isinstance(member, FunctionType) else "@pytest.fixture"
    return f"{kind} {function.__name__}{inspect.signature(function)}".replace("'", "")  # quotes around annotations


def _first_line(member: Any) -> str:
    return (inspect.getdoc(inspect.unwrap(member)) or "").partition("\n")[0]
