"""Values together with the places they were read from: a line of a file, an option of a command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import attrs

from hexloop.domain.wording import enumeration

KeyPath: TypeAlias = tuple[str | int, ...]
"""The keys and indices that lead from the top of a document to a value in it."""


@attrs.frozen
class Place:
    """Where a value comes from: a file and a line of it, or an option."""

    source: str
    line: int | None = None


@attrs.define
class Document:
    """Values as they were read, the place of each, and what is already known to be wrong with them."""

    values: Any
    places: dict[KeyPath, Place] = attrs.Factory(dict)
    problems: list[str] = attrs.Factory(list)

    def at(self, path: KeyPath) -> Any:
        """The value at the end of `path`; None if there is none."""
        value = self.values
        for key in path:
            inside = key in value if isinstance(value, Mapping) else isinstance(value, list) and isinstance(key, int)
            if not inside:
                return None
            value = value[key]
        return value

    def put(self, path: KeyPath, value: object, place: Place) -> None:
        """Set the value at the end of `path`, making the mappings on the way that are missing.

        Where something else than a mapping is in the way, it stays, for the class that is made of it to refuse.
        """
        *way, last = path
        inner = self.values
        for key in way:
            if isinstance(inner, dict) and inner.get(key) is None:
                inner[key] = {}
            inner = inner[key] if isinstance(inner, dict) else None
        if isinstance(inner, dict):
            inner[last] = value
            self.places = {known: old for known, old in self.places.items() if known[: len(path)] != path}
            self.places[path] = place

    def located(self, paths: Iterable[KeyPath], sentence: str) -> str:
        """`sentence` about the values at `paths`, opened with the places of those that have one."""
        lines: dict[str, list[int]] = {}
        for place in filter(None, map(self._place, paths)):
            known = lines.setdefault(place.source, [])
            if place.line is not None and place.line not in known:
                known.append(place.line)
        where = [
            f"{source}, line{'s' * (len(known) > 1)} {enumeration(sorted(known))}" if known else source
            for source, known in lines.items()
        ]
        return f"{enumeration(where)}: {sentence}" if where else sentence

    def _place(self, path: KeyPath) -> Place | None:
        return next((self.places[path[:end]] for end in range(len(path), -1, -1) if path[:end] in self.places), None)
