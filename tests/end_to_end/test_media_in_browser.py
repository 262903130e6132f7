"""The media of runs in a real browser: in a report and on the board, over the steps; nothing of them is executed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hexloop import TrainerCallback
from hexloop.adapters.clock import SystemClock
from hexloop.app.command_line import main
from hexloop.app.pages import media_section
from hexloop.domain.folders import Folder
from hexloop.domain.media_log import Encoded, MediaLog, PendingMedia
from hexloop.domain.run_folder import MEDIA
from tests.browser import Browser, browser, needs_browser
from tests.end_to_end.small.trainers import small_trainer
from tests.end_to_end.test_board import board

pytestmark = needs_browser

HOSTILE = "</script><script>window.attacked = 1</script><img src=x onerror='window.attacked = 2'>"
END, HOME, LEFT = "\ue010", "\ue011", "\ue012"


class Look(TrainerCallback):
    """Logs each kind at every step."""

    def on_step_end(self, args: object, state: object, control: object, **_: object) -> None:
        step = state.global_step  # type: ignore[attr-defined]
        log = state.log_media  # type: ignore[attr-defined]
        log(HOSTILE, f"step {step} {HOSTILE}", caption=HOSTILE)
        log("table", [{HOSTILE: HOSTILE, "step": step, "nothing": None}])
        log(
            "picture",
            [Image.new("RGB", (40, 20), (step * 50, 0, 0)), Image.new("RGB", (40, 20))],
            caption=["one", "two"],
        )
        log("weights", np.arange(100.0) * step, bins=10)
        log("tone", np.sin(np.arange(800.0)), "audio", rate=8000)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs."""
    folder = tmp_path_factory.mktemp("media")
    for name in ("one", "two"):
        callbacks = {"callbacks": [Look()]}
        small_trainer(folder / name, parts=callbacks, save_strategy="steps", save_steps=4).train()
    return folder


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Return a browser for all tests of this file."""
    with browser(tmp_path_factory.mktemp("browser")) as started:
        started.resize(1280, 900)
        started.prefer("light")
        yield started


def see(chromium: Browser, number: int) -> None:
    """Scroll to a panel, and wait until it is drawn."""
    chromium.run("document.getElementById(arguments[0]).scrollIntoView()", f"media-{number}")
    chromium.wait_for(f"document.querySelector('#media-{number} .media-shown').childElementCount > 0")


def text_of(chromium: Browser, number: int, what: str = ".media-shown") -> str:
    return str(chromium.run("return document.querySelector(arguments[0]).textContent", f"#media-{number} {what}"))


def check_all_kinds(chromium: Browser) -> None:
    """Each kind is drawn, of the last step."""
    for number in range(5):
        see(chromium, number)
    chromium.wait_for("document.querySelector('#media-0 pre')")
    assert text_of(chromium, 0, "pre") == f"step 4 {HOSTILE}"
    chromium.wait_for("document.querySelector('#media-1 td')")
    assert text_of(chromium, 1, "td") == HOSTILE
    assert text_of(chromium, 1, "td.n") == "4"
    chromium.wait_for(
        "Array.from(document.querySelectorAll('#media-2 img')).filter(each => each.naturalWidth === 40).length === 2"
    )
    chromium.wait_for("document.querySelectorAll('#media-3 canvas').length > 0")
    assert "histogram of 100 values" in chromium.run("return document.querySelector('#media-3 .histogram').ariaLabel")
    chromium.wait_for("document.querySelector('#media-4 audio').duration > 0.09")
    assert chromium.run("return window.attacked") is None


def test_a_report_has_its_media_in_itself(chromium: Browser, runs: Path) -> None:
    """It loads nothing, and a slider goes through the steps."""
    assert main(["report", str(runs / "one"), "--out", str(runs / "report.html")]) == 0
    chromium.console(), chromium.requests()
    chromium.open(runs / "report.html")
    check_all_kinds(chromium)
    chromium.run("document.querySelector('#media-0 input').focus()")
    chromium.press(HOME)
    chromium.wait_for("document.querySelector('#media-0 pre').textContent.startsWith('step 1 ')")
    assert text_of(chromium, 0, ".media-step") == "step 1, epoch 0.25 (1 of 4)"
    assert chromium.console() == []
    asked = [each for each in chromium.requests() if not each.startswith(("data:", "file:"))]
    assert asked == []
    for width in (1280, 390):
        chromium.resize(width, 900)
        chromium.settle()
        assert chromium.run("return document.documentElement.scrollWidth <= innerWidth")
        if folder := os.environ.get("SCREENSHOTS"):
            see(chromium, 2)
            chromium.screenshot(Path(folder) / f"media-{width}.png")
    chromium.resize(1280, 900)


def test_runs_are_shown_beside_each_other(chromium: Browser, runs: Path) -> None:
    """With their names."""
    assert main(["report", str(runs / "one"), str(runs / "two"), "--out", str(runs / "both.html")]) == 0
    chromium.open(runs / "both.html")
    see(chromium, 2)
    chromium.wait_for("document.querySelectorAll('#media-2 img').length === 4")
    labels = chromium.run(
        "return Array.from(document.querySelectorAll('#media-2 .row-label'), each => each.textContent.trim())"
    )
    assert labels == ["one", "two"]


def test_a_report_stays_small(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are left out of it, which it says."""
    monkeypatch.setattr(media_section, "MOST_EMBEDDED", 8_000)
    assert main(["report", str(runs / "one"), "--out", str(tmp_path / "report.html")]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "Steps of media are left out of this page" in page
    document = page.partition('id="report-data">')[2].partition("</script>")[0]
    panels = json.loads(document)["media"]
    assert len(panels) == 5
    assert min(len(panel["runs"][0]["steps"]) for panel in panels) < 4


@pytest.mark.matrix
def test_the_board_shows_media_and_those_that_come(chromium: Browser, runs: Path, tmp_path: Path) -> None:
    """Without loading the page again."""
    trainer = small_trainer(tmp_path / "live", parts={"callbacks": [Look()]}, save_strategy="steps", save_steps=4)
    trainer.train()
    with board(tmp_path) as address:
        chromium.console()
        chromium.open(f"{address}runs?run=live")
        check_all_kinds(chromium)
        chromium.run("window.kept = true")
        place, run = Folder(tmp_path / "live", MEDIA), trainer.state.run_state.run
        log = MediaLog(place, run, 4, 1 << 20, SystemClock(), lambda media: None, pytest.fail)
        log.put(PendingMedia(HOSTILE, 8, 2.0, "text", lambda: Encoded({"text": "step 8"})))
        log.close(20)
        chromium.wait_for("document.querySelector('#media-0 pre')?.textContent === 'step 8'")
        assert chromium.run("return window.kept") is True
        assert text_of(chromium, 0, ".media-step") == "step 8, epoch 2 (5 of 5)"
        assert chromium.console() == []


def test_files_that_are_gone_are_named(chromium: Browser, runs: Path, tmp_path: Path) -> None:
    """The rest of the page is shown."""
    small_trainer(tmp_path / "run", parts={"callbacks": [Look()]}, save_strategy="steps", save_steps=4).train()
    for path in (tmp_path / "run" / MEDIA).glob("*.[jpw]*g"):
        path.unlink()
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "report.html")]) == 0
    chromium.open(tmp_path / "report.html")
    see(chromium, 2)
    chromium.wait_for("document.querySelector('#media-2').textContent.includes('missing or damaged')")
    see(chromium, 0)
    chromium.wait_for("document.querySelector('#media-0 pre')")
