"""Facts about checkpoints as people read them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"))


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> Iterator[str]:
    """The rows as lines with two spaces between columns; those whose numbers are in `right` end at one place."""
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    for row in rows:
        cells = (
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=False))
        )
        yield "  ".join(cells).rstrip()


def told_bytes(size: int | None) -> str:
    """A number of bytes in decimal units."""
    if size is None:
        return "-"
    value, units = float(size), ["B", "kB", "MB", "GB", "TB"]
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        del units[0]
    return f"{value:.3g} {units[0]}"


def told_age(seconds: float | None) -> str:
    """A time span in its largest unit."""
    if seconds is None:
        return "-"
    for length, unit in _UNITS:
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
