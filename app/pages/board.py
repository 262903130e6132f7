"""The pages of the board: the list of runs, and one or more runs with their curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from hexloop.app.checkpoint_rows import format_age
from hexloop.app.pages.listing import RunListing
from hexloop.app.pages.markup import Markup, joined, table, tag
from hexloop.app.pages.page import Content, Frame, Section, page_of
from hexloop.app.pages.parts import NOT_KNOWN, state_of

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'self'"
)

SCRIPTS = ("echarts.min.js", "report.js", "search.js", "board.js")
DRAWN = ("curves", "search")
"""The sections whose charts a script keeps up to date."""

"""The scripts of a page with curves, in order."""


def list_content(root: Path, runs: Sequence[RunListing], cut: bool, now: float) -> Content:
    """Return the list of the runs in a folder. cut: whether there are more. now: in seconds since the epoch."""
    head = ("run", "state", "steps", "last loss", "last report", "compare")
    rows = [_row(number, each, now) for number, each in enumerate(runs)]
    parts: list[Markup] = []
    if rows:
        button = tag("button", "Compare the chosen runs", type="submit")
        listed = table(head, rows, f"Runs in {root}", numbers=(2, 3))
        parts.append(tag("form", listed, button, action="runs", method="get"))
    else:
        parts.append(tag("p", f"There are no runs in {root} yet. They appear here when they start.", class_="note"))
    if cut:
        parts.append(tag("p", "The folder has more runs or folders than are listed.", class_="note"))
    return Content(f"Runs in {root.name or root}", [Section("runs", "Runs", joined(parts))], {"runs": [], "charts": []})


def list_page(content: Content, version: str) -> str:
    """Return the page with the list of the runs. version: of what it shows."""
    frame = Frame(POLICY, _style(), [_script("board.js")], _live(), "", _attributes("updates", version))
    return page_of(content, frame)


def runs_page(content: Content, folders: Sequence[str], version: str) -> str:
    """Return the page of runs. folders: by which the board knows them."""
    updates = f"updates?{address_of(folders)}"
    links = tag("p", tag("a", "All runs", href="."))
    frame = Frame(POLICY, _style(), list(map(_script, SCRIPTS)), _live(), links, _attributes(updates, version))
    return page_of(content, frame)


def lines_page(content: Content, folder: str) -> str:
    """Return a page with lines of a run. It does not change while it is read."""
    links = tag("p", tag("a", "All runs", href="."), " ", tag("a", "The run", href=f"runs?{address_of([folder])}"))
    return page_of(content, Frame(POLICY, _style(), [], Markup(), links))


def update_of(content: Content, version: str) -> dict[str, Any]:
    """Return what a page that is open needs to show the present content. Charts are in the document."""
    sections = {each.identifier: str(each.content) for each in content.sections if each.identifier not in DRAWN}
    return {"version": version, "sections": sections, "document": content.document}


def address_of(folders: Sequence[str]) -> str:
    """Return the query of an address that names runs."""
    return urlencode([("run", each) for each in folders])


def _row(number: int, run: RunListing, now: float) -> tuple[str, ...]:
    history, total = run.history, run.history.total_steps
    name = run.folder if run.folder != "." else "this folder"
    of_total = f" of {total:,}" if total else ""
    words = f"Compare {name}"
    box = tag("input", type="checkbox", name="run", value=run.folder, id=f"compare-{number}", aria_label=words)
    return (
        tag("a", name, href=f"runs?{address_of([run.folder])}", id=f"open-{number}"),
        run.problem or state_of(history, total, now),
        f"{history.last_step:,}{of_total}",
        _loss_text(run.last_loss),
        NOT_KNOWN if history.seen is None else f"{format_age(max(now - history.seen, 0.0))} ago",
        box,
    )


def _loss_text(loss: float | None) -> str:
    if loss is None:
        return NOT_KNOWN
    return f"{loss:.5g}" if math.isfinite(loss) else "not finite"


def _live() -> Markup:
    return tag("p", tag("span", "Up to date.", id="live", role="status"), class_="note")


def _attributes(updates: str, version: str) -> dict[str, str]:
    return {"data_updates": updates, "data_version": version}


def _style() -> Markup:
    return tag("link", rel="stylesheet", href="assets/report.css")


def _script(name: str) -> Markup:
    return tag("script", src=f"assets/{name}")
