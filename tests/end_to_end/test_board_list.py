"""The list of the runs in a real browser: sorted, filtered, grouped, labelled, hidden, drawn; and hostile names."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.browser import Browser, needs_browser
from tests.end_to_end.test_board import board, note

pytestmark = needs_browser

LISTED = "document.getElementById('run-list')?.dataset.built === 'true'"
NAMES = "return Array.from(document.querySelectorAll('.tabulator-row .run-name'), each => each.textContent)"
SHOWN = "document.getElementById('run-list').dataset.drawn === '{}'"
CHANGE = "const box = document.getElementById('{}'); box.value = '{}'; box.dispatchEvent(new Event('{}'))"
HOSTILE = "<img src=x onerror=window.attacked=1>"


@pytest.fixture
def chromium(one_browser: Browser) -> Browser:
    """Return the browser with an empty page: the page of another test goes on asking its board, which has ended."""
    one_browser.open("about:blank")
    one_browser.console()
    return one_browser


def write(folder: Path, rate: float, seed: int, accuracy: float, **facts: Any) -> None:
    """Write a run that has evaluated once."""
    settings = {"learning_rate": rate, "seed": seed, "eval_strategy": "steps", **facts}
    note(folder, kind="began", run=folder.name, step=0, total_steps=40, settings=settings)
    note(folder, kind="logged", step=10, values={"loss": 1.0, "eval_accuracy": accuracy})
    note(folder, kind="logged", step=20, values={"loss": 0.5 + rate})


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with six runs: three learning rates, two seeds; one of them is finished."""
    for number in range(6):
        write(tmp_path / "runs" / f"run-{number}", 10.0 ** -(number // 2 + 1), number % 2, number / 10)
    note(tmp_path / "runs" / "run-5", kind="ended", step=40, stopped=False, reasons=[])
    return tmp_path / "runs"


def test_runs_are_sorted_filtered_and_grouped(chromium: Browser, runs: Path) -> None:
    """By a click on a metric, by text and comparisons, and by an argument; the view survives a reload."""
    with board(runs) as address:
        chromium.open(address)
        chromium.wait_for(LISTED)
        column = (
            "document.querySelector('.tabulator-col-title span[title=eval_accuracy]').closest('.tabulator-col-content')"
        )
        chromium.run(f"{column}.click()")
        assert chromium.run(NAMES)[0] == "run-5"
        filtered: tuple[tuple[str, list[str]], ...] = (
            ("learning_rate<0.05 seed=1", ["run-5", "run-3"]),
            ("state:finished", ["run-5"]),
            ("-state:finished eval_accuracy>=0.3", ["run-4", "run-3"]),
            ("run-2", ["run-2"]),
            ("progress=50% loss>0.55", ["run-1", "run-0"]),
            ("nothing=1", []),
        )
        for text, expected in filtered:
            chromium.run(
                "const box = document.getElementById('run-filter'); box.value = arguments[0];"
                "document.getElementById('run-list').dataset.drawn = ''; box.dispatchEvent(new Event('input'))",
                text,
            )
            chromium.wait_for(SHOWN.format(len(expected)))
            assert chromium.run(NAMES) == expected, text
        assert "no column nothing" in chromium.run("return document.getElementById('run-count').textContent")
        chromium.run(CHANGE.format("run-filter", "run", "input"))
        chromium.wait_for(SHOWN.format(6))
        chromium.run(CHANGE.format("group-by", "seed", "change"))
        groups = "return Array.from(document.querySelectorAll('.tabulator-group'), each => each.textContent)"
        chromium.wait_for("document.querySelectorAll('.tabulator-group').length === 2")
        assert all("(3 runs, mean loss" in each for each in chromium.run(groups))
        chromium.run("location.reload()")
        chromium.wait_for("document.querySelectorAll('.tabulator-group').length === 2")
        assert chromium.run("return document.getElementById('run-filter').value") == "run"
        assert chromium.console() == []


def test_runs_are_labelled_and_hidden(chromium: Browser, runs: Path) -> None:
    """Tags and notes are typed into their cells and written to the runs' folders; a hidden run leaves the list."""
    with board(runs) as address:
        chromium.open(f"{address}#list")
        chromium.wait_for(LISTED)
        for field, text in (("tags", "baseline, good"), ("notes", f"compare {HOSTILE}")):
            row = '.tabulator-row:has(input[value="run-1"])'
            cell = f"document.querySelector('{row} .tabulator-cell[tabulator-field={field}]')"
            chromium.run(f"{cell}.click()")
            chromium.wait_for(f"{cell}?.querySelector('input') !== null")
            chromium.run(
                f"const box = {cell}.querySelector('input'); box.value = arguments[0];"
                "box.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', bubbles: true }))",
                text,
            )
            chromium.wait_for(f"{cell}?.textContent.includes('{text[:4]}') && !document.querySelector('.cell-editor')")
        written = json.loads((runs / "run-1/.hexloop/labels.json").read_text())
        assert (written["tags"], written["notes"]) == (["baseline", "good"], f"compare {HOSTILE}")

        chromium.run("document.querySelector('input[value=\"run-2\"]').click()")
        chromium.run(
            "Array.from(document.querySelectorAll('button')).find(each => each.textContent === 'Hide').click()"
        )
        chromium.wait_for(SHOWN.format(5))
        assert json.loads((runs / "run-2/.hexloop/labels.json").read_text())["hidden"] is True
        assert "1 hidden" in chromium.run("return document.getElementById('run-count').textContent")
        chromium.run("document.getElementById('show-hidden').click()")
        chromium.wait_for(SHOWN.format(6))
        assert chromium.run("return window.attacked") is None
        assert chromium.console() == []


def test_columns_are_chosen_and_charts_drawn(chromium: Browser, runs: Path) -> None:
    """The charts below the list have a point and a line for each run."""
    with board(runs) as address:
        chromium.open(address)
        chromium.wait_for(LISTED)
        chromium.run("document.getElementById('run-charts').open = true")
        option = "echarts.getInstanceByDom(document.getElementById('{}'))?.getOption().series"
        chromium.wait_for("window.echarts && document.querySelector('#run-parallel canvas')")
        points = f"return {option.format('scatter')}.flatMap(each => each.data).length"
        assert chromium.run(points) == 6
        assert chromium.run(f"return {option.format('run-parallel')}[0].data.length") == 6
        chromium.run(
            "Array.from(document.querySelectorAll('.menu-content label'))"
            ".find(each => each.textContent.trim() === 'loss').querySelector('input').click()"
        )
        titles = (
            "return Array.from(document.querySelectorAll('.tabulator-col'), "
            "each => each.offsetParent && each.textContent)"
        )
        assert "loss" not in chromium.run(titles)
        assert chromium.console() == []


@pytest.mark.matrix
def test_the_curves_of_the_runs_are_below_their_list(chromium: Browser, tmp_path: Path) -> None:
    """Of the first twenty in the table, or of the chosen ones; the page says which, and has a link to share them."""
    for number in range(22):
        write(tmp_path / f"run-{number:02}", 0.1, number, number / 100)
    runs = "document.getElementById('curves').dataset.runs === '{}'"
    words = "return document.querySelector('#run-curves .note').textContent"
    with board(tmp_path) as address:
        chromium.open(address)
        chromium.wait_for(LISTED)
        chromium.run("document.getElementById('run-curves').scrollIntoView()")
        chromium.wait_for(f"{runs.format(20)} && document.querySelector('#curves canvas')")
        assert "the first 20 of the 22 runs" in chromium.run(words)
        chromium.run("document.getElementById('choose-all').click()")
        chromium.wait_for("document.querySelector('#run-curves .note').textContent.includes('of the 22 chosen runs')")
        assert chromium.run("return document.getElementById('compare').textContent") == "Compare 20 of 22"
        assert "the first 20 of them" in chromium.run("return document.getElementById('run-count').textContent")
        chromium.run("document.getElementById('choose-all').click()")
        for name in ("run-03", "run-07"):
            chromium.run("document.querySelector(`input[value=${arguments[0]}]`).click()", name)
        chromium.wait_for(runs.format(2))
        link = "return new URL(document.querySelector('.share').href).searchParams.getAll('run')"
        assert sorted(chromium.run(link)) == ["run-03", "run-07"]
        chromium.wait_for("document.querySelector('#curves canvas')")
        note(tmp_path / "run-03", kind="logged", step=30, values={"loss": 9.0})
        last = "echarts.getInstanceByDom(document.querySelector('#curves .chart'))?.getOption().series"
        chromium.wait_for(f"{last}.some(each => each.data.some(point => point[1] === 9))")
        chromium.run("document.getElementById('compare').click()")
        chromium.wait_for("document.querySelector('h1').textContent.startsWith('2 runs')")
        assert chromium.console() == []


def test_hostile_runs_are_listed_as_text(chromium: Browser, tmp_path: Path) -> None:
    """In names of folders, values, arguments, tags and reasons; nothing of them becomes an element."""
    folder = tmp_path / "runs"
    for number in range(2):
        run = folder / f"{HOSTILE.replace('/', '')}{number}"
        settings = {"seed": number, HOSTILE: f"{HOSTILE}{number}"}
        note(run, kind="began", run=HOSTILE, step=0, settings=settings)
        note(run, kind="logged", step=1, values={HOSTILE: 1.0, "loss": "NaN"})
        note(run, kind="ended", step=1, stopped=True, reasons=[HOSTILE])
        (run / ".hexloop").mkdir()
        labels = {"schema": 1, "tags": [HOSTILE[:40]], "notes": HOSTILE, "hidden": False}
        (run / ".hexloop/labels.json").write_text(json.dumps(labels))
    with board(folder) as address:
        chromium.open(address)
        chromium.wait_for(LISTED)
        chromium.run("document.getElementById('group-by').value = arguments[0]", HOSTILE)
        chromium.run("document.getElementById('group-by').dispatchEvent(new Event('change'))")
        chromium.wait_for("document.querySelectorAll('.tabulator-group').length === 2")
        chromium.run("document.getElementById('run-charts').open = true")
        chromium.wait_for("window.echarts && document.querySelector('#run-parallel canvas')")
        chromium.settle()
        assert chromium.run("return document.querySelectorAll('#list img').length") == 0
        assert chromium.run("return window.attacked") is None
        assert HOSTILE in chromium.run("return document.getElementById('run-grid').textContent")
        assert "not finite" in chromium.run("return document.getElementById('run-grid').textContent")
        assert chromium.console() == []


def test_many_runs_arrive_bit_by_bit(chromium: Browser, tmp_path: Path) -> None:
    """The page opens with those that were read, and completes itself; it has the newest run first."""
    source = tmp_path / "source"
    write(source, 0.1, 1, 0.5)
    for number in range(3_000):
        folder = tmp_path / "runs" / f"group-{number % 10}" / f"run-{number}"
        folder.mkdir(parents=True)
        os.link(source / "journal.jsonl", folder / "journal.jsonl")
    with board(tmp_path / "runs") as address:
        chromium.open(address)
        chromium.wait_for(LISTED)
        chromium.wait_for("document.getElementById('run-list').dataset.complete === 'true'")
        chromium.wait_for(SHOWN.format(3_000))
        assert "3,000 runs" in chromium.run("return document.getElementById('run-count').textContent")
        assert len(chromium.run(NAMES)) < 300
        assert chromium.console() == []
