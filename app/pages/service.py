"""The web service of the board: answers requests of a browser on this machine that knows its address."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from hmac import compare_digest
from pathlib import Path
from threading import Thread

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from attrs import define, evolve, field, frozen

from hexloop.app.pages.board import (
    LIST_STYLES,
    OF_A_SEARCH,
    OF_THE_LIST,
    POLICY,
    SCRIPTS,
    board_search_page,
    give_command,
    label_runs,
    lines_page,
    list_content,
    list_page,
    runs_page,
    searches_sections,
    trial_addresses,
    update_of,
    with_controls,
)
from hexloop.app.pages.charts import finer_points
from hexloop.app.pages.lines import files_with_lines, last_lines, lines_content, with_last_lines
from hexloop.app.pages.media_section import file_shown
from hexloop.app.pages.page import (
    PageContent,
    Section,
    asset,
    asset_path,
    content_of,
    curves_alone,
    report_page,
    search_content,
)
from hexloop.app.pages.reading import RunRecord
from hexloop.app.pages.run_table import RunTable
from hexloop.app.pages.watching import Listing, WatchedRuns
from hexloop.app.series import MOST_POINTS, MOST_STEPS
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.json_documents import read_json

HOST = "127.0.0.1"

HEADERS = {
    "Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}

FROM_ELSEWHERE = frozenset({"cross-site", "same-site"})
"""What a browser says of requests that pages of other sites make."""

UNCHANGED = 204

FRESH_FOR = 1.0
"""Seconds for which an answer is sent again if nothing has changed: ages and states on pages depend on the time."""

NO_VERSION = ""
"""The version of what is not known without making it."""

MOST_ANSWERS, MOST_ANSWER_BYTES = 64, 32 << 20
"""How many answers are kept, and how many bytes of them."""

LONGEST_NAME = 100
"""Characters of the name of a file that is downloaded."""

MOST_NAMED = 100
"""How many runs of a request are looked for."""

PIECE = 0.2
"""Seconds for which runs are read before a list is answered with what is known."""

MOST_IN_PAGE = 500
"""How many rows the page of the list has; if there are more, its script asks for all of them."""

MOST_POINTS_IN_FILE = 200_000
"""How many points of a curve a file for a spreadsheet has."""

LARGEST_REQUEST = 16 << 10
"""Bytes of a command in a request; it has the name of a folder."""


@web.middleware
async def with_headers(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Add the headers that every answer has."""
    try:
        answer = await handler(request)
    except web.HTTPException as error:
        error.headers.update(HEADERS)
        raise
    answer.headers.update(HEADERS)
    return answer


@frozen
class Answer:
    """What was sent to viewers. made: when, in seconds of a clock that only counts up."""

    version: str
    body: bytes
    made: float


@define
class SharedAnswers:
    """Answers for any number of viewers, each made once. Used by the thread of the event loop only.

    One thread makes them: curves are read under a lock anyway, and each thread would keep memory of its own.
    kept: the last ones, by what they show.
    """

    kept: OrderedDict[tuple[str, ...], Answer] = field(factory=OrderedDict)
    _making: dict[tuple[str, ...], asyncio.Task[Answer]] = field(factory=dict)
    _maker: ThreadPoolExecutor = field(factory=lambda: ThreadPoolExecutor(1, "pages"))

    async def get(self, key: tuple[str, ...], version: str, make: Callable[[], tuple[str, str]]) -> Answer:
        """Return the answer that was made last if it is of this version and fresh; otherwise make it, in a thread.

        Viewers that ask for the same meanwhile get that one too. make: returns a version and a text.
        """
        known = self.kept.get(key)
        if known is not None and known.version == version and time.monotonic() - known.made < FRESH_FOR:
            return known
        task = self._making.get(key)
        if task is None:
            task = self._making[key] = asyncio.create_task(self._make(key, make))
        return await asyncio.shield(task)  # a viewer that leaves does not take the answer from the others

    async def _make(self, key: tuple[str, ...], make: Callable[[], tuple[str, str]]) -> Answer:
        try:
            loop = asyncio.get_running_loop()
            version, body = await loop.run_in_executor(self._maker, lambda: _encoded(*make()))
        finally:
            del self._making[key]
        self.kept[key] = answer = Answer(version, body, time.monotonic())
        self.kept.move_to_end(key)
        while len(self.kept) > 1 and (
            len(self.kept) > MOST_ANSWERS or sum(len(each.body) for each in self.kept.values()) > MOST_ANSWER_BYTES
        ):
            self.kept.popitem(last=False)
        return answer


def _encoded(version: str, text: str) -> tuple[str, bytes]:
    return version, text.encode("utf-8", "replace")


@define
class Board:
    """The pages for the runs in `root`. token: the first part of every address, which only its user knows."""

    root: Path
    token: str = field(factory=lambda: secrets.token_urlsafe(16), repr=False)
    _runs: WatchedRuns = field(init=False)
    _table: RunTable = field(init=False)
    _answers: SharedAnswers = field(factory=SharedAnswers, init=False)

    def __attrs_post_init__(self) -> None:
        self._runs = WatchedRuns(self.root)
        self._table = RunTable(str(self.root))

    def application(self) -> web.Application:
        """Return the application of aiohttp."""
        made = web.Application(middlewares=[with_headers, self._guard()], client_max_size=LARGEST_REQUEST)
        made.add_routes(
            [
                web.get("/{token}/", self._list),
                web.get("/{token}/runs", self._show),
                web.get("/{token}/searches", self._show_search),
                web.get("/{token}/updates", self._update),
                web.get("/{token}/curves", self._curves),
                web.get("/{token}/points", self._points),
                web.get("/{token}/assets/{name}", self._asset),
                web.get("/{token}/lines", self._lines),
                web.get("/{token}/report", self._report),
                web.get("/{token}/media", self._media),
                web.post("/{token}/commands", self._command),
                web.post("/{token}/labels", self._label),
            ]
        )
        return made

    def _guard(self) -> Middleware:
        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            """Refuse requests of other sites, under another host name, or without the token."""
            host = request.headers.get("Host", "")
            is_ours = (host.rpartition(":")[0] or host) in (HOST, "localhost")
            own = f"http://{host}"
            is_ours &= request.headers.get("Origin", own if request.method in ("GET", "HEAD") else "") == own
            if not is_ours or request.headers.get("Sec-Fetch-Site") in FROM_ELSEWHERE:
                raise web.HTTPForbidden(text="Open the board by the address that hexloop board has printed.")
            given = request.match_info.get("token", "")
            if not compare_digest(given.encode("utf-8", "replace"), self.token.encode()):
                raise web.HTTPNotFound(text="There is nothing here. The address of the board changes with each start.")
            try:
                return await handler(request)
            except ConfigurationError as error:
                raise web.HTTPNotFound(text=str(error)) from error
            except OSError as error:
                raise web.HTTPServiceUnavailable(text=f"{self.root} cannot be read: {error.strerror}.") from error

        return guard

    async def _list(self, request: web.Request) -> web.Response:
        return _html((await self._answers.get(("list",), NO_VERSION, self._list_page)).body)

    async def _show(self, request: web.Request) -> web.Response:
        folders = self._chosen(request)
        if not folders:
            raise web.HTTPSeeOther("./")
        version = await asyncio.to_thread(partial(self._version, folders))
        answer = await self._answers.get(("page", *folders), version, partial(self._page, folders))
        return _html(answer.body)

    async def _show_search(self, request: web.Request) -> web.Response:
        folder = request.query.get("search")
        if folder is None:
            raise web.HTTPSeeOther("./")
        version = await asyncio.to_thread(partial(self._search_version, folder))
        answer = await self._answers.get(("search page", folder), version, partial(self._search_page, folder))
        return _html(answer.body)

    async def _update(self, request: web.Request) -> web.Response:
        """Answer with what is new, or that nothing is."""
        folders, known = self._chosen(request), request.query.get("version", "")
        if (search := request.query.get("search")) is not None:
            version = await asyncio.to_thread(partial(self._search_version, search))
            if version == known:
                return web.Response(status=UNCHANGED)
            answer = await self._answers.get(("search update", search), version, partial(self._search_update, search))
        elif not folders:
            make = partial(self._list_update, known)
            answer = await self._answers.get(("list update", known), NO_VERSION, make)
        else:
            version = await asyncio.to_thread(partial(self._version, folders))
            if version == known:
                return web.Response(status=UNCHANGED)
            answer = await self._answers.get(("update", *folders), version, partial(self._runs_update, folders))
        if answer.version == known:
            return web.Response(status=UNCHANGED)
        return web.Response(body=answer.body, content_type="application/json", charset="utf-8")

    async def _curves(self, request: web.Request) -> web.Response:
        """Answer with the curves of runs, which the list of the runs shows below it."""
        folders = self._chosen(request)
        version = await asyncio.to_thread(partial(self._version, folders))
        answer = await self._answers.get(("curves", *folders), version, partial(self._curves_of, folders))
        return web.Response(body=answer.body, content_type="application/json", charset="utf-8")

    async def _points(self, request: web.Request) -> web.Response:
        """Answer with the points of a chart between two steps, or with all that a file may have."""
        first, last = (request.query.get(name, "") for name in ("from", "to"))
        everything = "all" in request.query
        if not everything and not (_is_count(first) and _is_count(last)):
            raise web.HTTPBadRequest(text="There are no points there: from and to are steps.")
        between = (0, MOST_STEPS) if everything else (int(first), int(last))
        most = MOST_POINTS_IN_FILE if everything else MOST_POINTS
        make = partial(self._points_of, self._chosen(request), request.query.get("chart", ""), *between, most)
        return web.Response(body=await asyncio.to_thread(make), content_type="application/json", charset="utf-8")

    async def _lines(self, request: web.Request) -> web.Response:
        """Answer with a part of a file of lines: the last, or the one that ends before a byte."""
        folder, name, before = (request.query.get(each, "") for each in ("run", "file", "before"))
        if before and not _is_count(before):
            raise web.HTTPBadRequest(text="There are no lines before that.")
        page = await asyncio.to_thread(partial(self._lines_page, folder, name, int(before) if before else None))
        return _html(page.encode("utf-8", "replace"))

    async def _report(self, request: web.Request) -> web.Response:
        """Answer with one HTML file that shows runs, to be sent to others."""
        folders = self._chosen(request)
        if not folders:
            raise web.HTTPSeeOther("./")
        page = await asyncio.to_thread(partial(self._report_page, folders))
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(folders))[:LONGEST_NAME].strip("-.") or "run"
        headers = {"Content-Disposition": f'attachment; filename="{name}.html"'}
        answer = _html(page.encode("utf-8", "replace"))
        answer.headers.update(headers)
        return answer

    async def _media(self, request: web.Request) -> web.Response:
        """Answer with the file of a medium of a run: an image, audio, or a document of what a script shows as text."""
        folder, name, kind = (request.query.get(each, "") for each in ("run", "file", "kind"))
        try:
            data, kind = await asyncio.to_thread(partial(self._medium, folder, name, kind))
        except OSError as error:
            raise web.HTTPNotFound(text="There is no such file of media.") from error
        return web.Response(body=data, content_type=kind)

    async def _command(self, request: web.Request) -> web.Response:
        """Write a command into the folder of a run, and answer with its number. The run reports what becomes of it."""
        document = await self._posted(request)
        try:
            sequence = await asyncio.to_thread(partial(self._give, document))
        except ConfigurationError as error:
            raise web.HTTPConflict(text=str(error)) from error
        return web.json_response({"sequence": sequence})

    async def _label(self, request: web.Request) -> web.Response:
        """Change the tags or notes of runs, in their folders, and answer with how many were changed."""
        document = await self._posted(request)
        try:
            changed = await asyncio.to_thread(partial(self._change, document))
        except ConfigurationError as error:
            raise web.HTTPConflict(text=str(error)) from error
        return web.json_response({"changed": changed})

    async def _posted(self, request: web.Request) -> object:
        """Return the JSON document of a request."""
        if request.content_type != "application/json":  # a page of another site cannot send this without asking
            raise web.HTTPUnsupportedMediaType(text="A request to change something is a JSON document.")
        try:
            return read_json(await request.read())
        except ValueError as error:
            raise web.HTTPBadRequest(text=f"The request cannot be read: {error}.") from error

    async def _asset(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in ("report.css", *LIST_STYLES, *SCRIPTS, *OF_A_SEARCH, *OF_THE_LIST):
            raise web.HTTPNotFound
        kind = "text/css" if name.endswith(".css") else "text/javascript"
        return web.Response(text=asset(asset_path(name)), content_type=kind, charset="utf-8")

    def _chosen(self, request: web.Request) -> list[str]:
        return list(dict.fromkeys(request.query.getall("run", [])))

    def warm(self) -> None:
        """Read the ends of all runs, so that the list is complete when it is opened."""
        with suppress(OSError):
            while not self._runs.listing(PIECE / 2).is_complete:
                time.sleep(PIECE / 4)  # for pages that are asked for meanwhile

    def _listing(self, seconds: float = PIECE) -> Listing:
        listing = self._runs.listing(seconds)
        self._table.update(listing, time.time())
        return listing

    def _list_page(self) -> tuple[str, str]:
        listing, now = self._listing(PIECE / 2), time.time()
        content = list_content(self.root, listing, now)
        version = self._list_version(searches_sections(self.root, listing, now))
        if len(listing.runs) <= MOST_IN_PAGE:  # these rows need no further request
            content = evolve(content, document={**content.document, "table": json.loads(self._table.document())})
        else:
            version = NO_VERSION
        return version, list_page(content, version)

    def _list_version(self, searches: Sequence[Section]) -> str:
        shown = "".join(str(each.content) for each in searches)
        return f"{self._table.version}.{hashlib.blake2b(shown.encode('utf-8', 'replace'), digest_size=8).hexdigest()}"

    def _list_update(self, known: str) -> tuple[str, str]:
        listing = self._listing()
        searches = searches_sections(self.root, listing, time.time())
        sections, version = {each.identifier: str(each.content) for each in searches}, self._list_version(searches)
        if version == known:
            return version, ""
        facts = json.dumps({"version": version, "sections": sections})
        table = self._table.document(known.rpartition(".")[0])
        return version, f'{facts[:-1]}, "document": {{"runs": [], "charts": [], "table": {table}}}}}'

    def _page(self, folders: list[str]) -> tuple[str, str]:
        version = self._version(folders)
        return version, runs_page(self._content(folders), folders, version)

    def _runs_update(self, folders: list[str]) -> tuple[str, str]:
        version = self._version(folders)
        return version, json.dumps(update_of(self._content(folders), version))

    def _curves_of(self, folders: list[str]) -> tuple[str, str]:
        version = self._version(folders)
        return version, json.dumps(update_of(self._runs.show(folders, curves_alone), version, frozenset()))

    def _search_page(self, folder: str) -> tuple[str, str]:
        version = self._search_version(folder)
        return version, board_search_page(self._search_content(folder), folder, version)

    def _search_update(self, folder: str) -> tuple[str, str]:
        version = self._search_version(folder)
        return version, json.dumps(update_of(self._search_content(folder), version))

    def _search_content(self, folder: str) -> PageContent:
        search = self._runs.search(folder)
        self._runs.listing()  # its newest trials may not be listed yet
        return search_content(search, trial_addresses(folder, search, self._runs.is_listed))

    def _search_version(self, folder: str) -> str:
        try:
            return self._runs.search_version(folder)
        except ConfigurationError:
            self._runs.listing()
            return self._runs.search_version(folder)

    def _version(self, folders: list[str]) -> str:
        self._know(folders)
        return self._runs.version(folders)

    def _lines_page(self, folder: str, name: str, before: int | None) -> str:
        self._know([folder])
        path = self._runs.path(folder)
        if name not in files_with_lines(path):
            raise ConfigurationError(f"The run {folder} has no file {name!r:.200} with lines to show.")
        return lines_page(lines_content(folder, name, last_lines(path / name, before)), folder)

    def _give(self, document: object) -> int:
        folder = document.get("folder") if isinstance(document, dict) else None
        self._know([folder] if isinstance(folder, str) else [])
        return give_command(self._runs, document, time.time())

    def _change(self, document: object) -> int:
        folders = document.get("folders") if isinstance(document, dict) else None
        self._know([each for each in folders if isinstance(each, str)] if isinstance(folders, list) else [])
        return label_runs(self._runs, document)

    def _report_page(self, folders: list[str]) -> str:
        self._know(folders)
        return self._runs.show(folders, lambda records: report_page(records, time.time()))

    def _medium(self, folder: str, name: str, kind: str) -> tuple[bytes, str]:
        self._know([folder])
        return file_shown(self._runs.path(folder), name, kind)

    def _content(self, folders: list[str]) -> PageContent:
        now = time.time()

        def build(records: list[RunRecord]) -> PageContent:
            return with_controls(content_of(records, now, folders), folders, records, now)

        content = self._runs.show(folders, build)
        return with_last_lines(content, folders[0], self._runs.path(folders[0])) if len(folders) == 1 else content

    def _points_of(self, folders: list[str], title: str, first: int, last: int, most: int) -> bytes:
        self._know(folders)
        found = self._runs.show(folders, lambda records: finer_points(records, title, first, last, most))
        return json.dumps({"curves": found}).encode("utf-8", "replace")

    def _know(self, folders: list[str]) -> None:
        """Look for the runs in these folders, as one may have started, or not be listed yet."""
        for folder in folders[:MOST_NAMED]:
            self._runs.know(folder)


async def serve(board: Board, port: int, started: Callable[[str], None]) -> None:
    """Answer requests until cancelled. started: called with the address once it is reachable.

    port: 0 chooses a free one. Raises ConfigurationError if the port cannot be used.
    """
    runner = web.AppRunner(board.application(), access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, HOST, port)
        try:
            await site.start()
        except OSError as error:
            raise ConfigurationError(
                f"The board cannot be reached at port {port} ({error.strerror}); choose another one with --port."
            ) from error
        started(f"http://{HOST}:{runner.addresses[0][1]}/{board.token}/")
        Thread(target=board.warm, daemon=True).start()
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 19


def _html(page: bytes) -> web.Response:
    return web.Response(body=page, content_type="text/html", charset="utf-8")
