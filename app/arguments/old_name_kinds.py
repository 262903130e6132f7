"""What an argument of the reference library's earlier releases is, and the kinds that several of them are of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import attrs

from hexloop.app.arguments.conversion import converter
from hexloop.domain.wording import RefusalError

Given: TypeAlias = Mapping[str, Any]
"""Present arguments by name, as far as they were given."""


@attrs.frozen
class OldName:
    """An argument that earlier releases took.

    kind: the type of its values; None is taken as well and asks for nothing.
    write: what to write today, for the warning.
    becomes: the present arguments that a value and what else was given amount to. Raises `RefusalError`.
    reads: its value, made from arguments of today.
    adds: whether what it becomes contains what else was given, instead of competing with it.
    """

    kind: Any
    write: str
    becomes: Callable[[Any, Given], Given]
    reads: Callable[[Any], Any]
    adds: bool = False

    def modern(self, value: object, given: Given) -> Given:
        """`becomes` of a value that may be written as text. Raises `RefusalError`."""
        converted = converter.structure(value, self.kind | None)
        return {} if converted is None else self.becomes(converted, given)


def renamed(name: str, kind: Any) -> OldName:
    """What has another name today."""
    return OldName(kind, f"write {name}", lambda value, _: {name: value}, lambda args: getattr(args, name))


def batch_size(name: str) -> OldName:
    """A batch size that has another name today; 0 was none."""
    return OldName(
        int, f"write {name}", lambda value, _: {name: value} if value else {}, lambda args: getattr(args, name)
    )


def switch(name: str, setting: Any, spelled: str) -> OldName:
    """Whether one setting of a present argument is on."""
    return OldName(
        bool,
        f"write {spelled}",
        lambda on, _: {name: setting} if on else {},
        lambda args: getattr(args, name) == setting,
    )


def without_effect(kind: Any, write: str, default: Any) -> OldName:
    """What changed how something was computed, and not what came out."""
    return OldName(kind, write, lambda value, _: {}, lambda _: default)


def gone(kind: Any, default: Any, because: str, remedy: str) -> OldName:
    """What asks for something that is no more, by any value but its default."""

    def becomes(value: Any, _: Given) -> Given:
        if value != default:
            raise RefusalError(because, remedy)
        return {}

    return OldName(kind, "leave it out", becomes, lambda _: default)


def key_of(mapping: str, key: str, kind: Any, default: Any = None) -> OldName:
    """What became a key of a mapping; its default asks for nothing."""

    def becomes(value: Any, given: Given) -> Given:
        if value == default:
            return {}
        others = given.get(mapping) or {}
        if isinstance(others, str):
            others = converter.structure(others, dict[str, Any])
        if hasattr(others, "to_dict"):  # of an object nobody can tell what was said and what is default
            others = others.to_dict()
        elif others.get(key, value) != value:
            raise RefusalError(f"{mapping} says {others[key]!r}", f"leave one of the two out, and write {mapping}")
        return {mapping: {**others, key: value}}

    def reads(args: Any) -> Any:
        values = getattr(args, mapping) or {}
        return values.get(key, default) if isinstance(values, dict) else getattr(values, key)

    return OldName(kind, f"write {mapping}={{{key!r}: ...}}", becomes, reads, adds=True)
