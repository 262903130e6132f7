"""A report as its reader finds it: headings, tables, scripts and data, parsed from the HTML."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any


class ReportPage(HTMLParser):
    """A parsed page. tables: rows of texts by caption, the heading first. scripts: their attributes and sources."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.style = ""
        self.title = ""
        self.text = ""
        self.preformatted: list[str] = []
        self._open: list[str] = []
        self._rows: list[list[str]] = []
        self._caption = ""
        self.feed(self.source)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("meta", "img", "input"):
            return
        self._open.append(tag)
        if tag == "table":
            self._rows, self._caption = [], ""
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._rows[-1].append("")
        elif tag in ("h1", "h2", "h3"):
            self.headings.append("")
        elif tag == "pre":
            self.preformatted.append("")
        elif tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        if tag == "table":
            self.tables[self._caption] = self._rows

    def handle_data(self, data: str) -> None:
        last = self._open[-1] if self._open else ""
        if last == "script":
            self.scripts[-1] = self.scripts[-1][0], self.scripts[-1][1] + data
            return
        if last == "style":
            self.style += data
            return
        self.text += data
        if last == "title" and "svg" not in self._open:
            self.title += data
        elif last in ("h1", "h2", "h3"):
            self.headings[-1] += data
        elif last == "caption":
            self._caption += data
        elif last == "pre":
            self.preformatted[-1] += data
        if {"td", "th"} & set(self._open):
            self._rows[-1][-1] += data

    @property
    def data(self) -> Any:
        """Return the data of the charts."""
        (document,) = (text for attributes, text in self.scripts if attributes.get("id") == "report-data")
        return json.loads(document)

    def curve(self, name: str, run: int = 0) -> list[list[float]]:
        """Return the points of a curve."""
        curves = [curve for chart in self.data["charts"] for curve in chart["curves"]]
        (found,) = (curve["points"] for curve in curves if (curve["name"], curve["run"]) == (name, run))
        points: list[list[float]] = found
        return points

    def row(self, caption: str, first: str) -> list[str]:
        """Return the only row of a table that starts with a text."""
        (found,) = (row for row in self.tables[caption][1:] if row[0] == first)
        return found

    def column(self, caption: str, heading: str) -> list[str]:
        """Return the cells below a heading of a table."""
        head, *rows = self.tables[caption]
        return [row[head.index(heading)] for row in rows]

    def check_policy(self) -> None:
        """Assert that the page can run and load nothing but its own scripts, style and pictures."""
        metas = [attributes for name, attributes in self.elements if name == "meta"]
        (policy,) = (each["content"] or "" for each in metas if each.get("http-equiv") == "Content-Security-Policy")
        rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
        run = [source for attributes, source in self.scripts if "type" not in attributes]
        assert len(run) == 4
        assert rules["script-src"].split() == list(map(digest, run))
        assert rules["style-src"] == digest(self.style)
        assert rules["default-src"] == "'none'"
        assert rules["img-src"] == "data:"
        for name, attributes in self.elements:
            assert name not in ("link", "iframe", "object", "embed", "base", "form", "audio", "video"), name
            assert not [key for key in attributes if key.startswith("on") or key == "style"], attributes
            for key in ("src", "href", "xlink:href", "action", "srcset"):
                address = attributes.get(key)
                assert address is None or re.match(r"#[\w-]+$|data:image/(png|jpeg);base64,", address), address
        assert not re.search(r"url\(|@import", self.style)


def digest(source: str) -> str:
    """Return the digest of an inline source, as policies have it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"
