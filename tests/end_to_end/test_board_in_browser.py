"""The board in a real browser: opened, compared, kept up to date, without errors, on wide and narrow screens."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import HTTPError

import pytest

from tests.browser import Browser, needs_browser
from tests.end_to_end.test_board import begin, board, note
from tests.warm_python import warm_python

pytestmark = needs_browser

ROOT = Path(__file__).parents[2]

LISTED = "document.getElementById('run-list')?.dataset.built === 'true'"
"""That the table of the runs is drawn."""

LAST_POINT = """
const plot = echarts.getInstanceByDom(document.getElementById('chart-0'));
const points = plot.getOption().series[0].data;
return points[points.length - 1];
"""


@pytest.fixture
def chromium(one_browser: Browser) -> Browser:
    """Return the browser with an empty page: the page of another test goes on asking its board, which has ended."""
    one_browser.open("about:blank")
    one_browser.console()
    return one_browser


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


SCRIPT = """
import sys, time
from pathlib import Path
from hexloop import TrainerCallback
from tests.end_to_end.small.trainers import small_trainer

class Slow(TrainerCallback):
    def on_step_end(self, *given, **named):
        time.sleep(0.02)

trainer = small_trainer(Path(sys.argv[1]), max_steps=10**6, num_train_epochs=10**6, save_strategy="steps",
                        save_steps=10**6, parts={"callbacks": [Slow()]})
trainer.train()
sys.exit(trainer.outcome.exit_code)
"""


@pytest.mark.matrix
def test_a_run_in_another_process_is_paused_saved_resumed_and_stopped(chromium: Browser, tmp_path: Path) -> None:
    """By the buttons of its page, which says what became of each command; the process ends as after a signal."""
    process = subprocess.Popen([warm_python(), "-c", SCRIPT, str(tmp_path / "live")], cwd=ROOT)
    try:
        until = time.monotonic() + 60
        while not (tmp_path / "live" / ".hexloop/journal.jsonl").exists():
            assert time.monotonic() < until
            time.sleep(0.1)
        with board(tmp_path) as address:
            chromium.open(f"{address}runs?run=live")
            chromium.run("window.confirm = () => true; window.kept = true")
            chromium.wait_for("document.getElementById('pause-0')?.disabled === false")
            chromium.run("document.getElementById('pause-0').click()")
            chromium.wait_for("document.querySelector('#runs .content').textContent.includes('paused at step')")
            chromium.wait_for("document.getElementById('answer').textContent.includes('given as command 1')")
            chromium.wait_for("document.getElementById('pause-0').disabled")
            chromium.run("document.getElementById('save-0').click()")
            chromium.wait_for("document.querySelector('#control .content').textContent.includes('done: checkpoint-')")
            chromium.run("document.getElementById('resume-0').click()")
            chromium.wait_for("!document.querySelector('#runs .content').textContent.includes('paused at step')")
            chromium.run("document.getElementById('stop-0').click()")
            assert process.wait(60) == 3
            chromium.wait_for("document.querySelector('#control .content').textContent.includes('it has ended')")
            assert chromium.run("return window.kept") is True
            assert chromium.console() == []
    finally:
        process.kill()
        process.wait()


@pytest.mark.matrix
def test_searches_are_drawn(chromium: Browser, tmp_path: Path) -> None:
    """Parallel coordinates and a heat map of runs whose arguments differ, drawn again for other choices."""
    for number in range(6):
        run, rate = tmp_path / f"run-{number}", 10.0 ** -(number // 2)
        settings = {
            "learning_rate": rate,
            "warmup": number % 2,
            "optim": "<img src=x onerror='window.attacked=1'>"[number:],
        }
        note(run, kind="began", run="a", step=0, settings=settings)
        for step in (1, 2):
            note(run, kind="logged", step=step, values={"loss": rate / step, "eval_f1": number * step})
    query = "&".join(f"run=run-{number}" for number in range(6))
    with board(tmp_path) as address:
        chromium.resize(1280, 900)
        chromium.open(f"{address}runs?{query}")
        chromium.wait_for("document.querySelectorAll('#parallel canvas, #heat-map canvas').length >= 2")
        assert chromium.run("return echarts.getInstanceByDom(document.getElementById('parallel'))"
                            ".getOption().parallelAxis.map(axis => axis.name)")[:3] == [
            "optim", "learning_rate", "warmup",
        ]  # fmt: skip
        cells = "return echarts.getInstanceByDom(document.getElementById('heat-map')).getOption().series[0].data.length"
        for choice, value in (("heat-x", "1"), ("heat-y", "2")):
            chromium.run(
                "const box = document.getElementById(arguments[0]); box.value = arguments[1];"
                "box.dispatchEvent(new Event('change'));",
                choice,
                value,
            )
        assert chromium.run(cells) == 6
        assert chromium.run("return window.attacked ?? null") is None
        assert chromium.console() == []


def shows(chromium: Browser, text: str) -> bool:
    """Return whether the page has a text; a page that is being loaded has none."""
    try:
        return bool(chromium.run("return document.body.textContent.includes(arguments[0])", text))
    except HTTPError:
        return False


def test_runs_are_opened_compared_and_watched(chromium: Browser, runs: Path) -> None:
    """By its links and its form. A run that starts appears, and a point that is logged is drawn, without a reload."""
    with board(runs) as address:
        chromium.open(address)
        chromium.wait_for(LISTED)
        begin(runs / "three")
        chromium.wait_for("document.querySelectorAll('input.choose').length === 3")

        chromium.run("document.querySelectorAll('input.choose').forEach(box => box.click())")
        chromium.run("document.getElementById('compare').click()")
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
        chromium.wait_for(LISTED)
        chromium.run("document.querySelector('input[value=one]').click()")
        begin(runs / "three")
        chromium.wait_for("document.querySelectorAll('input.choose').length === 3")
        assert chromium.run("return document.querySelector('input[value=one]').checked") is True


def test_a_board_that_ended_is_told(chromium: Browser, runs: Path) -> None:
    """The page stays, and says that it is not up to date."""
    with board(runs) as address:
        chromium.open(address)
    chromium.wait_for("document.getElementById('live').textContent.startsWith('Not up to date')")
    assert "one" in chromium.run("return document.body.textContent")


@pytest.mark.matrix
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_pages_fit_the_screen(chromium: Browser, runs: Path, width: int, scheme: str) -> None:
    """In both themes: nothing is wider than the window, and text differs from its background."""
    with board(runs) as address:
        chromium.resize(width, 800)
        chromium.prefer(scheme)
        for path in ("", "runs?run=one", "runs?run=one&run=two", "lines?run=one&file=journal.jsonl"):
            chromium.open(address + path)
            chromium.wait_for(f"document.documentElement.scrollWidth <= {width}")  # once charts have their size
            ink, paper = chromium.run(
                "const style = getComputedStyle(document.body); return [style.color, style.backgroundColor];"
            )
            assert ink != paper


@pytest.mark.matrix
@pytest.mark.parametrize(("required", "result"), [("", "skipped"), ("required", "error")])
def test_a_missing_browser_is_told(required: str, result: str, tmp_path: Path) -> None:
    """Tests are skipped with what to install; where a browser is required, as in `make test-all`, they fail."""
    environment = {**os.environ, "PATH": str(tmp_path), "HEXLOOP_BROWSER": required}
    chosen = "tests/end_to_end/test_board_in_browser.py::test_a_board_that_ended_is_told"
    command = [sys.executable, "-m", "pytest", "-rsE", "-p", "no:cacheprovider", chosen]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert f"1 {result}" in done.stdout
    assert "apt-get install chromium" in done.stdout
    assert done.returncode == bool(required)
