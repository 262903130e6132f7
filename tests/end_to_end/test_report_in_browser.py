"""Reports in a real browser: nothing fails, nothing is loaded, and all can be used with a keyboard and on a phone."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path

import pytest

from hexloop.app.command_line import main
from hexloop.app.pages.page import RUN_SCRIPTS
from tests.browser import Browser, needs_browser

pytestmark = needs_browser

HOSTILE = "</script><script>window.attacked = 1</script><img src=x onerror='window.attacked = 2'>{a|b}"
RIGHT, END, TAB, SPACE = "\ue014", "\ue010", "\ue004", " "


def write_run(folder: Path, name: str, rate: float) -> Path:
    """Write the journal of a run of 3,000 logs, with evaluations, a restart, saves, and a hostile value."""
    notes: list[dict[str, object]] = [
        {"kind": "began", "run": name, "step": 0, "time": 1e9, "settings": {"learning_rate": rate, "max_steps": 3000}}
    ]
    for step in range(1, 3001):
        values: dict[str, object] = {"loss": 3 * math.exp(-rate * step) + 0.1, "grad_norm": 1.0 + math.sin(step / 40)}
        values |= {"learning_rate": rate * (1 - step / 3000), HOSTILE: float(step)}
        if step == 700:
            values["loss"] = "NaN"
        notes.append({"kind": "logged", "step": step, "time": 1e9 + step, "values": values})
        if step % 500 == 0:
            accuracy = {"eval_loss": 3 * math.exp(-rate * step) + 0.2, "eval_accuracy": 1 - math.exp(-rate * step)}
            notes.append({"kind": "logged", "step": step, "time": 1e9 + step, "values": accuracy})
            for number, phase in enumerate(("began", "taken", "first_byte", "written", "published")):
                save = {"kind": "save", "phase": phase, "checkpoint": f"checkpoint-{step}", "bytes": 5_000_000}
                notes.append({**save, "time": 1e9 + step + number / 10})
        if step == 1500:
            notes.append({"kind": "ended", "step": step, "time": 1e9 + step, "stopped": True, "reasons": ["SIGTERM"]})
            notes.append({"kind": "began", "run": name, "step": step, "time": 1e9 + step + 300, "settings": {}})
    folder.mkdir(parents=True)
    (folder / "journal.jsonl").write_text("".join(f"{json.dumps(note)}\n" for note in notes))
    return folder


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a report on two runs."""
    folder = tmp_path_factory.mktemp("reports")
    runs = [write_run(folder / f"run {name} <b>", name, rate) for name, rate in (("one", 0.002), ("two", 0.004))]
    assert main(["report", *map(str, runs), "--out", str(folder / "report.html")]) == 0
    return folder / "report.html"


@pytest.fixture
def chromium(one_browser: Browser) -> Browser:
    """Return the browser."""
    return one_browser


@pytest.fixture
def opened(chromium: Browser, page: Path) -> Browser:
    """Return the browser at the report, whose first charts are drawn."""
    chromium.resize(1280, 900)
    chromium.prefer("light")
    chromium.open(page)
    chromium.run("scrollTo(0, document.getElementById('curves').offsetTop)")
    chromium.wait_for("document.querySelectorAll('#chart-0 canvas').length > 0")
    return chromium


def inked(chromium: Browser, chart: str) -> int:
    """Return how many pixels of a chart are not empty."""
    chromium.settle()
    return int(
        chromium.run(
            "const canvas = document.querySelector('#' + arguments[0] + ' canvas');"
            "const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;"
            "let count = 0; for (let at = 3; at < data.length; at += 4) if (data[at] > 0) count++; return count;",
            chart,
        )
    )


def picture(chromium: Browser, chart: str = "chart-0") -> str:
    """Return the pixels of a chart as text."""
    chromium.settle()
    return str(chromium.run("return document.querySelector('#' + arguments[0] + ' canvas').toDataURL()", chart))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_charts_are_drawn_without_errors_or_requests(chromium: Browser, page: Path, scheme: str, width: int) -> None:
    """In both themes, on a screen and on a phone, where the page is not wider than the screen."""
    chromium.resize(width, 800)
    chromium.prefer(scheme)
    chromium.console(), chromium.requests()
    chromium.open(page)
    charts = chromium.run("return JSON.parse(document.getElementById('report-data').textContent).charts.length")
    for number in range(charts):
        chromium.run("document.getElementById(arguments[0]).scrollIntoView()", f"chart-{number}")
        chromium.wait_for(f"document.querySelectorAll('#chart-{number} canvas').length > 0")
        assert inked(chromium, f"chart-{number}") > 500
    assert chromium.console() == []
    assert [each for each in chromium.requests() if each != page.as_uri() and not each.startswith("data:")] == []
    assert chromium.run("return document.documentElement.scrollWidth <= innerWidth")
    background = chromium.run("return getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") is (scheme == "light")
    if folder := os.environ.get("SCREENSHOTS"):
        chromium.run("scrollTo(0, 0)")
        chromium.screenshot(Path(folder) / f"report-{scheme}-{width}.png")


def test_hostile_names_stay_text(opened: Browser) -> None:
    """No script of a run is executed, and no picture is loaded."""
    assert opened.run("return window.attacked") is None
    assert opened.run("return document.images.length") == 0
    assert opened.run("return document.scripts.length") == len(RUN_SCRIPTS) + 2  # the chart library, and the data


def test_charts_are_read_with_the_keyboard(opened: Browser) -> None:
    """Arrow keys read the values aloud, and zoom without a mouse."""
    opened.run("document.getElementById('chart-0').focus()")
    reading = "document.getElementById('chart-0-reading').textContent"
    assert "Arrow keys" in opened.run(f"return {reading}")
    opened.press(RIGHT, RIGHT)
    assert "run one <b>: loss" in opened.run(f"return {reading}")
    assert "at step 2;" in opened.run(f"return {reading}")
    opened.press(END)
    assert "at step 3,000" in opened.run(f"return {reading}")
    before = picture(opened)
    opened.press("+")
    assert picture(opened) != before
    assert opened.console() == []


def test_runs_are_hidden_and_scales_changed_with_the_keyboard(opened: Browser) -> None:
    """The boxes are ordinary ones, which Tab reaches and Space changes."""
    before = picture(opened)
    for selector in (".run-shown", ".logarithmic[data-chart=chart-0]"):
        opened.run(f"document.querySelector('{selector}').focus()")
        opened.press(SPACE)
        assert picture(opened) != before, selector
        opened.press(SPACE)
        assert picture(opened) == before, selector
    opened.run("document.querySelector('.run-shown').focus()")
    opened.press(TAB, TAB, TAB)  # the other run and the axis
    assert opened.run("return document.activeElement.id") == "smoothing"
    opened.press(RIGHT, RIGHT, RIGHT)
    assert picture(opened) != before
    assert opened.console() == []


def test_theme_follows_the_system(opened: Browser) -> None:
    """Charts are drawn again in the colours of the new theme."""
    before = picture(opened)
    opened.prefer("dark")
    opened.wait_for("matchMedia('(prefers-color-scheme: dark)').matches")
    assert picture(opened) != before


def test_reports_can_be_moved(opened: Browser, page: Path, tmp_path: Path) -> None:
    """A page that is copied elsewhere needs nothing else."""
    copied = shutil.copy(page, tmp_path / "copied.html")
    opened.open(Path(copied))
    opened.run("document.getElementById('chart-0').scrollIntoView()")
    opened.wait_for("document.querySelectorAll('#chart-0 canvas').length > 0")
    assert opened.console() == []
