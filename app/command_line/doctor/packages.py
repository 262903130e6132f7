"""The packages that hexloop uses, as its own metadata list them: versions, and what to install."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, requires, version

from hexloop.app.command_line.doctor.report import PackageFound

DEVELOPMENT = frozenset({"test", "docs", "bench"})
"""The extras that only work on hexloop itself needs."""

REQUIREMENT = re.compile(r"""(?P<name>[\w.-]+)(\[.*?])?(?P<wanted>[^;]*)(;.*extra == ["'](?P<extra>[\w-]+)["'])?""")


def packages() -> list[PackageFound]:
    """What hexloop needs first, then what its extras do, each package once."""
    wanted: dict[str, str] = {}
    extras: dict[str, list[str]] = {}
    for line in requires("hexloop") or ():
        found = REQUIREMENT.match(line)
        if found is None or found["extra"] in DEVELOPMENT:
            continue
        name = found["name"]
        wanted.setdefault(name, found["wanted"].strip())
        extras.setdefault(name, []).extend(filter(None, [found["extra"]]))
    return [_found(name, wanted[name], extras[name]) for name in sorted(wanted, key=lambda each: bool(extras[each]))]


def _found(name: str, wanted: str, extras: Iterable[str]) -> PackageFound:
    extras = sorted(extras)
    try:
        present: str | None = version(name)
    except PackageNotFoundError:
        present = None
    lacking = present is None or not _at_least(present, wanted)
    source = f"'hexloop[{extras[0]}]'" if extras else f"'{name}{wanted}'"
    return PackageFound(name, wanted, extras, present, f"pip install --upgrade {source}" if lacking else None)


def _at_least(present: str, wanted: str) -> bool:
    """Whether the version `present` satisfies a requirement of the form ">=1.2"; others are taken to be satisfied."""
    lowest = re.fullmatch(r">=([\d.]+)", wanted)
    return lowest is None or _release(present) >= _release(lowest[1])


def _release(text: str) -> tuple[int, ...]:
    """The leading numbers of a version, without zeros at their end: 2.13.0+cpu is (2, 13)."""
    leading = re.match(r"\d+(\.\d+)*", text)
    numbers = [int(part) for part in leading[0].split(".")] if leading else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
