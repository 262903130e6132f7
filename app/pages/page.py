"""The page of a report: one HTML document with its style, scripts and data, which loads nothing from a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from attrs import field, frozen
from markupsafe import Markup

from hexloop import __version__
from hexloop.app.pages import templates
from hexloop.app.pages.charts import (
    AXES,
    COLOURS,
    GROUPS,
    MOST_CHARTS,
    Chart,
    axes_of,
    chart_data,
    chart_shown,
    charts_of,
)
from hexloop.app.pages.comparison import differences_section, means_of, means_section
from hexloop.app.pages.media_section import Addresses, media_data, media_section, shown_media
from hexloop.app.pages.overview import information_section, progress_section
from hexloop.app.pages.reading import RunRecord
from hexloop.app.pages.search import search_data, search_of, search_section
from hexloop.app.pages.search_sections import search_document, search_sections, search_view
from hexloop.app.pages.sections import (
    arguments_section,
    checkpoints_section,
    groups_section,
    irregular_section,
    moment,
    overview_section,
    reproducing_section,
    results_section,
    saves_section,
    time_section,
    timeline_section,
)
from hexloop.app.pages.templates import clean, inline
from hexloop.app.pages.trials import ShownSearch
from hexloop.domain.json_documents import finite_json

ECHARTS = "6.1.0"
"""The version of the chart library that is shipped."""

TABULATOR = "6.5.3"
"""The version of the table library that is shipped."""

RUN_SCRIPTS = ("common.js", "curves.js", "report.js", "media.js", "compare.js", "search.js")
SEARCH_SCRIPTS = ("common.js", "search.js", "trials.js")
"""The scripts of a report on runs and of one on a search, after the chart library."""

MOST_REMARKS = 50
"""How many remarks about what could not be read are listed."""

MOST_NAMED = 5
"""How many runs the title names."""


@frozen
class Section:
    """What is under a heading of a page. identifier: its place in addresses.

    is_quiet: whether the heading is for screen readers only, because the content is seen to be what it is.
    """

    identifier: str
    heading: str
    content: Markup
    is_quiet: bool = False


@frozen
class PageContent:
    """What a page shows. document: what its scripts read."""

    title: str
    sections: Sequence[Section]
    document: Mapping[str, Any]


@frozen
class PageFrame:
    """What surrounds the content of a page. policy: its Content-Security-Policy.

    is_alone: whether `style` and `scripts` are sources, which become part of the page, or names of files beside it.
    written: a sentence of when. links: words and address of each. attributes: those of the body; a page that has them
    is kept up to date. styles: names of further style sheets.
    """

    policy: str
    style: str
    scripts: Sequence[str]
    is_alone: bool = False
    written: str = ""
    links: Sequence[tuple[str, str]] = ()
    styles: Sequence[str] = ()
    attributes: Mapping[str, str] = field(factory=dict)


def report_page(records: Sequence[RunRecord], now: float) -> str:
    """Return the page for runs. now: the time of the report, in seconds since the epoch."""
    return _alone(content_of(records, now), RUN_SCRIPTS, now)


def search_page(record: ShownSearch, now: float) -> str:
    """Return the page for a search. now: the time of the report, in seconds since the epoch."""
    return _alone(search_content(record), SEARCH_SCRIPTS, now)


def _alone(content: PageContent, names: Sequence[str], now: float) -> str:
    """Return a page that has its style and scripts in it."""
    style, style_digest = inline("style", asset("report.css"))
    scripts = [inline("script", asset(name)) for name in ("echarts/echarts.min.js", *names)]
    policy = (
        f"default-src 'none'; script-src {' '.join(digest for _, digest in scripts)}; style-src {style_digest}; "
        "img-src data:; media-src data:; base-uri 'none'; form-action 'none'"
    )
    written = f"Written by hexloop {__version__} on {moment(now)} UTC. Times are in UTC; ages are as of then."
    return page_of(content, PageFrame(policy, style, [source for source, _ in scripts], True, written))


def search_content(record: ShownSearch, addresses: Mapping[int, str] | None = None) -> PageContent:
    """Return what a page shows of a search. addresses: of the pages of its trials, by number; a report has none."""
    shown = search_view(record, addresses or {})
    sections = [Section(*each) for each in search_sections(shown)]
    remarks = list(record.remarks)
    left_out = templates.section("remarks", remarks=remarks) if remarks else Markup()
    sections.append(Section("left-out", "Left out", left_out))
    return PageContent(f"Search {record.label}", [each for each in sections if each.content], search_document(shown))


def content_of(records: Sequence[RunRecord], now: float, addresses: Addresses | None = None) -> PageContent:
    """Return what a page shows of runs. now: in seconds since the epoch.

    addresses: what the board calls the runs; None if the page is to have their media in itself.
    """
    labels = [record.label for record in records]
    curves, drawn = _curves(records)
    search, means, media = search_of(records), means_of(records), shown_media(records, addresses is None)
    sections = [
        Section("runs", "Progress", progress_section(records, now), is_quiet=True),
        Section("curves", "Curves", curves),
        Section("means", "Mean and band", means_section(records, means)),
        Section("media", "Media", media_section(media)),
        Section("differences", "What differs", differences_section(records)),
        Section("search", "Arguments and results", search_section(search, labels)),
        Section("time", "Where the time went", time_section(records)),
        Section("irregular", "Losses that were not usable", irregular_section(records)),
        Section("timeline", "Time line", timeline_section(records, now)),
        Section("checkpoints", "Checkpoints", checkpoints_section(records, now)),
        Section("saves", "What saving cost", saves_section(records)),
        Section("results", "Results", results_section(records)),
        Section("about", "Runs" if len(records) > 1 else "The run", overview_section(records, now)),
        Section("information", "Machine, code and data", information_section(records)),
        Section("arguments", "Arguments", arguments_section(records)),
        Section("groups", "Parameter groups", groups_section(records)),
        Section("reproduce", "Reproduce and resume", reproducing_section(records)),
        Section("left-out", "Left out", _left_out(records)),
    ]
    document = {
        **drawn,
        "search": search_data(search),
        "media": media_data(media, addresses),
        "means": means,
    }
    return PageContent(_title(labels), [each for each in sections if each.content], document)


def curves_alone(records: Sequence[RunRecord]) -> PageContent:
    """Return what a page shows of the curves of runs, for a place on another page."""
    curves, drawn = _curves(records)
    return PageContent("", [Section("curves", "Curves", curves)], drawn)


def page_of(content: PageContent, frame: PageFrame) -> str:
    """Return a whole page."""
    licences = [asset(f"echarts/{name}") for name in ("NOTICE", "LICENSE-zrender", "LICENSE-d3")]
    has_tables = "tabulator.min.js" in frame.scripts
    if has_tables:
        licences.append(asset("tabulator/LICENSE"))
    return templates.page(
        content=content,
        frame=frame,
        document=finite_json(content.document),
        licences=licences,
        version=__version__,
        echarts=ECHARTS,
        tabulator=TABULATOR if has_tables else "",
    )


def _title(labels: Sequence[str]) -> str:
    if len(labels) == 1:
        return f"Run {labels[0]}"
    more = f" and {len(labels) - MOST_NAMED} more" if len(labels) > MOST_NAMED else ""
    return f"{len(labels)} runs: {', '.join(labels[:MOST_NAMED])}{more}"


def asset_path(name: str) -> str:
    """Return the name for `asset` of a file that pages name."""
    library = next((each for each in ("echarts", "tabulator") if name.startswith(each)), "")
    return f"{library}/{name}" if library else name


@cache
def asset(name: str) -> str:
    """Return a file that is shipped for pages: a style, a script, or a licence."""
    return files("hexloop.app.pages").joinpath("assets", *name.split("/")).read_text(encoding="utf-8")


def _curves(records: Sequence[RunRecord]) -> tuple[Markup, dict[str, Any]]:
    """Return the section with the curves of runs, and what its script draws."""
    labels = [record.label for record in records]
    found = charts_of(records)
    charts = [(f"chart-{number}", chart) for number, chart in enumerate(found[:MOST_CHARTS])]
    drawn = {
        "runs": list(map(clean, labels)),
        "charts": [chart_data(chart, name) for name, chart in charts],
        "axes": list(map(axes_of, records)),
    }
    return _curves_section(records, labels, charts, len(found)), drawn


def _curves_section(
    records: Sequence[RunRecord], labels: Sequence[str], charts: Sequence[tuple[str, Chart]], all_charts: int
) -> Markup:
    if not charts:
        return templates.section("note", words="No values were logged, so there are no curves.")
    silent = [record.label for record in records if not record.source]
    shown = [
        (group, [chart_shown(chart, name, labels) for name, chart in charts if chart.group == group])
        for group in GROUPS
    ]
    return templates.section(
        "curves",
        runs=labels,
        colours=COLOURS,
        axes=[(name, words) for name, words in AXES.items() if any(name in axes_of(record) for record in records)],
        silent=f"No values were logged by {', '.join(silent)}." if silent else "",
        groups=[(group, inside) for group, inside in shown if inside],
        left_out=f"{all_charts - len(charts):,} further charts are left out." if all_charts > len(charts) else "",
    )


def _left_out(records: Sequence[RunRecord]) -> Markup:
    remarks = [f"{record.label}: {remark}" for record in records for remark in record.remarks]
    if len(remarks) > MOST_REMARKS:
        remarks = [*remarks[:MOST_REMARKS], f"And {len(remarks) - MOST_REMARKS:,} more."]
    return templates.section("remarks", remarks=remarks) if remarks else Markup()
