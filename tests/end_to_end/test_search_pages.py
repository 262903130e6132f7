"""Searches on the board and in reports: which pages there are, what they link to, and how they look in a browser."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hexloop.app.command_line import main
from hexloop.domain.folders import Folder
from hexloop.domain.search.records import LINES, RecordedTrial, SearchDefinition, SearchLog
from hexloop.ports.search import TrialState
from tests.browser import Browser, needs_browser
from tests.end_to_end.report_page import ReportPage
from tests.end_to_end.test_board import begin, board, get

HOSTILE = "<img src=x onerror='window.attacked=1'>"
STATES = [TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAILED]


def trial(number: int, ended: bool = True) -> RecordedTrial:
    """Return a trial with parameters of every kind, which depend on its number."""
    parameters = {
        "learning_rate": 10.0 ** -(number % 5),
        "per_device_train_batch_size": 2 ** (number % 3),
        "optim": ["adamw", "sgd", HOSTILE][number % 3],
        "model.dropout": 0.01 * number,
    }
    found = RecordedTrial(number, f"run-{number}", str(number), parameters, {}, {})
    found.reports = {10 * step: (1 / (step + number % 7),) for step in (1, 2, 3)}
    if ended:
        found.state = STATES[0 if number % 4 else number % 3]
        found.values = found.reports[30] if found.state is TrialState.COMPLETE else None
        found.reason, found.seconds = (HOSTILE if found.state is TrialState.FAILED else None), 3.5
    return found


def record(log: SearchLog, each: RecordedTrial) -> None:
    """Write what happened in a trial."""
    log.proposed(each, None)
    for step, values in each.reports.items():
        log.reported(each.number, step, values, False)
    if each.state is not None:
        log.ended(each, None)


def write(folder: Path, count: int = 16, directions: tuple[str, ...] = ("minimize",)) -> Path:
    """Write a search of trials whose runs are there as well, the last one of which trains."""
    folder.mkdir(parents=True)
    log = SearchLog(Folder(str(folder)))
    log.start(SearchDefinition("optuna", list(directions), count + 4, 0))
    for number in range(count):
        record(log, trial(number, number < count - 1))
        begin(folder / f"run-{number}", steps=3)
    log.close()
    return folder


def test_the_report_of_a_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Goes into its folder; with --out elsewhere. Several folders are refused, as there is a page for each search."""
    folder = write(tmp_path / "search")
    assert main(["report", str(folder)]) == 0
    page = ReportPage(folder / "report.html")
    page.check_policy()
    assert page.title == "Search search - hexloop"
    assert len(page.tables["Trials"]) == 17
    assert f"The report is in {folder / 'report.html'}" in capsys.readouterr().out
    assert main(["report", str(folder), "--out", str(tmp_path / "a.html")]) == 0
    assert (tmp_path / "a.html").stat().st_mode & 0o077 == 0
    assert main(["report", str(folder), str(folder / "run-1"), "--out", str(tmp_path / "b.html")]) == 2
    assert "name it alone" in capsys.readouterr().err
    assert main(["report", str(folder / "run-1")]) == 0


def test_the_board_lists_searches(tmp_path: Path) -> None:
    """With a page for each, which links to the pages of its trials. Other folders are not read."""
    write(tmp_path / "group" / "search")
    outside = write(tmp_path.parent / f"{tmp_path.name}-outside", 2)
    (tmp_path / "linked").symlink_to(outside)
    with board(tmp_path) as address:
        status, text, _ = get(address)
        assert status == 200
        assert "searches?search=group%2Fsearch" in text
        assert "15 of 20" in text
        assert "linked" not in text
        status, text, headers = get(address, "searches?search=group%2Fsearch")
        assert status == 200
        assert "script-src 'self'" in headers["Content-Security-Policy"]
        assert 'href="runs?run=group%2Fsearch%2Frun-3"' in text
        assert HOSTILE not in text
        assert get(address, "runs?run=group%2Fsearch%2Frun-3")[0] == 200
        assert get(address, "assets/trials.js")[0] == 200
        for wrong in ("linked", "..", "group", f"../{outside.name}"):
            assert get(address, f"searches?search={wrong}")[0] == 404
            assert get(address, f"updates?search={wrong}")[0] == 404
        assert get(address, "searches")[0] == 303


@pytest.fixture
def chromium(one_browser: Browser) -> Browser:
    """Return the browser with an empty page."""
    one_browser.open("about:blank")
    one_browser.console(), one_browser.requests()
    return one_browser


POINTS = """
const plot = echarts.getInstanceByDom(document.getElementById(arguments[0]));
return plot.getOption().series.map(each => each.data.length);
"""


@needs_browser
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_charts_of_a_report(chromium: Browser, tmp_path: Path, scheme: str, width: int) -> None:
    """All are drawn, without errors or requests, and fit the screen; other scales and colours draw them again."""
    folder = write(tmp_path / "search")
    assert main(["report", str(folder)]) == 0
    chromium.resize(width, 900)
    chromium.prefer(scheme)
    chromium.open(folder / "report.html")
    for name in ("objective-chart", "parallel", "heat-map", "slice-0", "slice-3"):
        chromium.wait_for(f"document.querySelectorAll('#{name} canvas').length > 0")
    best, complete, pruned, running = chromium.run(POINTS, "objective-chart")
    assert (complete, pruned, running) == (13, 1, 1)
    assert best == complete
    assert chromium.run(POINTS, "slice-0") == [15]
    picture = "return document.querySelector('#objective-chart canvas').toDataURL()"
    before = chromium.run(picture)
    chromium.run("document.getElementById('objective-logarithmic').click()")
    chromium.settle()
    assert chromium.run(picture) != before
    assert chromium.run("return document.documentElement.scrollWidth <= innerWidth")
    assert chromium.run("return [window.attacked ?? null, document.images.length]") == [None, 0]
    assert chromium.console() == []
    requests = [each for each in chromium.requests() if not each.startswith(("data:", "about:"))]
    assert requests == [(folder / "report.html").as_uri()]
    if pictures := os.environ.get("SCREENSHOTS"):
        chromium.screenshot(Path(pictures) / f"search-{scheme}-{width}.png")


@needs_browser
def test_two_objectives_in_a_browser(chromium: Browser, tmp_path: Path) -> None:
    """The chart has the one that is chosen, and another one has both."""
    folder = tmp_path / "search"
    folder.mkdir()
    log = SearchLog(Folder(str(folder)))
    log.start(SearchDefinition("optuna", ["minimize", "maximize"], 9, 0))
    for number in range(6):
        each = trial(number)
        each.reports, each.state, each.values = {}, TrialState.COMPLETE, (1.0 + number, 2.0 * number)
        record(log, each)
    log.close()
    assert main(["report", str(folder)]) == 0
    chromium.resize(1280, 900)
    chromium.open(folder / "report.html")
    chromium.wait_for("document.querySelectorAll('#front-chart canvas').length > 0")
    assert chromium.run(POINTS, "front-chart") == [6]
    chromium.run(
        "const box = document.getElementById('objective-of'); box.value = '1'; box.dispatchEvent(new Event('change'))"
    )
    option = "return echarts.getInstanceByDom(document.getElementById('objective-chart')).getOption()"
    assert chromium.run(f"{option}.yAxis[0].name") == "objective 2"
    assert chromium.run(f"{option}.series[1].data.map(each => each.value[1])") == [0, 2, 4, 6, 8, 10]
    assert chromium.console() == []


@pytest.mark.matrix
@needs_browser
def test_a_page_follows_the_search(chromium: Browser, tmp_path: Path) -> None:
    """A trial that ends is in the charts and the table without a reload; a new trial appears."""
    folder = write(tmp_path / "search", 6)
    with board(tmp_path) as address:
        chromium.resize(1280, 900)
        chromium.open(address)
        chromium.run("document.getElementById('search-0').click()")
        chromium.wait_for("document.querySelectorAll('#objective-chart canvas').length > 0")
        states = "Array.from(document.querySelectorAll('#trials tbody .status'), each => each.textContent)"
        assert chromium.run(f"return {states}").count("running") == 1
        chromium.run("window.kept = true")
        log = SearchLog(Folder(str(folder)))
        log.resume()
        ended = trial(5)
        ended.state, ended.values = TrialState.COMPLETE, (0.001,)
        log.ended(ended, None)
        chromium.wait_for(f"!{states}.includes('running')")
        assert chromium.run("return document.querySelector('#overview').textContent.includes('5, with 0.001')")
        record(log, trial(6, False))
        log.close()
        chromium.wait_for(f"document.body && {states}.includes('running')")
        assert chromium.run("return document.querySelectorAll('#trials tbody tr').length") == 7
        assert chromium.console() == []
    assert (folder / LINES).exists()
