"""The chart library and the table library that are shipped: which files they are, and their licences."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from hexloop.app.pages.charts import COLOURS
from hexloop.app.pages.page import ECHARTS, TABULATOR, asset
from hexloop.app.pages.states import RunState
from hexloop.app.pages.watching import MOST_COMPARED

FOLDER = Path(__file__).parents[3] / "app" / "pages" / "assets"

DIGEST = "b66b25aeb4df84e33199dc21694014d336d222cbd9deb0e5a7c14bd6aa0d0fd0"
"""SHA-256 of dist/echarts.min.js in the package echarts 6.1.0 of the npm registry, whose integrity is
sha512-q0yaFPggC9FUdsWH4blavRWFmxdrIodbkoKNAjJudAI6CA9gNPxHtV2RcZNEepZVlk4yvBYkOkbk6HIVpIyHZA==."""


TABLES = {
    "tabulator.min.js": "ffac518cb793c672a2f0522b7fc80bf862234d96bb1e581c8aaf7f48f130eafa",
    "tabulator_simple.min.css": "edef8839235a4b6a8c3dc391ec93f2ce1bc633dd5270a5f990753b6f9183d32b",
}
"""SHA-256 of files in dist/js and dist/css of the package tabulator-tables 6.5.3 of the npm registry, whose integrity
is sha512-nJ2QaqZzQvd9B4rf4LBnRxfb6sSqA/BX2OsXnSJ2d8k21oXDSTtFtOUrDap04a/6BDGivC/MByCxy43ugadJIg==."""


def test_the_chart_library_is_the_released_file() -> None:
    """Byte by byte, in the version that pages name."""
    assert hashlib.sha256((FOLDER / "echarts" / "echarts.min.js").read_bytes()).hexdigest() == DIGEST
    assert f'version="{ECHARTS}"' in asset("echarts/echarts.min.js").replace(" ", "")


@pytest.mark.parametrize(("name", "digest"), TABLES.items())
def test_the_table_library_is_the_released_files(name: str, digest: str) -> None:
    """Byte by byte, in the version that pages name, with its licence."""
    data = (FOLDER / "tabulator" / name).read_bytes()
    assert hashlib.sha256(data).hexdigest() == digest
    if name.endswith(".js"):
        assert f"Tabulator v{TABULATOR} ".encode() in data[:200]
    assert "MIT License" in asset("tabulator/LICENSE")


def test_its_licences_are_shipped() -> None:
    """Of the library, and of the code that it contains."""
    assert "Apache License" in asset("echarts/LICENSE")
    assert "Apache ECharts" in asset("echarts/NOTICE")
    assert "Baidu" in asset("echarts/LICENSE-zrender")
    assert "Bostock" in asset("echarts/LICENSE-d3")


def test_every_colour_is_defined() -> None:
    """Each once for the light and the dark theme, and no two equal; as many as runs are compared."""
    styles = asset("report.css")
    themes = [dict(re.findall(r"--(c\d+): (#[0-9a-f]{6});", part)) for part in styles.split("@media", 1)]
    for theme in themes:
        assert list(theme) == [f"c{number}" for number in range(COLOURS)]
        assert len(set(theme.values())) == COLOURS
    classes = re.findall(r"\.c(\d+) \{ color: var\(--c(\d+)\); \}", styles)
    assert classes == [(str(number), str(number)) for number in range(COLOURS)]
    assert f"const COLOURS = {COLOURS};" in asset("common.js")
    assert COLOURS == MOST_COMPARED


def test_the_bar_of_each_state_has_a_colour() -> None:
    """A session is running, or ended in one of four ways."""
    styles = asset("report.css")
    for state in (RunState.RUNNING, RunState.FINISHED, RunState.STOPPED, RunState.FAILED, RunState.LOST):
        assert f".{state.value} {{ fill: var(--" in styles


def test_own_sources_name_no_address() -> None:
    """Nothing is loaded from a network."""
    for name in (
        "common.js",
        "compare.js",
        "curves.js",
        "report.js",
        "runs.js",
        "search.js",
        "trials.js",
        "runs.css",
        "report.css",
    ):
        assert "http:" not in asset(name)
        assert "https:" not in asset(name)
        assert "@import" not in asset(name)
        assert "innerHTML" not in asset(name)
