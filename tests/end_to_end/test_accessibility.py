"""axe finds nothing on the pages that show runs, in both themes and on a phone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hexloop.app.command_line import main
from tests.axe import accessibility_problems, needs_axe
from tests.browser import Browser, browser, needs_browser
from tests.end_to_end.test_board import board
from tests.end_to_end.test_report_in_browser import write_run

pytestmark = [needs_browser, needs_axe]

SHOWN_AS = pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
REVEALED = """
document.querySelectorAll('details').forEach(details => { details.open = true; });
"""
"""What is folded away is a part of the page, too."""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Return a browser for all tests of this file."""
    with browser(tmp_path_factory.mktemp("browser")) as started:
        yield started


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two runs, which were stopped and resumed, and saved checkpoints."""
    folder = tmp_path_factory.mktemp("runs")
    for name, rate in (("one", 0.002), ("two", 0.004)):
        write_run(folder / name, name, rate)
    return folder


def problems_of(chromium: Browser, page: Path | str, width: int, scheme: str) -> list[str]:
    """Open a page and return what axe finds once its charts are drawn and its details are open."""
    chromium.resize(width, 900)
    chromium.prefer(scheme)
    chromium.open(page)
    chromium.run(REVEALED)
    chromium.settle()
    return accessibility_problems(chromium)


@pytest.mark.matrix
@SHOWN_AS
def test_a_report_is_accessible(chromium: Browser, runs: Path, tmp_path: Path, width: int, scheme: str) -> None:
    """A report on two runs."""
    page = tmp_path / "report.html"
    assert main(["report", str(runs / "one"), str(runs / "two"), "--out", str(page)]) == 0
    assert problems_of(chromium, page, width, scheme) == []


@pytest.mark.matrix
@SHOWN_AS
@pytest.mark.parametrize("path", ["", "runs?run=one", "runs?run=one&run=two"], ids=["list", "run", "comparison"])
def test_a_board_is_accessible(chromium: Browser, runs: Path, path: str, width: int, scheme: str) -> None:
    """The list of runs, a run and two runs."""
    with board(runs) as address:
        assert problems_of(chromium, f"{address}{path}", width, scheme) == []
        chromium.open("about:blank")


def test_problems_are_found(chromium: Browser, tmp_path: Path) -> None:
    """A page without a language, with an image without text and with faint words has three problems and more."""
    page = tmp_path / "page.html"
    page.write_text('<h1>Title</h1><img src="data:,"><p style="color: #eee; background: #fff">faint</p>')
    found = "\n".join(problems_of(chromium, page, 1280, "light"))
    assert "html-has-lang (serious)" in found
    assert "image-alt (critical)" in found
    assert "color-contrast (serious)" in found
