"""The pages of the board: the list of runs, and one or more runs with their curves and the controls of live ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from attrs import evolve

from hexloop.app.checkpoint_rows import format_age
from hexloop.app.control.files import Action, CommandFolder
from hexloop.app.pages.history import CommandRecord, RecordedSession, RunEnding
from hexloop.app.pages.labels import change_in, change_labels
from hexloop.app.pages.page import RUN_SCRIPTS, SEARCH_SCRIPTS, PageContent, PageFrame, Section, page_of
from hexloop.app.pages.progress import RUNNING_FOR, total_steps
from hexloop.app.pages.reading import RunRecord
from hexloop.app.pages.sections import NOT_KNOWN, moment
from hexloop.app.pages.states import last_heard, state_of
from hexloop.app.pages.templates import section
from hexloop.app.pages.trials import ShownSearch, objective_of
from hexloop.app.pages.watching import Listing, RunListing, SearchListing, WatchedRuns
from hexloop.domain.errors import ConfigurationError

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "media-src 'self'; base-uri 'none'; form-action 'self'"
)

SCRIPTS = ("echarts.min.js", *RUN_SCRIPTS, "board.js")
"""The scripts of a page with curves, in order."""

OF_THE_LIST = (
    "tabulator.min.js", "common.js", "curves.js", "report.js", "run_filter.js", "run_charts.js", "runs.js", "board.js",
)  # fmt: skip
"""Those of the list of the runs, whose charts load the chart library when they are opened."""

LIST_STYLES = ("tabulator_simple.min.css", "runs.css")
"""The style sheets of the list, besides that of all pages."""

OF_A_SEARCH = ("echarts.min.js", *SEARCH_SCRIPTS, "board.js")
"""Those of the page of a search."""

DRAWN = ("curves", "media", "search", "objective", "slices", "list", "means")
"""The sections whose charts a script keeps up to date."""

LISTENING_FOR = 60.0
"""Seconds after which a run that has not reported that it reads commands is taken for lost."""

MOST_PLAIN = 500
"""How many runs the list has without JavaScript, those that reported last."""

MOST_COMMANDS = 20
"""How many commands of a run are listed, the last ones."""

LABELS = {Action.PAUSE: "Pause", Action.RESUME: "Resume", Action.SAVE: "Save", Action.STOP: "Save and stop"}


Address = Callable[[str], str | None]
"""Returns the address of the page of a run or search, by its folder; None if it has no page."""


def run_address(folder: str) -> str:
    """Return the address of the page of a run on the board."""
    return f"runs?{address_of([folder])}"


def search_address(folder: str) -> str:
    """Return the address of the page of a search on the board."""
    return f"searches?{search_address_of(folder)}"


def list_content(
    root: Path, listing: Listing, now: float, address: Address = run_address, searches: Sequence[Section] | None = None
) -> PageContent:
    """Return the list of the runs in a folder, and of its searches. now: in seconds since the epoch.

    searches: the section with the searches, if it is not that of the board.
    """
    rows = [
        _row(number, each, root, now, address(each.folder)) for number, each in enumerate(listing.runs[:MOST_PLAIN])
    ]
    cut = listing.cut or len(rows) < len(listing.runs) or not listing.is_complete
    can_compare = address is run_address
    shown = section("run_list", folder=str(root), runs=rows, cut=cut, can_compare=can_compare)
    found = searches_sections(root, listing, now) if searches is None else searches
    sections = [Section("list", "Runs", shown), *found]
    return PageContent(f"Runs in {root.name or root}", sections, {"runs": [], "charts": []})


def searches_sections(root: Path, listing: Listing, now: float, address: Address = search_address) -> list[Section]:
    """Return the section with the searches in a folder, if there are any."""
    found = [_search_row(number, each, now, address(each.folder)) for number, each in enumerate(listing.searches)]
    shown = section("searches", folder=str(root), searches=found)
    return [Section("searches", "Searches", shown)] if found else []


def list_page(content: PageContent, version: str) -> str:
    """Return the page with the list of the runs. version: of what it shows."""
    attributes = _attributes("updates", version)
    return page_of(content, PageFrame(POLICY, "report.css", OF_THE_LIST, attributes=attributes, styles=LIST_STYLES))


def runs_page(content: PageContent, folders: Sequence[str], version: str) -> str:
    """Return the page of runs. folders: by which the board knows them."""
    attributes = _attributes(f"updates?{address_of(folders)}", version)
    links = [("All runs", "."), ("Share as one HTML file", f"report?{address_of(folders)}")]
    return page_of(content, PageFrame(POLICY, "report.css", SCRIPTS, links=links, attributes=attributes))


def trial_addresses(folder: str, search: ShownSearch, is_listed: Callable[[str], bool]) -> dict[int, str]:
    """Return the addresses of the pages of a search's trials, by number. is_listed: whether the board knows a run."""
    paths = {each.number: each.name if folder == "." else f"{folder}/{each.name}" for each in search.trials}
    return {number: f"runs?{address_of([path])}" for number, path in paths.items() if is_listed(path)}


def board_search_page(content: PageContent, folder: str, version: str) -> str:
    """Return the page of a search. folder: by which the board knows it."""
    attributes = _attributes(f"updates?{search_address_of(folder)}", version)
    frame = PageFrame(POLICY, "report.css", OF_A_SEARCH, links=[("All runs", ".")], attributes=attributes)
    return page_of(content, frame)


def search_address_of(folder: str) -> str:
    """Return the query of an address that names a search."""
    return urlencode([("search", folder)], errors="replace")


def lines_page(content: PageContent, folder: str) -> str:
    """Return a page with lines of a run. It does not change while it is read."""
    links = [("All runs", "."), ("The run", f"runs?{address_of([folder])}")]
    return page_of(content, PageFrame(POLICY, "report.css", [], links=links))


def update_of(content: PageContent, version: str, drawn: Collection[str] = DRAWN) -> dict[str, Any]:
    """Return what a page that is open needs to show the present content. drawn: sections that the document has."""
    sections = {each.identifier: str(each.content) for each in content.sections if each.identifier not in drawn}
    return {"version": version, "sections": sections, "document": content.document}


def address_of(folders: Sequence[str]) -> str:
    """Return the query of an address that names runs."""
    return urlencode([("run", each) for each in folders], errors="replace")


def _row(number: int, run: RunListing, root: Path, now: float, address: str | None) -> dict[str, Any]:
    history, total = run.history, total_steps(run.history)
    of_total = f" of {total:,}" if total else ""
    return {
        "number": number,
        "folder": run.folder,
        "name": run.folder if run.folder != "." else "this folder",
        "address": address or "",
        "cells": (
            run.problem or state_of(history, total, now, last_heard(f"{root}/{run.folder}", history)),
            f"{history.last_step:,}{of_total}",
            _loss_text(run.last_loss),
            NOT_KNOWN if history.seen is None else f"{format_age(max(now - history.seen, 0.0))} ago",
        ),
    }


def _search_row(number: int, listing: SearchListing, now: float, address: str | None) -> dict[str, Any]:
    search = listing.search
    trials = NOT_KNOWN
    best = None
    if search is not None:
        ended, wanted = len(search.trials) - len(search.ended(None)), search.definition.trials
        trials, best = f"{ended:,}{f' of {wanted:,}' if wanted else ''}", search.best
    value = None if best is None else objective_of(best, 0)
    return {
        "number": number,
        "name": listing.folder if listing.folder != "." else "this folder",
        "address": address or "",
        "cells": (
            trials,
            NOT_KNOWN if value is None else f"{value:.6g}",
            NOT_KNOWN if best is None else f"{best.number}",
            f"{format_age(max(now - listing.changed, 0.0))} ago",
        ),
    }


def _loss_text(loss: float | None) -> str:
    if loss is None:
        return NOT_KNOWN
    return f"{loss:.5g}" if math.isfinite(loss) else "not finite"


def _attributes(updates: str, version: str) -> dict[str, str]:
    return {"data-updates": updates, "data-version": version}


def with_controls(
    content: PageContent, folders: Sequence[str], records: Sequence[RunRecord], now: float
) -> PageContent:
    """Return what a page shows, with the controls of its runs after the first section."""
    runs = [
        {"number": number, **_control(folder, record, now)}
        for number, (folder, record) in enumerate(zip(folders, records, strict=True))
    ]
    first, *rest = content.sections
    return evolve(content, sections=[first, Section("control", "Control", section("control", runs=runs)), *rest])


def label_runs(runs: WatchedRuns, document: Any) -> int:
    """Change the tags or notes of the runs in a request, and return how many were. Raises ConfigurationError.

    If some cannot be changed, the others are.
    """
    folders = document.get("folders") if isinstance(document, dict) else None
    if not isinstance(folders, list) or not folders or not all(isinstance(each, str) for each in folders):
        raise ConfigurationError("The change of labels has no list of folders.")
    change = change_in({name: value for name, value in document.items() if name != "folders"})
    problems, changed = list[str](), 0
    for folder in dict.fromkeys(folders):
        try:
            change_labels(runs.path(folder), change)
            changed += 1
        except ConfigurationError as error:
            problems.append(str(error))
    if problems:
        raise ConfigurationError(problems)
    return changed


def give_command(runs: WatchedRuns, document: Any, now: float) -> int:
    """Give the command in a request to a run, and return its number. Raises ConfigurationError if it cannot be given.

    The request names the run that its page showed, so that it cannot reach another one that started there meanwhile.
    """
    if not isinstance(document, dict) or {type(each) for each in document.values()} != {str}:
        raise ConfigurationError("The command is not an object of texts.")
    if set(document) != {"folder", "run", "action"} or document["action"] not in [each.value for each in Action]:
        raise ConfigurationError("The command needs a folder, a run, and one of the actions pause, resume, save, stop.")
    (record,) = runs.show([document["folder"]], list)
    if record.history.name != document["run"]:
        raise ConfigurationError("Another run has started in this folder; reload the page.")
    if problem := obstacle(record, now):
        raise ConfigurationError(f"The run cannot be commanded: {problem}.")
    try:
        return _folder(record).give(Action(document["action"]))
    except OSError as error:
        raise ConfigurationError(
            f"The command cannot be written to {_folder(record).path} ({error.strerror or error}). To command the run, "
            "this user must be able to write there."
        ) from error


def obstacle(record: RunRecord, now: float) -> str:
    """Return why a run cannot be commanded, "" if it can be."""
    history = record.history
    sessions: list[RecordedSession] = history.sessions.entries
    allowed = history.settings.get("board_control")
    if not sessions or allowed is None:
        return "it does not read commands, because it has no journal or is of an earlier release"
    if sessions[-1].outcome is not RunEnding.LOST:
        return "it has ended"
    if allowed is not True:
        return "it was started with board_control=False"
    seen = history.seen or 0.0
    if now - seen >= RUNNING_FOR and now - (_folder(record).listened_at() or 0.0) >= LISTENING_FOR:
        return f"it has not reported since {moment(seen)} UTC"
    return ""


def _folder(record: RunRecord) -> CommandFolder:
    return CommandFolder(Path(record.folder), record.history.name)


def _control(folder: str, record: RunRecord, now: float) -> dict[str, Any]:
    """Return what is shown of a run to command it. The folder and the name are decoded by a script."""
    problem, paused = obstacle(record, now), record.history.paused_at is not None
    waiting = 0 if problem else len(_folder(record).waiting())
    commands: list[CommandRecord] = record.history.commands.entries[-MOST_COMMANDS:]
    return {
        "label": record.label,
        "folder": quote(folder, errors="replace"),
        "name": quote(record.history.name, errors="replace"),
        "obstacle": problem,
        "buttons": [
            {"action": each.value, "label": label, "is_disabled": each is (Action.PAUSE if paused else Action.RESUME)}
            for each, label in LABELS.items()
        ],
        "waiting": f"{waiting} given, not taken by the run yet." if waiting else "",
        "commands": [
            (f"{each.sequence}", each.action or "-", each.by or "-", moment(each.time), _result(each))
            for each in reversed(commands)
        ],
    }


def _result(command: CommandRecord) -> str:
    between = " " if not command.detail or command.detail.startswith("at step") else ": "
    return f"{command.outcome}{between}{command.detail}".strip()
