"""Text from outside, such as names in a checkpoint, made safe to print on a terminal.

A terminal obeys control characters: they move the cursor, change titles and colours, and hide what is printed.
"""

from __future__ import annotations

import re

_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0 and C1 controls, and DEL
    "\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"  # invisible characters, line ends, and changes of direction
    "\ud800-\udfff]"  # lone surrogates, which cannot be encoded
)
_UNSAFE_IN_LINES = re.compile(_UNSAFE.pattern.replace("\x00-\x1f", "\x00-\x09\x0b-\x1f", 1))


def printable(text: str) -> str:
    """Return the text on one line, with control characters and the like as escapes."""
    return _UNSAFE.sub(_escape, text)


def printable_lines(text: str) -> str:
    """Return the text like `printable`, with its line breaks."""
    return _UNSAFE_IN_LINES.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(match[0])
    return named or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
