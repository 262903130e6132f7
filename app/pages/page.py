"""The page of a report: one HTML document with its style, scripts and data, which loads nothing from a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from attrs import field, frozen

from hexloop import __version__
from hexloop.app.pages.charts import COLOURS, GROUPS, MOST_CHARTS, Chart, chart_data, chart_part, charts_of
from hexloop.app.pages.irregular import irregular_part
from hexloop.app.pages.markup import Markup, clean, data_block, inline, joined, tag, text_lines
from hexloop.app.pages.parts import (
    arguments_part,
    checkpoints_part,
    overview_part,
    reproducing_part,
    results_part,
)
from hexloop.app.pages.reading import RunRecord
from hexloop.app.pages.search import Search, search_data, search_of, search_part
from hexloop.app.pages.timeline import moment, saves_part, timeline_part

ECHARTS = "6.1.0"
"""The version of the chart library that is shipped."""

MOST_REMARKS = 50
"""How many remarks about what could not be read are listed."""


MOST_NAMED = 5
"""How many runs the title names."""


@frozen
class Section:
    """A part of the page under a heading. identifier: its place in addresses."""

    identifier: str
    heading: str
    content: Markup


@frozen
class Content:
    """What a page shows. document: what its scripts read."""

    title: str
    sections: Sequence[Section]
    document: Mapping[str, Any]


@frozen
class Frame:
    """What surrounds the content of a page. policy: its Content-Security-Policy; attributes: those of its body."""

    policy: str
    style: Markup
    scripts: Sequence[Markup]
    note: Markup
    links: str = ""
    attributes: Mapping[str, str] = field(factory=dict)


def report_page(records: Sequence[RunRecord], now: float) -> str:
    """Return the page for runs. now: the time of the report, in seconds since the epoch."""
    style, style_digest = inline("style", asset("report.css"))
    scripts = [inline("script", asset(name)) for name in ("echarts/echarts.min.js", "report.js", "search.js")]
    policy = (
        f"default-src 'none'; script-src {' '.join(digest for _, digest in scripts)}; style-src {style_digest}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    frame = Frame(policy, style, [script for script, _ in scripts], tag("p", _written(now), class_="note"))
    return page_of(content_of(records, now), frame)


def content_of(records: Sequence[RunRecord], now: float) -> Content:
    """Return what a page shows of runs. now: in seconds since the epoch."""
    labels = [record.label for record in records]
    charts = charts_of(records)
    named = [(f"chart-{number}", chart) for number, chart in enumerate(charts[:MOST_CHARTS])]
    search = search_of(records)
    sections = [each for each in _sections(records, named, len(charts), search, now) if each.content]
    drawn = [chart_data(chart, name) for name, chart in named]
    document = {"runs": list(map(clean, labels)), "charts": drawn, "search": search_data(search)}
    return Content(_title(labels), sections, document)


def page_of(content: Content, frame: Frame) -> str:
    """Return a whole page."""
    head = joined(
        Markup('<meta charset="utf-8">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{frame.policy}">'),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("meta", name="generator", content=f"hexloop {__version__}"),
        tag("title", f"{content.title} - hexloop"),
        frame.style,
    )
    body = joined(
        tag("a", "To the content", href="#content", class_="skip"),
        tag("header", frame.links, tag("h1", content.title), frame.note, _navigation(content.sections)),
        tag("main", [_section(each) for each in content.sections], id="content"),
        _footer(),
        data_block("report-data", content.document),
        frame.scripts,
    )
    page = tag("html", tag("head", head), tag("body", body, class_="no-script", **frame.attributes), lang="en")
    return f"<!DOCTYPE html>\n{page}\n"


def _title(labels: Sequence[str]) -> str:
    if len(labels) == 1:
        return f"Run {labels[0]}"
    more = f" and {len(labels) - MOST_NAMED} more" if len(labels) > MOST_NAMED else ""
    return f"{len(labels)} runs: {', '.join(labels[:MOST_NAMED])}{more}"


@cache
def asset(name: str) -> str:
    """Return a file that is shipped for pages: a style, a script, or a licence."""
    return files("hexloop.app.pages").joinpath("assets", *name.split("/")).read_text(encoding="utf-8")


def _sections(
    records: Sequence[RunRecord],
    charts: Sequence[tuple[str, Chart]],
    all_charts: int,
    search: Search | None,
    now: float,
) -> list[Section]:
    remarks = [f"{record.label}: {remark}" for record in records for remark in record.remarks]
    if len(remarks) > MOST_REMARKS:
        remarks = [*remarks[:MOST_REMARKS], f"And {len(remarks) - MOST_REMARKS:,} more."]
    irregular = [(each.label, each.history.irregular.entries, each.history.irregular.dropped) for each in records]
    return [
        Section("runs", "Runs" if len(records) > 1 else "The run", overview_part(records, now)),
        Section("curves", "Curves", _curves(records, charts, all_charts)),
        Section("search", "Arguments and results", search_part(search, [record.label for record in records])),
        Section("irregular", "Losses that were not usable", irregular_part(irregular)),
        Section("timeline", "Time line", timeline_part(records, now)),
        Section("checkpoints", "Checkpoints", checkpoints_part(records, now)),
        Section("saves", "What saving cost", saves_part(records)),
        Section("results", "Results", results_part(records)),
        Section("arguments", "Arguments", arguments_part(records)),
        Section("reproduce", "Reproduce and resume", reproducing_part(records)),
        Section("left-out", "Left out", tag("ul", [tag("li", remark) for remark in remarks]) if remarks else Markup()),
    ]


def _curves(records: Sequence[RunRecord], charts: Sequence[tuple[str, Chart]], all_charts: int) -> Markup:
    if not charts:
        return tag("p", "No values were logged, so there are no curves.", class_="note")
    labels = [record.label for record in records]
    parts: list[Markup] = [_controls(labels)]
    silent = [record.label for record in records if not record.source]
    if silent:
        parts.append(tag("p", f"No values were logged by {', '.join(silent)}.", class_="note"))
    for group in GROUPS:
        inside = [chart_part(chart, name, labels) for name, chart in charts if chart.group == group]
        if inside:
            parts.append(joined(tag("h3", group), tag("div", inside, class_="plots")))
    if all_charts > len(charts):
        parts.append(tag("p", f"{all_charts - len(charts):,} further charts are left out.", class_="note"))
    without = "Without JavaScript there are no charts; every chart has its figures in a table."
    return joined(tag("noscript", tag("p", without, class_="note")), parts)


def _controls(labels: Sequence[str]) -> Markup:
    boxes = []
    for number, label in enumerate(labels if len(labels) > 1 else ()):
        box = tag("input", type="checkbox", checked=True, class_="run-shown", data_run=str(number))
        swatch = tag("span", class_=f"swatch c{number % COLOURS}", aria_hidden="true")
        boxes.append(tag("label", box, " ", swatch, f" {label}", class_="control"))
    slider = tag("input", type="range", id="smoothing", min="0", max="99", value="0")
    return tag("div", boxes, tag("label", "smoothing ", slider, class_="control"), class_="controls")


def _navigation(sections: Sequence[Section]) -> Markup:
    if len(sections) < 2:
        return Markup()
    links = [tag("li", tag("a", each.heading, href=f"#{each.identifier}")) for each in sections]
    return tag("nav", tag("ul", links), aria_label="Sections")


def _section(section: Section) -> Markup:
    heading = tag("h2", section.heading, id=f"{section.identifier}-heading")
    content = tag("div", section.content, class_="content")
    return tag("section", heading, content, id=section.identifier, aria_labelledby=f"{section.identifier}-heading")


def _written(now: float) -> str:
    return f"Written by hexloop {__version__} on {moment(now)} UTC. Times are in UTC; ages are as of then."


def _footer() -> Markup:
    texts = [asset(f"echarts/{name}") for name in ("NOTICE", "LICENSE-zrender", "LICENSE-d3")]
    shown = [tag("pre", text_lines(text.splitlines()), tabindex="0") for text in texts]
    licences = tag("details", tag("summary", "Licences of the chart library"), shown)
    words = f"Charts are drawn by Apache ECharts {ECHARTS}, Apache License 2.0. This page loads nothing from a network."
    return tag("footer", tag("p", words), licences)
