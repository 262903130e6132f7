"""The board in a real browser: opened, compared, kept up to date, without errors, on wide and narrow screens."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError

import pytest

from tests.browser import CHROMIUM, DRIVER, INSTALL, Browser, browser
from tests.end_to_end.test_board import begin, board, note

pytestmark = pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason=INSTALL)

LAST_POINT = """
const plot = echarts.getInstanceByDom(document.getElementById('chart-0'));
const points = plot.getOption().series[0].data;
return points[points.length - 1];
"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Return a browser for all tests of this file."""
    with browser(tmp_path_factory.mktemp("browser")) as started:
        yield started


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with two runs."""
    begin(tmp_path / "runs" / "one", steps=20)
    begin(tmp_path / "runs" / "two", steps=30)
    return tmp_path / "runs"


def open_curves(chromium: Browser, address: str) -> None:
    chromium.open(address)
    chromium.run("scrollTo(0, document.getElementById('curves').offsetTop)")
    chromium.wait_for("document.querySelectorAll('#chart-0 canvas').length > 0")


def shows(chromium: Browser, text: str) -> bool:
    """Return whether the page has a text; a page that is being loaded has none."""
    try:
        return bool(chromium.run("return document.body.textContent.includes(arguments[0])", text))
    except HTTPError:
        return False


def test_runs_are_opened_compared_and_watched(chromium: Browser, runs: Path) -> None:
    """By its links and its form. A run that starts appears, and a point that is logged is drawn, without a reload."""
    with board(runs) as address:
        chromium.console()
        chromium.open(address)
        begin(runs / "three")
        chromium.wait_for("document.body.textContent.includes('three')")

        chromium.run("document.querySelectorAll('input[name=run]').forEach(box => { box.checked = true; })")
        chromium.run("document.querySelector('form button').click()")
        chromium.wait_for("document.querySelector('h1')?.textContent.startsWith('3 runs')")

        open_curves(chromium, f"{address}runs?run=two")
        chromium.run("window.kept = true")
        note(runs / "two", kind="logged", step=31, values={"loss": 0.125})
        chromium.wait_for("document.querySelector('#runs .content').textContent.includes('31 of 100')")
        chromium.settle()
        assert chromium.run(LAST_POINT) == [31, 0.125]
        assert chromium.run("return window.kept") is True
        assert chromium.console() == []


def test_a_new_curve_appears(chromium: Browser, runs: Path) -> None:
    """The page is loaded again when a run logs a value of a new name."""
    with board(runs) as address:
        open_curves(chromium, f"{address}runs?run=one")
        for step in (21, 22):  # a single value has no curve
            note(runs / "one", kind="logged", step=step, values={"tokens_kept": 0.5 * step})
        until = time.monotonic() + 30
        while not shows(chromium, "tokens_kept"):
            assert time.monotonic() < until
            time.sleep(0.1)


def test_chosen_runs_stay_chosen(chromium: Browser, runs: Path) -> None:
    """While the list is brought up to date."""
    with board(runs) as address:
        chromium.open(address)
        chromium.run("document.querySelector('input[value=one]').checked = true")
        begin(runs / "three")
        chromium.wait_for("document.body.textContent.includes('three')")
        assert chromium.run("return document.querySelector('input[value=one]').checked") is True


def test_a_board_that_ended_is_told(chromium: Browser, runs: Path) -> None:
    """The page stays, and says that it is not up to date."""
    with board(runs) as address:
        chromium.open(address)
    chromium.wait_for("document.getElementById('live').textContent.startsWith('Not up to date')")
    assert "one" in chromium.run("return document.body.textContent")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_pages_fit_the_screen(chromium: Browser, runs: Path, width: int, scheme: str) -> None:
    """In both themes: nothing is wider than the window, and text differs from its background."""
    with board(runs) as address:
        chromium.resize(width, 800)
        chromium.prefer(scheme)
        for path in ("", "runs?run=one&run=two"):
            chromium.open(address + path)
            chromium.wait_for(f"document.documentElement.scrollWidth <= {width}")  # once charts have their size
            ink, paper = chromium.run(
                "const style = getComputedStyle(document.body); return [style.color, style.backgroundColor];"
            )
            assert ink != paper
