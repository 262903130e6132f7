"""Attributes of the Trainer that are made or computed from others, unless they are assigned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

Value = TypeVar("Value")


class computed(Generic[Value]):  # noqa: N801  # used like `property`
    """An attribute that is computed whenever it is read, unless a value is assigned to it."""

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, owner: None, kind: type[Any]) -> computed[Value]: ...

    @overload
    def __get__(self, owner: object, kind: type[Any] | None = None) -> Value: ...

    def __get__(self, owner: object, kind: type[Any] | None = None) -> computed[Value] | Value:
        return self if owner is None else self._compute(owner)


class made(computed[Value]):  # noqa: N801  # used like `property`
    """An attribute that is made from the others when it is first read, unless a value is assigned to it before.

    The constructor assigns what was passed to it. A class that replaces the constructor, such as trl's PPOTrainer, gets
    the others from here, and so does a copy of a Trainer. Raises AttributeError before `args` are set.
    """

    def __set_name__(self, kind: type[Any], name: str) -> None:
        self._name = name

    @overload
    def __get__(self, owner: None, kind: type[Any]) -> made[Value]: ...

    @overload
    def __get__(self, owner: object, kind: type[Any] | None = None) -> Value: ...

    def __get__(self, owner: object, kind: type[Any] | None = None) -> made[Value] | Value:
        if owner is None:
            return self
        if "args" not in vars(owner):
            raise AttributeError(f"{type(owner).__name__!r} object has no attribute {self._name!r}")
        return self.make(owner)

    def make(self, owner: object) -> Value:
        """Return the value for `owner`, and keep it."""
        value = vars(owner)[self._name] = self._compute(owner)
        return value
