"""HTML from templates, in which all text is escaped, without secrets and control characters.

jinja2 escapes what a template shows, unless it is `Markup` already. A name that a template does not get is an error.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from hexloop.domain.redaction import printable, printable_lines, redact


def page(**values: Any) -> str:
    """Return a whole page: the template `page.html` with these values."""
    return _environment().get_template("page.html").render(values)


def section(name: str, **values: Any) -> Markup:
    """Return the content of a section: the macro `name` of the template `sections.html` with these values."""
    content: Markup = getattr(_environment().get_template("sections.html").module, name)(**values)
    return content


def clean(text: str) -> str:
    """Return a text without secrets, and with control characters and the like as escapes."""
    return printable(redact(text))


def inline(kind: str, source: str) -> tuple[Markup, str]:
    """Return the source of a script or style as it is, and the digest by which a policy allows it.

    Raises ValueError if the source would end its element.
    """
    if f"</{kind}" in source.lower() or "<!--" in source:
        raise ValueError(f"The source would end the element {kind}.")
    digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
    return Markup(source), f"'sha256-{digest}'"


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("hexloop.app.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {"text_lines": _text_lines, "base64": _base64}
    made.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return made


def _shown(value: object) -> object:
    """Return what is shown of a value in a template, which is escaped next."""
    return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _text_lines(lines: Iterable[str]) -> Markup:
    """Return lines as text with line breaks, for an element that shows these."""
    return escape(printable_lines(redact("\n".join(lines))))


def _base64(data: bytes) -> Markup:
    return Markup(base64.b64encode(data).decode())
