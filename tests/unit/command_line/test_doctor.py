"""What `hexloop doctor` reports about the machine."""

from __future__ import annotations

import json
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from hexloop import TrainingArguments
from hexloop.domain.installation import Installation, installation
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
    """The CPU is tested in its number formats; names to choose and versions are listed."""
    report = examined(commands)
    processor = report["devices"][0]
    assert processor["name"] == "cpu"
    assert processor["precisions"] == {"fp32": "works", "bf16": "works", "fp16": "works"}
    assert {device["name"].partition(":")[0] for device in report["devices"]} == {"cpu", "cuda", "mps"}
    assert {"console", "json_lines", "tensorboard"} <= set(report["choices"]["report_to"]["usable"])
    packages = {package["name"]: package for package in report["packages"]}
    assert packages["torch"]["version"] == version("torch")
    assert packages["torch"]["extras"] == []
    assert packages["transformers"]["extras"] == ["examples", "transformers"]
    assert not {"mypy", "zensical", "lightning"} & packages.keys()
    assert report["missing"] == []


def test_what_is_listed_can_be_chosen(commands: Commands) -> None:
    """Each name is one that the arguments accept, and not that of a module; others say which package they need."""
    choices = examined(commands)["choices"]
    for name in choices["report_to"]["usable"]:
        assert TrainingArguments("out", use_cpu=True, report_to=name).report_to == [name]
    for name in [*choices["optim"]["usable"], *choices["optim"]["missing"]]:
        assert TrainingArguments("out", use_cpu=True, optim=name).optim == name
    assert {"random", "grid", "optuna"} <= set(choices["backend of a search"]["usable"])
    assert {"file", "s3"} <= set(choices["URLs of output_dir"]["usable"])
    shown = commands("doctor").output
    for module in (
        "plain",
        "file_names",
        "faults",
        "least_squares",
        "simulated_scaling",
        "tracker",
        "ThreadBackground",
    ):
        assert not re.search(rf"\b{module}\b", shown)


def test_headings_are_on_lines_of_their_own(commands: Commands) -> None:
    """Sections are separated by empty lines, without escape sequences in the text."""
    shown = commands("doctor").output
    assert "\\n" not in shown
    for heading in ("Devices, and the precisions in which each computes", "Names that can be chosen here", "Packages"):
        assert f"\n\n{heading}\n" in shown


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
    assert "  hexloop.loggers  good, from third-party: loads\n" in commands("doctor").output


def test_outdated_required_package_is_a_failure(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outdated required package fails; an optional one gives only advice."""
    monkeypatch.setattr("hexloop.app.command_line.doctor.installation", Installation)
    monkeypatch.syspath_prepend(str(tmp_path))
    install(tmp_path, "transformers", "4.57.1")
    outcome = commands("doctor")
    assert outcome.code == 0
    assert "older than 5.0; pip install --upgrade 'transformers>=5.0'" in outcome.output
    assert outcome.output.endswith("Everything that hexloop needs is installed.\n")
    install(tmp_path, "attrs", "23.2.0")
    outcome = commands("doctor")
    assert outcome.code == 1
    assert "older than 24.2; pip install --upgrade 'attrs>=24.2'" in outcome.output
    assert outcome.output.endswith("hexloop cannot work without attrs.\n")


def hexloop_installed(folder: Path, installer: str, origin: dict[str, Any] | None) -> None:
    """Write the metadata that an installer leaves for hexloop."""
    install(folder, "hexloop", "9.9")
    information = folder / "hexloop-9.9.dist-info"
    (information / "INSTALLER").write_text(f"{installer}\n")
    if origin is not None:
        (information / "direct_url.json").write_text(json.dumps(origin))


@pytest.mark.parametrize(
    ("installer", "origin", "command"),
    [
        ("pip", None, "pip install --upgrade 'transformers>=5.0'"),
        ("uv", None, "uv pip install --upgrade 'transformers>=5.0'"),
        ("conda", None, "conda install 'transformers>=5.0'"),
        (
            "pip",
            {"url": "file:///src/my%20copy", "dir_info": {"editable": True}},
            "pip install --upgrade -e '/src/my copy[transformers]'",
        ),
        (
            "uv",
            {"url": "file:///src/hexloop", "dir_info": {"editable": True}},
            "uv pip install --upgrade -e '/src/hexloop[transformers]'",
        ),
        (
            "pip",
            {"url": "file:///tmp/hexloop-9.9-py3-none-any.whl", "archive_info": {}},
            "pip install --upgrade 'hexloop[transformers] @ file:///tmp/hexloop-9.9-py3-none-any.whl'",
        ),
        (
            "pip",
            {"url": "https://host/hexloop.git", "vcs_info": {"vcs": "git", "commit_id": "a"}},
            "pip install --upgrade 'hexloop[transformers] @ git+https://host/hexloop.git'",
        ),
    ],
)
def test_install_commands_fit_the_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installer: str, origin: dict[str, Any] | None, command: str
) -> None:
    """By the tool that installed hexloop: an extra, or the package itself if an index may have another hexloop."""
    hexloop_installed(tmp_path, installer, origin)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert installation().command("transformers", ">=5.0", ["examples", "transformers"]) == command


def test_a_required_package_is_named_itself() -> None:
    """No extra contains it."""
    assert Installation("uv", "/src", True).command("attrs", ">=24.2", []) == "uv pip install --upgrade 'attrs>=24.2'"


def test_columns_are_aligned_whatever_their_width(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two spaces at least separate the columns, also after a long group, name or version."""
    groups = "[hexloop.a_group_of_a_long_name]\nbad = project:Lime\n[hexloop.loggers]\na = b:c\n"
    install(tmp_path, "third", "1.0", groups)
    install(tmp_path, "transformers", "4.57.1.dev20261224+cuda130.with.a.long.label")
    monkeypatch.syspath_prepend(str(tmp_path))
    lines = commands("doctor").output.splitlines()
    assert any(line.startswith("  hexloop.a_group_of_a_long_name  bad, from third") for line in lines)
    assert any(line.startswith("  hexloop.loggers                 a, from third") for line in lines)
    (line,) = [line for line in lines if line.startswith("  transformers ")]
    assert re.search(r"a\.long\.label  for examples, transformers {2,}older than 5\.0; ", line)


def test_packages_are_named_as_they_are_installed(commands: Commands) -> None:
    """A module, such as azureml.core, is not the name of a distribution."""
    missing = examined(commands)["choices"]["report_to"]["missing"]
    assert missing["azure_ml"] == "azureml-core"
