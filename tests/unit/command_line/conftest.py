"""A project in the working directory, and a fixture that calls the command line in this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.command_line.commands import SIGNALLING, Commands
from tests.unit.recipe.small_project import Project


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Commands]:
    """Return the command line in the folder of a project whose modules are unloaded afterwards."""
    path, modules = list(sys.path), set(sys.modules)
    project = Project(tmp_path)
    project.write("signalling.py", SIGNALLING)
    project.recipe()
    monkeypatch.chdir(tmp_path)
    yield Commands(project, capfd)
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
