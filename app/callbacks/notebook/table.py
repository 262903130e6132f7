"""A table of numbers as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape

MISSING = "No log"
"""What stands where nothing was measured."""


class MetricsTable:
    """Rows of named cells. The first column tells rows apart: what is entered under its last value joins that row.

    columns: the names of the first columns, in order; others are added as rows bring them.
    """

    def __init__(self, columns: Iterable[str]) -> None:
        self.columns = list(columns)
        self.rows: list[dict[str, object]] = []

    def enter(self, row: Mapping[str, object]) -> None:
        """Put `row`, which has the first column, below the others or into the last one."""
        self.columns += [name for name in row if name not in self.columns]
        key = self.columns[0]
        if self.rows and self.rows[-1][key] == row[key]:
            self.rows[-1] |= row
        else:
            self.rows.append(dict(row))

    def html(self) -> str:
        """The table, its fractions with six decimals."""
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        lines = [f'<table border="1" class="dataframe"><thead><tr style="text-align: left;">{head}</tr></thead><tbody>']
        for row in self.rows:
            cells = (_cell(row.get(name, MISSING)) for name in self.columns)
            lines.append(f"<tr>{''.join(cells)}</tr>")
        return "\n".join([*lines, "</tbody></table>"])


def _cell(value: object) -> str:
    return f"<td>{value:.6f}</td>" if isinstance(value, float) else f"<td>{escape(str(value))}</td>"
