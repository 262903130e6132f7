"""HTML whose text is escaped, and JSON that cannot end its element."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.app.report.markup import Markup, data_block, inline, joined, table, tag
from hexloop.domain.redaction import printable, redact


class Elements(HTMLParser):
    """The elements of a document, with their attributes, and its text."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(document)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@given(st.text(), st.text())
def test_no_text_becomes_an_element(content: str, value: str) -> None:
    """Neither the content nor the value of an attribute; both are read back as printable text."""
    parsed = Elements(tag("p", content, "<b>", title=value))
    assert parsed.elements == [("p", {"title": printable(redact(value))})]
    assert parsed.text == printable(redact(content)) + "<b>"


def test_elements_are_nested_and_attributes_named() -> None:
    """Markup is not escaped again; True is an attribute without a value, and None none."""
    inner = tag("input", type="checkbox", checked=True, disabled=False, data_run="1", class_="a", id=None)
    assert inner == '<input type="checkbox" checked data-run="1" class="a">'
    assert tag("label", inner, [" a", Markup("<i>"), " & b"]) == f"<label>{inner} a<i> &amp; b</label>"
    assert joined() == ""


def test_secrets_and_control_characters_are_removed() -> None:
    """From content and attributes."""
    shown = tag("p", "token=abcdefghijkl \x1b[31m", title="https://user:secret@host/")
    assert shown == '<p title="https://***@host/">token=*** \\x1b[31m</p>'


def test_tables_have_headings_and_a_name() -> None:
    """For readers that move by headings, and the keyboard, which scrolls them."""
    parsed = Elements(table(("run", "loss"), [("a", "1.0")], "Losses", numbers=(1,)))
    assert parsed.elements[0] == ("div", {"class": "wide", "tabindex": "0", "role": "region", "aria-label": "Losses"})
    heads = [attributes for name, attributes in parsed.elements if name == "th"]
    assert [each["scope"] for each in heads] == ["col", "col", "row"]
    assert ("td", {"class": "n"}) in parsed.elements


DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(DOCUMENTS)
def test_data_cannot_end_its_block(document: Any) -> None:
    """Whatever texts it has; it is read back equal."""
    block = data_block("data", [document, "</script><script>alert(1)</script><!-- \u2028"])
    inside = block.removeprefix('<script type="application/json" id="data">').removesuffix("</script>")
    assert not set("<>&\u2028") & set(inside)
    assert inside.isascii()
    assert json.loads(inside)[1] == "</script><script>alert(1)</script><!-- \u2028"


def test_inline_sources_have_their_digest() -> None:
    """As the policy of the page needs it; a source that would end its element is refused."""
    element, digest = inline("script", "let a = 1 && 2;")
    assert element == "<script>let a = 1 && 2;</script>"
    assert digest == f"'sha256-{base64.b64encode(hashlib.sha256(b'let a = 1 && 2;').digest()).decode()}'"
    for source in ("'</SCRIPT>'", "'<!--'"):
        with pytest.raises(ValueError, match="would end"):
            inline("script", source)


def test_escapes_are_those_of_html() -> None:
    """As the standard library reads them."""
    assert html.unescape(tag("p", "<&>\"'")) == "<p><&>\"'</p>"
