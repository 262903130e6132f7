"""Built distributions match the source tree."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("domain", "ports", "adapters", "app")


def build(target: Path, *options: str) -> None:
    """Build from the tree with the installed packages, without a network."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), *options, str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)


def modules_in_tree() -> set[str]:
    """Return the modules of the four folders and of src/hexloop as paths in a wheel."""
    inside = {str("hexloop" / file.relative_to(ROOT)) for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")}
    source = ROOT / "src"
    front_door = [*(source / "hexloop").glob("*.py"), *(source / "hexloop" / "transformers").rglob("*.py")]
    return inside | {str(file.relative_to(source)) for file in front_door}


def names_in_wheel(folder: Path) -> set[str]:
    """Return the file names in the only wheel of a folder, without its metadata."""
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_wheel_holds_every_module(tmp_path: Path) -> None:
    """A wheel holds each module of the tree, stubs, py.typed, and what pages are made from, and no test."""
    build(tmp_path, "--wheel")

    names = names_in_wheel(tmp_path)
    assert {name for name in names if name.endswith(".py")} == modules_in_tree()
    pages = ROOT / "app" / "pages"
    shown = {path for folder in ("assets", "templates") for path in (pages / folder).rglob("*") if path.is_file()}
    assert {str("hexloop" / path.relative_to(ROOT)) for path in shown} <= names
    assert {"hexloop/py.typed", "hexloop/__init__.pyi", "hexloop/testing.pyi"} <= names
    assert {name.split("/")[0] for name in names} == {"hexloop"}


@pytest.mark.matrix
def test_source_distribution_builds_the_same_wheel(tmp_path: Path) -> None:
    """A source distribution holds the four folders themselves, and builds the same wheel as the tree."""
    build(tmp_path / "from_tree", "--wheel")
    build(tmp_path / "from_source")

    (source,) = (tmp_path / "from_source").glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    assert {str(file.relative_to(ROOT)) for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")} <= names
    assert names_in_wheel(tmp_path / "from_source") == names_in_wheel(tmp_path / "from_tree")


NEEDED_BY_COMMANDS = (
    *("README.md", "LICENSE", "Makefile", "constraints.txt", "mkdocs.yml", ".ci/run"),
    *("docs/examples/digits.yaml", "tests/conftest.py"),
)
"""What `make train`, `make test` and `make docs` read besides the code and the tests."""


@pytest.mark.matrix
def test_source_distribution_installs_editable_without_links(tmp_path: Path) -> None:
    """An unpacked source distribution has no links, holds what README's commands need, and installs editable."""
    build(tmp_path, "--sdist")
    (source,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, filter="data")
    tree = tmp_path / source.name.removesuffix(".tar.gz")
    assert not [path for path in tree.rglob("*") if path.is_symlink()]
    assert [name for name in NEEDED_BY_COMMANDS if not (tree / name).is_file()] == []

    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (packages / "outer.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")  # torch and the build back end
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--editable", str(tree)]
    subprocess.run([python, "-m", "pip", "install", *options], check=True, capture_output=True, env=environment)
    program = "import hexloop.domain.loop as loop, hexloop.testing; hexloop.Trainer; print(loop.__file__)"
    result = subprocess.run(
        [python, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert Path(result.stdout.strip()) == tree / "domain" / "loop.py"


@pytest.mark.matrix
def test_wheel_installs_and_imports_outside_the_checkout(tmp_path: Path) -> None:
    """An installed wheel imports from its install location and provides the command."""
    build(tmp_path, "--wheel")
    (wheel,) = tmp_path.glob("*.whl")
    installed = tmp_path / "installed"
    options = ["--no-deps", "--no-index", "--target", str(installed), str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options], check=True, capture_output=True)

    result = subprocess.run(
        [sys.executable, "-c", "import hexloop.ports.learner as learner; print(learner.__file__)"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert Path(result.stdout.strip()) == installed / "hexloop" / "ports" / "learner.py"
    assert (installed / "bin" / "hexloop").is_file()
