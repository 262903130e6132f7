"""HTML built from elements, so that text is escaped in one place, and JSON that is safe within a page."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Sequence
from typing import Any

from hexloop.domain.json_documents import finite_json
from hexloop.domain.redaction import printable, printable_lines, redact

VOID = frozenset({"meta", "img", "input", "link"})
"""Elements without content."""


class Markup(str):
    """Text that is HTML already; all other text is escaped."""


def tag(name: str, /, *content: str | Iterable[str], **attributes: str | bool | None) -> Markup:
    """Return an element. Text in it is escaped, without secrets and control characters; `Markup` is not.

    attributes: "_" stands for "-", and a "_" at the end is left out (`class_`). True is an attribute without a value;
    one that is False or None is left out.
    """
    shown = []
    for key, value in attributes.items():
        if value is True:
            shown.append(f" {_attribute(key)}")
        elif value is not None and value is not False:
            shown.append(f' {_attribute(key)}="{html.escape(clean(value), quote=True)}"')
    start = f"<{name}{''.join(shown)}>"
    return Markup(start if name in VOID else f"{start}{joined(*content)}</{name}>")


def joined(*content: str | Iterable[str]) -> Markup:
    """Return pieces of content after each other; text among them is escaped."""
    pieces = []
    for each in content:
        if isinstance(each, Markup):
            pieces.append(str(each))
        elif isinstance(each, str):
            pieces.append(html.escape(clean(each), quote=False))
        else:
            pieces.append(str(joined(*each)))
    return Markup("".join(pieces))


def clean(text: str) -> str:
    """Return a text without secrets, and with control characters and the like as escapes."""
    return printable(redact(text))


def text_lines(lines: Iterable[str]) -> Markup:
    """Return lines as text with line breaks, for an element that shows these."""
    return Markup(html.escape(printable_lines(redact("\n".join(lines))), quote=False))


def picture_element(name: str, media_type: str, data: bytes) -> Markup:
    """Return a picture that is part of the page. The caller has checked what `data` is."""
    source = f"data:{media_type};base64,{base64.b64encode(data).decode()}"
    return Markup(f'<img alt="{html.escape(clean(name), quote=True)}" src="{source}">')


def table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "", numbers: Iterable[int] = ()) -> Markup:
    """Return a table that scrolls by itself if it is wide. The first cell of each row is its heading.

    numbers: the indexes of columns that are aligned to the right.
    """
    right = set(numbers)

    def cells(row: Sequence[str], kind: str) -> Markup:
        made = []
        for index, cell in enumerate(row):
            is_head = kind == "th" or index == 0
            scope = ("col" if kind == "th" else "row") if is_head else None
            made.append(tag("th" if is_head else "td", cell, scope=scope, class_="n" if index in right else None))
        return tag("tr", made)

    body = [cells(row, "td") for row in rows]
    parts = [tag("caption", caption)] if caption else []
    parts += [tag("thead", cells(head, "th")), tag("tbody", body)]
    return tag("div", tag("table", parts), class_="wide", tabindex="0", role="region", aria_label=caption or head[0])


def data_block(identifier: str, document: Any) -> Markup:
    """Return a block of JSON that scripts of the page read. Nothing in it can end the block or start another."""
    text = json.dumps(finite_json(document), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(f'<script type="application/json" id="{html.escape(identifier)}">{text}</script>')


def inline(kind: str, source: str) -> tuple[Markup, str]:
    """Return a script or style with this source, and the digest by which a policy allows it.

    Raises ValueError if the source would end its element.
    """
    if f"</{kind}" in source.lower() or "<!--" in source:
        raise ValueError(f"The source would end the element {kind}.")
    digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
    return Markup(f"<{kind}>{source}</{kind}>"), f"'sha256-{digest}'"


def _attribute(key: str) -> str:
    return key.rstrip("_").replace("_", "-")
