"""A list that tells when it changes."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

Item = TypeVar("Item")


class WatchedList(list[Item]):
    """A list that calls `changed` after each of its methods that may change it."""

    def __init__(self, changed: Callable[[], None]) -> None:
        super().__init__()
        self._changed = changed


def _telling(change: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(change)
    def change_and_tell(self: WatchedList[Any], *arguments: Any, **named: Any) -> Any:
        result = change(self, *arguments, **named)
        self._changed()
        return result

    return change_and_tell


_CHANGES = ("append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort")
for _name in (*_CHANGES, "__delitem__", "__iadd__", "__imul__", "__setitem__"):
    setattr(WatchedList, _name, _telling(getattr(list, _name)))
