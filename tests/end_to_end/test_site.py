"""The site as it is built: its links, its search, what axe finds on it, and that every page can be reached."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urldefrag, urlsplit

import pytest
import yaml

import hexloop
from tests.axe import accessibility_problems, needs_axe
from tests.browser import REQUIRED, Browser, browser, needs_browser
from tests.end_to_end.pages import ROOT

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.skipif(
        find_spec("zensical") is None and os.environ.get(REQUIRED) != "required",
        reason="needs the extra docs: make docs installs it",
    ),
]

SOURCE = (*("docs", "src", "app", "domain", "ports", "adapters"), "mkdocs.yml", "CHANGELOG.md")
"""What the site is built from."""

SEARCH = """
const root = [...document.querySelectorAll('*')].find(each => each.shadowRoot?.querySelector('input'))?.shadowRoot;
"""
"""Sets `root` to where the generator puts its search; undefined until it is loaded."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site strictly from a copy of its sources, and return its folder."""
    folder = tmp_path_factory.mktemp("project")
    for name in SOURCE:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, symlinks=True)
        else:
            shutil.copy(ROOT / name, folder)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout[-5000:] + built.stderr[-5000:]
    return folder / "site"


class Silent(SimpleHTTPRequestHandler):
    """Serves files without writing about it."""

    def log_message(self, *_: object) -> None:
        """Do nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on this machine, and return its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(folder)))
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Return the address at which the site is served."""
    with served(site) as found:
        yield found


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Return a browser for all tests of this file."""
    with browser(tmp_path_factory.mktemp("browser")) as started:
        yield started


class Page(HTMLParser):
    """The addresses that a page refers to, and the anchors that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.references: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag refers to and how it is referred to."""
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.references.append(value)
            elif value and (name == "id" or (name == "name" and tag == "a")):
                self.anchors.add(value)


def broken_references(site: Path) -> list[str]:
    """Return every reference within the site to a file or an anchor that it does not have."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    broken = []
    for path, page in pages.items():
        for reference in page.references:
            address, anchor = urldefrag(reference)
            if path.name == "404.html" or urlsplit(address).scheme or address.startswith("//"):
                continue
            target = (path.parent / unquote(urlsplit(address).path)).resolve() if address else path
            target = target / "index.html" if target.is_dir() else target
            known = pages.get(target)
            if not target.is_file() or (anchor and known is not None and unquote(anchor) not in known.anchors):
                broken.append(f"{path.relative_to(site)}: {reference}")
    return broken


def test_every_link_image_and_anchor_exists(site: Path) -> None:
    """Of all pages, those of the API reference included."""
    assert broken_references(site) == []


def test_broken_references_are_found(tmp_path: Path) -> None:
    """A page, an image and an anchor that do not exist."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "index.html").write_text('<h1 id="title">Other</h1>')
    (tmp_path / "index.html").write_text(
        '<a href="other/#title">good</a><a href="https://example.org">elsewhere</a><a href="#top">up</a>'
        '<h1 id="top">Home</h1><a href="other/#none"></a><a href="gone/"></a><img src="gone.png">'
    )
    assert [each.partition(": ")[2] for each in broken_references(tmp_path)] == ["other/#none", "gone/", "gone.png"]


def listed(entries: object) -> Iterator[str]:
    """Yield the pages of a navigation, at any depth."""
    if isinstance(entries, str):
        yield entries
    elif isinstance(entries, dict):
        for entry in entries.values():
            yield from listed(entry)
    elif isinstance(entries, list):
        for entry in entries:
            yield from listed(entry)


def settings() -> dict[str, object]:
    """Return the settings of the site."""
    read = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert isinstance(read, dict)
    return read


def test_every_page_is_in_the_navigation_once() -> None:
    """Pages that are not in it cannot be found, and have no previous and next."""
    docs = ROOT / "docs"
    written = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")} - {"examples/README.md"}
    shown = list(listed(settings()["nav"]))
    assert sorted(shown) == sorted(written)


def test_pages_show_the_version_and_their_neighbors(site: Path) -> None:
    """The version is that of the package; the first and the last page have one neighbor."""
    text = (site / "start" / "index.html").read_text(encoding="utf-8")
    assert f"hexloop {hexloop.__version__}," in text
    assert re.search(r'class="[^"]*md-footer__link--prev', text)
    assert re.search(r'class="[^"]*md-footer__link--next', text)


def test_the_repository_is_linked_where_it_is_known() -> None:
    """The site links to the address that the package states, and to none if it states none."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert settings().get("repo_url") == project.get("urls", {}).get("Repository")


@needs_browser
@pytest.mark.parametrize(
    ("words", "answers"),
    [
        ("out of memory", ["troubleshooting/#out-of-memory"]),
        ("nan", ["troubleshooting/#nan-loss"]),
        ("cancel", ["embedding/#cancel-a-run", "cookbook/#cancel-a-run-from-another-thread"]),
        ("lora", ["peft/"]),
        ("mixed precision", ["formats/"]),
        ("hangs", ["troubleshooting/#hangs-and-timeouts"]),
        ("disk full", ["troubleshooting/#disk-full"]),
        ("notebook", ["notebook/"]),
    ],
)
def test_a_search_finds_the_page_that_answers_first(
    chromium: Browser, address: str, words: str, answers: list[str]
) -> None:
    """By the search of the site itself, as a reader types it."""
    chromium.open(address)
    chromium.run("document.querySelector('button.md-search__button').click()")
    chromium.wait_for(f"(() => {{ {SEARCH} return root; }})()")
    chromium.run(
        f"{SEARCH} const input = root.querySelector('input');"
        "Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set.call(input, arguments[0]);"
        "input.dispatchEvent(new Event('input', {bubbles: true}));",
        words,
    )
    expected = [address + answer for answer in answers]
    until, first = time.monotonic() + 60, ""
    while first not in expected and time.monotonic() < until:  # results are replaced as words are typed
        links = chromium.run(f"{SEARCH} return [...root.querySelectorAll('a')].map(link => link.href);")
        first = re.sub(r"\?h=[^#]*", "", links[0]) if links else ""
        chromium.settle()
    assert first in expected


@needs_browser
def test_a_link_to_an_argument_opens_its_group(chromium: Browser, address: str) -> None:
    """The groups are folded until then; a link within the page opens another one."""
    chromium.open(address)
    chromium.open(f"{address}arguments/#learning_rate")
    opened = "[...document.querySelectorAll('details.arguments[open]')]"
    chromium.wait_for(f"{opened}.length === 1 && {opened}[0].querySelector('#learning_rate')")
    chromium.run("location.hash = 'save_steps'")
    chromium.wait_for(f"{opened}.some(group => group.querySelector('#save_steps'))")
    assert chromium.run(f"return {opened}.length") == 2


HIGHEST = 16_000
"""Pixels of an API page, in a window that is 1,280 pixels wide."""


@needs_browser
def test_pages_of_the_reference_are_of_readable_length(chromium: Browser, address: str) -> None:
    """What belongs together is on one page, and not everything."""
    chromium.resize(1280, 900)
    heights = {}
    for page in reference_pages():
        chromium.open(f"{address}{page.removesuffix('index.md').removesuffix('.md')}")
        heights[page] = chromium.run("return document.documentElement.scrollHeight")
    assert {page: height for page, height in heights.items() if height > HIGHEST} == {}
    assert len(heights) > 30


def reference_pages() -> list[str]:
    """Return the pages of the API reference."""
    navigation = settings()["nav"]
    assert isinstance(navigation, list)
    return [page for section in navigation if "Reference" in section for page in listed(section)]


@needs_browser
@needs_axe
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
@pytest.mark.parametrize("path", ["", "api/trainer/", "api/ports/", "arguments/", "troubleshooting/"])
def test_the_site_is_accessible(chromium: Browser, address: str, path: str, width: int, scheme: str) -> None:
    """Its home page, pages of the API, and a page of text, in both themes and on a phone."""
    chromium.resize(width, 900)
    chromium.prefer(scheme)
    chromium.open(address)
    chromium.run("localStorage.clear()")  # which keeps the theme
    chromium.console()
    chromium.open(address + path)
    chromium.settle()
    assert chromium.run("return document.body.dataset.mdColorScheme") == {"light": "default", "dark": "slate"}[scheme]
    assert accessibility_problems(chromium) == []
    assert [line for line in chromium.console() if "favicon" not in line] == []
