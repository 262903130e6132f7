"""A minimal terminal emulator."""

from __future__ import annotations

import os
import re


def screen_of(terminal: int) -> list[str]:
    """Return the rows that a terminal shows in the end, as far as progress bars need it."""
    written = b""
    while True:
        try:
            chunk = os.read(terminal, 2**16)
        except OSError:  # the last writer has exited
            break
        written += chunk
    rows, row, column = [""], 0, 0
    for found in re.finditer(r"\x1b\[A|\x1b\[J|\r|\n|[^\x1b\r\n]+", written.decode()):
        piece = found[0]
        if piece == "\x1b[A":
            row -= 1
        elif piece == "\x1b[J":
            rows[row:] = [rows[row][:column]]
        elif piece == "\r":
            column = 0
        elif piece == "\n":
            row += 1
            rows += [""] * (row == len(rows))
        else:
            rows[row] = rows[row].ljust(column)[:column] + piece + rows[row][column + len(piece) :]
            column += len(piece)
    return [each.rstrip() for each in rows]
