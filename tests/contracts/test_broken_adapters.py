"""Contract suites detect broken adapters: each adapter here violates one rule, and the test of that rule fails."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import pytest

FILES = ("engines", "state", "steps", "storage", "environment")
ROOT = Path(__file__).parents[2]

TWO_STORAGES = """
import pytest
from hexloop.adapters.storage.faults import FaultyStorage
from hexloop.adapters.storage.memory import MemoryStorage
from hexloop.testing import StorageContract

class TestOne(StorageContract):
    @pytest.fixture
    def storage(self):
        return MemoryStorage()

class TestOther(StorageContract):
    @pytest.fixture
    def storage(self):
        return FaultyStorage(MemoryStorage())
"""


@pytest.mark.one_in(5)
@pytest.mark.parametrize("file", FILES)
def test_every_violation_is_detected(file: str, tmp_path: Path) -> None:
    """The test named by a broken adapter fails on it, quickly even where pytest prints full comparisons, as in CI."""
    report = tmp_path / "report.xml"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-o",
            "junit_family=xunit2",
            f"--junitxml={report}",
            f"tests/contracts/broken/{file}.py",
        ],
        cwd=ROOT,
        env={**os.environ, "CI": "true"},
        capture_output=True,
        check=False,
    )
    failed = {
        (case.get("classname", "").rpartition(".")[2], case.get("name", "").partition("[")[0])
        for case in ElementTree.parse(report).iter("testcase")
        if case.find("failure") is not None
    }

    module = import_module(f"tests.contracts.broken.{file}")
    violations = {(name, suite.broken) for name, suite in vars(module).items() if hasattr(suite, "broken")}
    assert len(violations) > 5
    assert violations - failed == set()


def test_several_classes_can_inherit_one_suite(tmp_path: Path) -> None:
    """Two adapters of one port can be tested in one process."""
    (tmp_path / "test_two.py").write_text(TWO_STORAGES)
    completed = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert completed.returncode == 0, completed.stdout
