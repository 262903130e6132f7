"""A fixture with the folder of a small project whose modules are unloaded afterwards."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.recipe.small_project import Project


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """A project in its own folder."""
    path, modules = list(sys.path), set(sys.modules)
    yield Project(tmp_path)
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
