"""What `hexloop doctor` reports about the machine."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.unit.command_line.commands import Commands


def examined(commands: Commands) -> Any:
    """Return the report as JSON."""
    return json.loads(commands("doctor", "--json").output)


def install(folder: Path, name: str, number: str, entry_points: str = "") -> None:
    """Write a package's metadata to `folder`, as an installer does."""
    information = folder / f"{name}-{number}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")
    (information / "entry_points.txt").write_text(entry_points)


def test_devices_adapters_and_versions_are_reported(commands: Commands) -> None:
    """The CPU is tested in its number formats; adapters of every port and versions are listed."""
    report = examined(commands)
    processor = report["devices"][0]
    assert processor["name"] == "cpu"
    assert processor["precisions"] == {"fp32": "works", "bf16": "works", "fp16": "works"}
    assert {device["name"].partition(":")[0] for device in report["devices"]} == {"cpu", "cuda", "mps"}
    assert {"local", "memory"} <= set(report["adapters"]["storage"])
    assert report["adapters"]["clock"] == ["ManualClock", "SystemClock"]
    assert {"console", "json_lines", "tensorboard"} <= set(report["adapters"]["logger"])
    packages = {package["name"]: package for package in report["packages"]}
    assert packages["torch"]["version"] == version("torch")
    assert packages["torch"]["extras"] == []
    assert packages["transformers"]["extras"] == ["examples", "transformers"]
    assert not {"mypy", "mkdocs-material", "lightning"} & packages.keys()
    assert report["missing"] == []


def test_missing_devices_are_reported_with_a_fix(commands: Commands) -> None:
    """A missing kind of device has a reason and, if possible, a fix."""
    absent = [device for device in examined(commands)["devices"] if not device["precisions"]]
    for device in absent:
        assert device["description"]
        assert device["advice"] or device["name"] == "mps"


def test_adapters_of_other_packages_are_reported(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entry points in hexloop's groups are loaded, and failures are reported with the reason."""
    good, bad = "good = project:Line", "bad = project:Lime"
    install(tmp_path, "third-party", "1.0", f"[hexloop.loggers]\n{good}\n{bad}\n[other]\nx = y:z\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins = examined(commands)["plugins"]
    assert [(each["group"], each["name"], each["package"]) for each in plugins] == [
        ("hexloop.loggers", "bad", "third-party"),
        ("hexloop.loggers", "good", "third-party"),
    ]
    assert plugins[0]["problem"] == "AttributeError: module 'project' has no attribute 'Lime'"
    assert plugins[1]["problem"] is None
    assert "hexloop.loggers good, from third-party: loads" in commands("doctor").output


def test_outdated_required_package_is_a_failure(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outdated required package fails; an optional one gives only advice."""
    monkeypatch.syspath_prepend(str(tmp_path))
    install(tmp_path, "transformers", "4.57.1")
    outcome = commands("doctor")
    assert outcome.code == 0
    assert "older than 5.0; pip install --upgrade 'hexloop[examples]'" in outcome.output
    assert outcome.output.endswith("Everything that hexloop needs is installed.\n")
    install(tmp_path, "attrs", "23.2.0")
    outcome = commands("doctor")
    assert outcome.code == 1
    assert "older than 24.2; pip install --upgrade 'attrs>=24.2'" in outcome.output
    assert outcome.output.endswith("hexloop cannot work without attrs.\n")
