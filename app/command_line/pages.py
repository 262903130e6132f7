"""`hexloop report` and `hexloop board`: pages that show runs, written to a file or served while they train."""

from __future__ import annotations

import asyncio
import os
import time
import webbrowser
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from hexloop.app.assembly.storage import as_location, is_elsewhere
from hexloop.app.command_line import ExitCode
from hexloop.app.pages.page import report_page, search_page
from hexloop.app.pages.reading import RunRecord, read_runs
from hexloop.app.pages.sections import reason_text
from hexloop.app.pages.trials import ShownSearch, holds_search, shown_search
from hexloop.app.printing import print_lines
from hexloop.domain.checkpoints.survey import FolderStatus
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.installation import how_to_install
from hexloop.domain.regular_files import write_atomically

REPORT = "report.html"
"""The name of a report if none is given."""


def report(options: Namespace) -> ExitCode:
    """Write the page, and print where it is and what is missing in it."""
    target = _target(options.runs, options.out)
    searches = [each for each in options.runs if not is_elsewhere(each) and holds_search(Path(as_location(each)))]
    if len(searches) > 0 and len(options.runs) > 1:
        raise ConfigurationError(
            f"You chose {len(options.runs)} folders, but {searches[0]} is that of a search, which has a page of its "
            "own; name it alone, or name the folders of its trials."
        )
    if searches:
        search = shown_search(Path(as_location(searches[0])))
        out = target or Path(search.folder, REPORT)
        write_search_report(search, out)
        remarks = [f"{search.label}: {remark}" for remark in search.remarks[:3]]
    else:
        records = read_runs(options.runs, options.quick)
        out = target or Path(records[0].folder, REPORT)
        write_report(records, out)
        remarks = [remark for record in records for remark in _remarks(record)]
    shown = out if target is not None or os.path.isabs(options.runs[0]) else os.path.relpath(out)
    print_lines(*remarks, f"The report is in {shown}")
    return ExitCode.DONE


def write_report(records: Sequence[RunRecord], out: Path) -> None:
    """Write the page for runs to a file, completely or not at all. Raises ConfigurationError if that fails."""
    _write(report_page(records, time.time()), out)


def write_search_report(search: ShownSearch, out: Path) -> None:
    """Write the page for a search to a file, completely or not at all. Raises ConfigurationError if that fails."""
    _write(search_page(search, time.time()), out)


def _write(page: str, out: Path) -> None:
    try:
        write_atomically(out, page.encode("utf-8", errors="replace"), private=True)  # it shows the arguments
    except OSError as error:
        raise ConfigurationError(
            f"The report cannot be written to {out} ({error.strerror or error}); choose another file with --out."
        ) from error


def _target(runs: Sequence[str], out: str | None) -> Path | None:
    """Return the file to write; None for the folder of the only run. Raises ConfigurationError if it cannot be."""
    if out is not None:
        if os.path.isdir(out):
            raise ConfigurationError(f"You chose --out {out}, which is a folder; add the name of a file in it.")
        return Path(out)
    return Path(REPORT) if len(runs) > 1 or is_elsewhere(runs[0]) else None


def _remarks(record: RunRecord) -> list[str]:
    remarks = [f"{record.label}: {remark}" for remark in record.remarks[:3]]
    if not record.source:
        remarks.append(f"{record.label}: no values were logged, so there are no curves.")
    for row in record.checkpoints:
        if row.found.status is FolderStatus.BAD:
            remarks.append(f"{record.label}: {row.found.name} is damaged: {reason_text(row)}")
    return remarks


def board(options: Namespace) -> ExitCode:
    """Serve the pages until Ctrl-C, or write them to a folder.

    Raises ConfigurationError for a folder or port that cannot be used.
    """
    if problems := list(_board_problems(options.folder, options.export)):
        raise ConfigurationError(problems)
    if options.export is not None:
        return _export(options.folder, Path(options.export))
    from hexloop.app.pages.service import Board, serve

    def started(address: str) -> None:
        print_lines(f"The board is at {address}", "Stop it with Ctrl-C.")
        if options.open:
            webbrowser.open(address)

    with suppress(KeyboardInterrupt):
        asyncio.run(serve(Board(Path(os.path.abspath(options.folder))), options.port, started))
    return ExitCode.DONE


def _export(folder: str, target: Path) -> ExitCode:
    from hexloop.app.pages.export import export_board

    site = export_board(Path(os.path.abspath(folder)), target, time.time())
    pages = "1 run" if site.runs == 1 else f"{site.runs:,} runs"
    print_lines(*site.remarks, f"The site of {pages} is in {target}; open {site.index}")
    return ExitCode.DONE


def _board_problems(folder: str, export: str | None) -> list[str]:
    found = []
    if is_elsewhere(folder):
        found.append(f"You chose the folder {folder}; the board shows runs in folders of this machine only.")
    elif not os.path.isdir(folder):
        found.append(f"You chose the folder {folder}, but there is no such folder; check its name.")
    if export is None and find_spec("aiohttp") is None:
        found.append(f"The board needs the package aiohttp, which is not installed; {how_to_install('board')}.")
    return found
