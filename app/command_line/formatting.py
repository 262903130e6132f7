"""Values as the command line prints them: aligned tables, sizes and ages."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"))


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> Iterator[str]:
    """Yield the rows as lines with columns two spaces apart. Columns whose index is in `right` are right-aligned."""
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    for row in rows:
        cells = (
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=False))
        )
        yield "  ".join(cells).rstrip()


def format_bytes(size: int | None) -> str:
    """Return a number of bytes in decimal units; "-" for None."""
    if size is None:
        return "-"
    value, units = float(size), ["B", "kB", "MB", "GB", "TB"]
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        del units[0]
    return f"{value:.3g} {units[0]}"


def format_age(seconds: float | None) -> str:
    """Return a duration in its largest unit; "-" for None."""
    if seconds is None:
        return "-"
    for length, unit in _UNITS:
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
