"""A static site of the runs below a folder: the list, a page for each run, and a comparison.

It works from a file system and from any web server, and loads nothing from elsewhere.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from attrs import define, evolve, field, frozen

from hexloop import __version__
from hexloop.app.pages.board import LIST_STYLES, OF_A_SEARCH, OF_THE_LIST, SCRIPTS, list_content, searches_sections
from hexloop.app.pages.page import PageContent, PageFrame, asset, asset_path, content_of, page_of, search_content
from hexloop.app.pages.run_table import RunTable
from hexloop.app.pages.sections import moment
from hexloop.app.pages.watching import MOST_COMPARED, Listing, RunListing, SearchListing, WatchedRuns
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.folders import Folder
from hexloop.domain.json_documents import read_json

MOST_PAGES = 1_000
"""How many runs get a page, those that reported last."""

MARKER = "hexloop-board.json"
"""The file by which a later export knows what it may replace."""

LARGEST_MARKER = 1 << 20
WRITTEN = re.compile(r"(?:index|compare|(?:run|search)-[0-9]{4}[A-Za-z0-9._-]{0,80})\.html")
"""The names of the pages of a site."""

ASSETS = ("report.css", *LIST_STYLES, *dict.fromkeys((*SCRIPTS, *OF_THE_LIST, *OF_A_SEARCH)))

POLICY = (  # a page that is opened from a file system is of no origin that 'self' would name in every browser
    "default-src 'none'; script-src 'self' file:; style-src 'self' file:; img-src data:; media-src data:; "
    "base-uri 'none'; form-action 'none'"
)


@frozen
class ExportedSite:
    """What an export wrote. runs: how many pages of runs. remarks: sentences about what is left out."""

    index: Path
    runs: int
    remarks: Sequence[str]


@define
class SiteWriter:
    """Writes the files of a site into a folder, and removes pages of an earlier export that it did not write again."""

    folder: Folder
    target: Path
    _before: set[str] = field(init=False)
    _written: list[str] = field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self._before = _written_before(self.folder, self.target)

    def write(self, name: str, text: str) -> None:
        """Write a file, completely or not at all. Raises OSError."""
        self.folder.replace(name, text.encode("utf-8", "replace"))
        self._written.append(name)

    def finish(self) -> None:
        """Record what belongs to the site, and remove pages that no longer do. Raises OSError."""
        self.folder.replace(MARKER, json.dumps({"schema": 1, "files": self._written}).encode())
        for name in self._before - set(self._written):
            with suppress(OSError):
                self.folder.remove(name)


def export_board(root: Path, target: Path, now: float) -> ExportedSite:
    """Write a site of the runs below `root`, without hidden ones. now: in seconds since the epoch.

    Raises ConfigurationError if the folder cannot be written to, or holds anything else than an earlier export.
    """
    runs = WatchedRuns(root)
    listing = runs.listing()
    shown = [each for each in listing.runs if not each.labels.hidden]
    remarks = []
    if len(shown) < len(listing.runs):
        remarks.append(f"{len(listing.runs) - len(shown):,} hidden runs are left out.")
    if len(shown) > MOST_PAGES:
        remarks.append(f"Only the last {MOST_PAGES:,} of {len(shown):,} runs have pages.")
    if not shown:
        raise ConfigurationError(f"You chose the folder {root}, but it has no run to export; name the folder of runs.")
    try:
        writer = SiteWriter(Folder(target), target)
        for name in ASSETS:
            writer.write(f"assets/{name}", asset(asset_path(name)))
        site = _Site(root, evolve(listing, runs=shown), now, runs, writer)
        remarks += site.write()
        writer.finish()
    except OSError as error:
        raise ConfigurationError(
            f"The site cannot be written to {target} ({error.strerror or error}); choose another folder with --export."
        ) from error
    return ExportedSite(target / "index.html", min(len(shown), MOST_PAGES), remarks)


@define
class _Site:
    """The pages of a site. The list is written last, so that it never names a page that is not there."""

    root: Path
    listing: Listing
    now: float
    runs: WatchedRuns
    writer: SiteWriter
    pages: dict[str, str] = field(factory=dict)

    def write(self) -> list[str]:
        """Write all pages, and return what could not be."""
        remarks = list(self._write_runs(self.listing.runs[:MOST_PAGES]))
        compared = [each for each in self.pages if each][:MOST_COMPARED]
        if len(compared) > 1:
            content = self.runs.show(compared, lambda records: content_of(records, self.now))
            content = evolve(content, document={**content.document, "folders": compared})
            if len(compared) < len(self.pages):
                left_out = f"The comparison has the {len(compared)} runs that reported last, of {len(self.pages):,}."
                remarks.append(left_out)
                content = evolve(content, title=f"{content.title}. {left_out}")
            self.writer.write("compare.html", self._page(content, SCRIPTS))
        searches, addresses = list[SearchListing](), dict[str, str]()
        for number, each in enumerate(self.listing.searches):
            if each.search is not None:
                name = page_name("search", number, each.folder)
                self._write_search(name, each)
                searches.append(each)
                addresses[each.folder] = name
        self._write_list(evolve(self.listing, searches=searches), compared, addresses)
        return remarks

    def _write_runs(self, runs: Sequence[RunListing]) -> Iterator[str]:
        for number, each in enumerate(runs):
            name = page_name("run", number, each.folder)
            try:
                content = self.runs.show([each.folder], lambda records: content_of(records, self.now))
            except ConfigurationError as error:
                yield f"{each.folder} has no page: {error}"
                continue
            self.writer.write(name, self._page(content, SCRIPTS))
            self.pages[each.folder] = name

    def _write_search(self, name: str, listing: SearchListing) -> None:
        assert listing.search is not None
        prefix = "" if listing.folder == "." else f"{listing.folder}/"
        pages = {each.number: self.pages.get(f"{prefix}{each.name}") for each in listing.search.trials}
        content = search_content(listing.search, {number: page for number, page in pages.items() if page})
        self.writer.write(name, self._page(content, OF_A_SEARCH))

    def _write_list(self, listing: Listing, compared: Sequence[str], searches: dict[str, str]) -> None:
        table = RunTable(str(self.root))
        table.update(listing, self.now)
        content = list_content(
            self.root, listing, self.now, self.pages.get, searches_sections(self.root, listing, self.now, searches.get)
        )
        shown = {**json.loads(table.document()), "pages": self.pages, "compared": list(compared)}
        content = evolve(content, document={**content.document, "table": shown})
        self.writer.write("index.html", self._page(content, OF_THE_LIST, LIST_STYLES, is_list=True))

    def _page(
        self, content: PageContent, scripts: Sequence[str], styles: Sequence[str] = (), is_list: bool = False
    ) -> str:
        written = f"Written by hexloop {__version__} on {moment(self.now)} UTC. Times are in UTC; ages are as of then."
        links = [] if is_list else [("All runs", "index.html")]
        names = [name for name in scripts if name != "board.js"]
        return page_of(content, PageFrame(POLICY, "report.css", names, written=written, links=links, styles=styles))


def page_name(kind: str, number: int, folder: str) -> str:
    """Return the name of a page: readable, and unique by its number."""
    readable = re.sub(r"[^A-Za-z0-9._]+", "-", folder)[:60].strip("-.")
    return f"{kind}-{number:04}{f'-{readable}' if readable else ''}.html"


def _written_before(folder: Folder, target: Path) -> set[str]:
    """Return the pages of an earlier export. Raises ConfigurationError if the folder holds anything else."""
    try:
        present = set(os.listdir(target))
    except FileNotFoundError:
        return set()
    except NotADirectoryError as error:
        raise ConfigurationError(f"You chose --export {target}, which is a file; name a folder.") from error
    if not present:
        return set()
    try:
        document = read_json(folder.read(MARKER, LARGEST_MARKER))
        files = document["files"] if isinstance(document, dict) else []
    except (OSError, ValueError, KeyError) as error:
        raise ConfigurationError(
            f"You chose --export {target}, which has files of something else in it; name a new or an empty folder."
        ) from error
    return {each for each in files if isinstance(each, str) and WRITTEN.fullmatch(each)}
