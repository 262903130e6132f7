"""HTML whose text is escaped, and JSON that cannot end its element."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import example, given
from hypothesis import strategies as st
from jinja2 import UndefinedError
from markupsafe import Markup

from hexloop.app.pages.page import PageContent, PageFrame, Section, page_of
from hexloop.app.pages.templates import inline, section
from hexloop.domain.json_documents import finite_json
from hexloop.domain.redaction import printable, printable_lines, redact

HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)>",
    "</pre></title></section><!--",
    "\" onmouseover='alert(1)' `&amp;&#39;",
    "{{ 7 * 7 }}{% raw %}{# not shown #}",
    "\x00\x1b[31m\x7f\x9b\u202e\u2028\ufeff\r\n\t",
    "\ud800 alone",
    "x" * 20_000 + "<b>",
)
"""Texts that a page must show and not obey."""


class Elements(HTMLParser):
    """The elements of a document, with their attributes, and its text."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(str(document))  # markup that is added to a text escapes it
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def named(self, name: str) -> list[dict[str, str | None]]:
        """Return the attributes of the elements of this name."""
        return [attributes for each, attributes in self.elements if each == name]


def hostile_examples(test: Any) -> Any:
    """Add `HOSTILE` to the cases of a property of one text."""
    for text in HOSTILE:
        test = example(text)(test)
    return test


@hostile_examples
@given(st.text())
def test_no_text_becomes_an_element(text: str) -> None:
    """Neither the content nor the value of an attribute; both are read back as printable text."""
    parsed = Elements(section("table", head=(text,), rows=[(text, text)], caption=text))
    assert [name for name, _ in parsed.elements] == [
        "div", "table", "caption", "thead", "tr", "th" if text else "td", "tbody", "tr", "th", "td",
    ]  # fmt: skip
    assert parsed.elements[0][1]["aria-label"] == printable(redact(text))
    assert parsed.text.replace("\n", "") == printable(redact(text)) * 4


@hostile_examples
@given(st.text())
def test_no_text_changes_a_page(text: str) -> None:
    """Its title, headings, addresses, attributes of its body and data are read back; nothing is added to it."""
    frame = PageFrame(
        "default-src 'none'", "report.css", ["a.js"], links=[(text, text)], attributes={"data-version": text}
    )
    page = page_of(content_with(text), frame)
    harmless = Elements(page_of(content_with("harmless"), evolve(frame, links=[("a", "b")])))
    parsed, shown = Elements(page), printable(redact(text))
    assert [name for name, _ in parsed.elements] == [name for name, _ in harmless.elements]
    assert parsed.named("body") == [{"class": "no-script", "data-version": shown}]
    assert [each["content"] for each in parsed.named("meta") if "http-equiv" in each] == ["default-src 'none'"]
    assert shown in [each.get("href") for each in parsed.named("a")]
    title = page.partition("<title>")[2].partition("</title>")[0]
    assert html.unescape(title) == f"{shown} - hexloop"


def content_with(text: str) -> PageContent:
    """Return a content with a text in every place."""
    return PageContent(text, [Section("a", text, Markup("<i>"))], {"runs": [text]})


@hostile_examples
@given(st.text())
def test_lines_stay_lines(text: str) -> None:
    """Each line of a file, with its line breaks, in one element."""
    parsed = Elements(section("lines", lines=[text, "last"]))
    assert [name for name, _ in parsed.elements] == ["pre"]
    assert parsed.text.rstrip("\n") == printable_lines(redact(f"{text}\nlast"))


def test_markup_is_not_escaped_again() -> None:
    """What a section returns is part of the page as it is."""
    assert section("note", words=Markup("a<i>")) == '<p class="note">a<i></p>\n'
    assert section("note", words=section("note", words="<i>")).count("&lt;i&gt;") == 1


def test_secrets_and_control_characters_are_removed() -> None:
    """From content and attributes."""
    shown = section("table", head=("",), rows=[("token=abcdefghijkl \x1b[31m",)], caption="https://user:secret@host/")
    assert '<th scope="row">token=*** \\x1b[31m</th>' in shown
    assert 'aria-label="https://***@host/"' in shown


def test_tables_have_headings_and_a_name() -> None:
    """For readers that move by headings, and the keyboard, which scrolls them."""
    parsed = Elements(section("table", head=("run", "loss"), rows=[("a", "1.0")], caption="Losses", numbers=(1,)))
    assert parsed.elements[0] == ("div", {"class": "wide", "tabindex": "0", "role": "group", "aria-label": "Losses"})
    assert [each["scope"] for each in parsed.named("th")] == ["col", "col", "row"]
    assert ("td", {"class": "n"}) in parsed.elements


@pytest.mark.parametrize("name", ["table", "curves", "checkpoints", "control", "lines"])
def test_a_value_that_is_missing_is_an_error(name: str) -> None:
    """Rather than an empty place on a page."""
    with pytest.raises(UndefinedError):
        section(name)


def test_templates_do_not_switch_escaping_off() -> None:
    """No template marks a text as safe, or has a part without escaping."""
    for path in (Path(__file__).parents[3] / "app" / "pages" / "templates").iterdir():
        source = path.read_text(encoding="utf-8")
        assert "safe" not in source
        assert "autoescape" not in source


DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(DOCUMENTS)
def test_data_cannot_end_its_block(document: Any) -> None:
    """Whatever texts it has; it is read back equal."""
    hostile = ["</script><script>alert(1)</script><!-- \u2028", *HOSTILE[:-1]]
    page = page_of(PageContent("", [], {"given": document, "hostile": hostile}), PageFrame("", "report.css", []))
    (block,) = page.split('<script type="application/json" id="report-data">')[1:]
    inside = block.partition("</script>")[0]
    assert not set("<>&\u2028") & set(inside)
    assert inside.isascii()
    assert json.loads(inside) == finite_json({"given": document, "hostile": hostile})


def test_inline_sources_have_their_digest() -> None:
    """As the policy of the page needs it; a source that would end its element is refused."""
    source, digest = inline("script", "let a = 1 && 2;")
    page = page_of(PageContent("", [], {}), PageFrame("", "", [source], is_alone=True))
    assert "<script>let a = 1 && 2;</script>" in page
    assert digest == f"'sha256-{base64.b64encode(hashlib.sha256(b'let a = 1 && 2;').digest()).decode()}'"
    for hostile in ("'</SCRIPT>'", "'<!--'"):
        with pytest.raises(ValueError, match="would end"):
            inline("script", hostile)


def test_escapes_are_those_of_html() -> None:
    """As the standard library reads them."""
    assert html.unescape(section("note", words="<&>\"'")) == '<p class="note"><&>"\'</p>\n'
