"""The curves of one run in a real browser: zoomed, over other axes, smoothed, and as files."""

from __future__ import annotations

import csv
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hexloop.app.command_line import main
from tests.browser import Browser, needs_browser
from tests.end_to_end.recorded_run import SPIKE, record_run
from tests.end_to_end.test_board import board

pytestmark = needs_browser

STEPS, LONG = 3_000, 20_000

FIGURE = (
    "const figure = Array.from(document.querySelectorAll('figure.plot')).find(each => "
    "each.querySelector('figcaption strong').textContent === arguments[0]);"
)
OF_CHART = f"{FIGURE} const plot = echarts.getInstanceByDom(figure.querySelector('.chart'));"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the report of a run."""
    folder = record_run(tmp_path_factory.mktemp("runs") / "run", STEPS)
    assert main(["report", str(folder)]) == 0
    return folder / "report.html"


@pytest.fixture
def chromium(one_browser: Browser, page: Path) -> Browser:
    """Return the browser at the report, with nothing remembered of earlier tests."""
    one_browser.resize(1280, 900)
    one_browser.open(page)
    one_browser.run("sessionStorage.clear()")
    open_at(one_browser, page)
    one_browser.console()
    return one_browser


def open_at(chromium: Browser, page: Path | str) -> None:
    chromium.open(page)
    chromium.wait_for("document.querySelectorAll('#chart-1 canvas').length > 0")


def choose(chromium: Browser, name: str, value: str) -> None:
    """Set a control to a value, as a user does."""
    chromium.run(
        "const box = document.getElementById(arguments[0]); box.value = arguments[1];"
        "box.dispatchEvent(new Event(box.tagName === 'SELECT' ? 'change' : 'input'));",
        name,
        value,
    )
    chromium.settle()


def axis(chromium: Browser, title: str) -> tuple[str, float, float]:
    """Return what a drawn chart is drawn over, from where to where."""
    name, first, last = chromium.run(
        f"{OF_CHART} const axis = plot.getOption().xAxis[0]; return [axis.name, axis.min, axis.max];", title
    )
    return name, first, last


def points(chromium: Browser, title: str, series: int = 0) -> list[list[float]]:
    """Return the points of a drawn curve, without the edges of a zoom."""
    found = chromium.run(f"{OF_CHART} return plot.getOption().series[arguments[1]].data;", title, series)
    return [each for each in found if isinstance(each, list)]


def test_curves_are_in_the_first_screen(chromium: Browser) -> None:
    """Of a run: whole charts, without scrolling, below its state and progress."""
    bottom = chromium.run("return document.getElementById('chart-0').getBoundingClientRect().bottom")
    assert bottom < 900
    assert "3,000 of 3,000 (100%)" in chromium.run("return document.querySelector('#runs').textContent")
    assert chromium.run("return document.querySelector('#runs progress').value") == 100


def test_a_drag_zooms_all_charts(chromium: Browser) -> None:
    """To the steps under it; a double click shows all again, and charts apart zoom alone."""
    chromium.drag("#chart-1", 0.6, 0.7)
    name, first, last = axis(chromium, "grad_norm")
    assert (name, axis(chromium, "loss")) == ("step", ("step", first, last))
    assert 1700 < first < 2000 < last < 2300
    assert [2000, SPIKE] in points(chromium, "grad_norm")
    assert all(first <= step <= last for step, _ in points(chromium, "loss"))
    chromium.run(
        "document.getElementById('chart-1').dispatchEvent(new MouseEvent('dblclick', {bubbles: true}));"
        "document.getElementById('together').click()"
    )
    assert axis(chromium, "loss") == ("step", 1, STEPS)
    chromium.drag("#chart-1", 0.2, 0.4)
    assert axis(chromium, "loss") == ("step", 1, STEPS)
    assert axis(chromium, "grad_norm")[2] < STEPS
    chromium.run("document.getElementById('show-all').click()")
    assert axis(chromium, "grad_norm") == ("step", 1, STEPS)
    assert chromium.run("return document.getElementById('show-all').hidden")
    assert chromium.console() == []


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("over", "name", "last"),
    [
        ("time", "time since the start", STEPS),
        ("samples", "samples", 8 * STEPS),
        ("tokens", "tokens", 1000 * STEPS),
        ("epoch", "epoch", STEPS / 1000),
    ],
)
def test_other_axes(chromium: Browser, over: str, name: str, last: float) -> None:
    """Every chart is drawn over the chosen axis, also those of the system; it is kept when the page is loaded again."""
    choose(chromium, "axis", over)
    assert axis(chromium, "loss")[0] == name
    assert points(chromium, "loss")[-1][0] == pytest.approx(last)
    title = "CPU use of the machine"
    chromium.run(f"{FIGURE} figure.scrollIntoView({{behavior: 'instant'}})", title)
    chromium.wait_for(
        f"(function () {{ {FIGURE.replace('arguments[0]', repr(title))} return figure.querySelector('canvas'); }})()"
    )
    assert axis(chromium, title)[0] == name
    assert points(chromium, title)[-1][0] == pytest.approx(last * 199 / 200, rel=0.01)
    open_at(chromium, chromium.run("return location.href"))
    assert axis(chromium, "loss")[0] == name
    assert chromium.console() == []


def test_smoothing_depends_on_the_axis_and_not_on_the_points(chromium: Browser) -> None:
    """A mean of the last values; the curve as logged stays behind it."""
    choose(chromium, "smoothing", "90")
    assert points(chromium, "loss", 0)[:2] == chromium.run(
        "return hexloop.data().charts[0].curves[0].points.slice(0, 2)"
    )
    smoothed = [value for _, value in points(chromium, "loss", 1)]
    jumps = [abs(one - other) for one, other in pairwise(smoothed[100:])]
    assert max(jumps) < 0.03  # those of the values are 0.1
    coarse, fine = chromium.run(
        "const value = x => Math.sin(x / 300); const make = step => Array.from({length: 3000 / step}, "
        "(_, number) => [number * step, value(number * step)]);"
        "return [10, 1].map(step => { const all = make(step);"
        "return curves.smooth(all, 0.95, curves.spacing(all, 3000)).filter(each => each[0] === 2000)[0][1]; });"
    )
    assert coarse == pytest.approx(fine, abs=0.03)


def test_the_range_of_values(chromium: Browser) -> None:
    """Is chosen in the menu of a chart, which Escape closes."""
    chromium.run(
        "const menu = document.querySelector('.menu[data-chart=chart-1]'); menu.querySelector('summary').click();"
        "const field = menu.querySelector('.highest'); field.value = '3'; field.dispatchEvent(new Event('input'));"
        "field.focus()"
    )
    assert chromium.run(f"{OF_CHART} return plot.getOption().yAxis[0].max", "grad_norm") == 3
    chromium.press("\ue00c")
    assert chromium.run("return document.querySelectorAll('.menu[open]').length") == 0
    assert chromium.run("return document.activeElement.closest('.menu').dataset.chart") == "chart-1"


def test_charts_are_found_by_name(chromium: Browser) -> None:
    """Others are hidden, with headings that have none left."""
    choose(chromium, "find", "GPU")
    shown = chromium.run(
        "return Array.from(document.querySelectorAll('#curves figure'), each => each.offsetParent && "
        "each.querySelector('strong').textContent).filter(Boolean)"
    )
    assert shown == ["GPU use"]
    assert chromium.run("return document.querySelector('#curves .group h3').offsetParent") is None


def downloaded(chromium: Browser, folder: Path, chart: str, kind: str) -> bytes:
    """Return a file of a chart that a click saves."""
    chromium.save_downloads_in(folder)
    before = {*folder.iterdir()}
    chromium.run(
        "document.querySelector(`.tools:has([data-chart=${arguments[0]}]) [data-does=${arguments[1]}]`).click()",
        chart,
        kind,
    )
    until = time.monotonic() + 60
    while not (found := [each for each in {*folder.iterdir()} - before if each.suffix == f".{kind}"]):
        assert time.monotonic() < until
        time.sleep(0.05)
    return found[0].read_bytes()


def table(data: bytes) -> list[dict[str, Any]]:
    return list(csv.DictReader(data.decode().splitlines()))


def test_a_chart_is_saved_as_a_file(chromium: Browser, tmp_path: Path) -> None:
    """As a picture of points or of lines, with its title, or as a table with all axes."""
    assert downloaded(chromium, tmp_path, "chart-1", "png").startswith(b"\x89PNG\r\n\x1a\n")
    drawing = downloaded(chromium, tmp_path, "chart-1", "svg").decode()
    assert drawing.startswith("<svg")
    assert "grad_norm" in drawing
    assert drawing.count("<path") > 3
    rows = table(downloaded(chromium, tmp_path, "chart-0", "csv"))
    assert {each.name for each in tmp_path.iterdir()} == {"run-grad_norm.png", "run-grad_norm.svg", "run-loss.csv"}
    last = rows[-1]
    assert (last["run"], last["name"], last["step"], last["seconds since the start"]) == ("run", "loss", "3000", "3000")
    assert (last["samples"], last["tokens"], last["epoch"]) == ("24000", "3000000", "3")
    assert "2000 of" not in chromium.run("return document.getElementById('chart-0-reading').textContent")
    assert "1,000 points are not in this page" in chromium.run(
        "return document.getElementById('chart-0-reading').textContent"
    )
    assert chromium.console() == []


def test_texts_that_a_spreadsheet_would_run(chromium: Browser) -> None:
    """Stay texts in a table."""
    rows = chromium.run("return hexloop.csv([['=1+1', '@x', '-2', 'a\"b', 'c,d', -2, null]])")
    assert rows == '\'=1+1,\'@x,\'-2,"a""b","c,d",-2,\r\n'


@pytest.mark.matrix
def test_the_board_has_the_points_between(one_browser: Browser, tmp_path: Path) -> None:
    """A zoom loads all of them, and so does a table."""
    record_run(tmp_path / "runs" / "long", LONG)
    chromium = one_browser
    with board(tmp_path / "runs") as address:
        open_at(chromium, f"{address}runs?run=long")
        assert len(points(chromium, "loss")) <= 2_000
        chromium.drag("#chart-1", 0.5, 0.55)
        _, first, last = axis(chromium, "loss")
        wanted = int(last) - int(first)
        assert wanted > 500
        count = (
            "echarts.getInstanceByDom(document.getElementById('chart-0')).getOption().series[0].data"
            ".filter(Array.isArray).length"
        )
        chromium.wait_for(f"{count} >= {wanted}")
        assert [step for step, _ in points(chromium, "loss")] == list(range(int(first) + 1, int(last) + 1))
        (tmp_path / "saved").mkdir()
        assert len(table(downloaded(chromium, tmp_path / "saved", "chart-0", "csv"))) == LONG
        assert chromium.console() == []
        chromium.open("about:blank")
