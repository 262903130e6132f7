"""The chart library that is shipped: which file it is, and its licences."""

from __future__ import annotations

import hashlib
from pathlib import Path

from hexloop.app.pages.page import ECHARTS, asset

FOLDER = Path(__file__).parents[3] / "app" / "pages" / "assets"

DIGEST = "b66b25aeb4df84e33199dc21694014d336d222cbd9deb0e5a7c14bd6aa0d0fd0"
"""SHA-256 of dist/echarts.min.js in the package echarts 6.1.0 of the npm registry, whose integrity is
sha512-q0yaFPggC9FUdsWH4blavRWFmxdrIodbkoKNAjJudAI6CA9gNPxHtV2RcZNEepZVlk4yvBYkOkbk6HIVpIyHZA==."""


def test_the_chart_library_is_the_released_file() -> None:
    """Byte by byte, in the version that pages name."""
    assert hashlib.sha256((FOLDER / "echarts" / "echarts.min.js").read_bytes()).hexdigest() == DIGEST
    assert f'version="{ECHARTS}"' in asset("echarts/echarts.min.js").replace(" ", "")


def test_its_licences_are_shipped() -> None:
    """Of the library, and of the code that it contains."""
    assert "Apache License" in asset("echarts/LICENSE")
    assert "Apache ECharts" in asset("echarts/NOTICE")
    assert "Baidu" in asset("echarts/LICENSE-zrender")
    assert "Bostock" in asset("echarts/LICENSE-d3")


def test_own_sources_name_no_address() -> None:
    """Nothing is loaded from a network."""
    for name in ("common.js", "report.js", "search.js", "trials.js", "report.css"):
        assert "http:" not in asset(name)
        assert "https:" not in asset(name)
        assert "@import" not in asset(name)
        assert "innerHTML" not in asset(name)
