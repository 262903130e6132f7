"""The chart library and the table library that are shipped: which files they are, and their licences."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from hexloop.app.pages.page import ECHARTS, TABULATOR, asset

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
