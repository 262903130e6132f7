"""Entries of a nested configuration, by paths such as "zero_optimization.stage"."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

AUTO = "auto"
"""The value that leaves an entry to the arguments."""


def section_of(config: dict[str, Any], path: str) -> tuple[dict[str, Any] | None, str]:
    """The mapping that an entry is in, None where it is not there, and the entry's name in it."""
    *sections, name = path.split(".")
    found: Any = config
    for section in sections:
        found = found.get(section) if isinstance(found, dict) else None
    return (found if isinstance(found, dict) else None), name


def entry(config: dict[str, Any], path: str, unset: Any = None) -> Any:
    """The value of an entry; `unset` where it is not there, is None, or is left to the arguments."""
    section, name = section_of(config, path)
    found = None if section is None else section.get(name)
    return unset if found is None or found == AUTO else found


def autos_in(config: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """The paths of all entries that are still left to the arguments."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from autos_in(value, f"{before}{name}.")
        elif value == AUTO:
            yield f"{before}{name}"


def remove(config: dict[str, Any], path: str) -> None:
    """Take an entry out, so that DeepSpeed's own default counts."""
    section, name = section_of(config, path)
    if section is not None:
        section.pop(name, None)
