"""The contracts can fail: of adapters that each break one promise, each is noticed by the test of that promise."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import pytest

FILES = ("engines", "state", "steps", "storage", "surroundings")
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


@pytest.mark.parametrize("file", FILES)
def test_every_broken_promise_is_noticed(file: str, tmp_path: Path) -> None:
    """The test that a broken adapter names fails on it, soon even where pytest draws whole comparisons, as in CI."""
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
    promises = {(name, suite.broken) for name, suite in vars(module).items() if hasattr(suite, "broken")}
    assert len(promises) > 5
    assert promises - failed == set()


def test_several_classes_inherit_a_suite_in_one_process(tmp_path: Path) -> None:
    """Two adapters of one port are tested one after the other, as in any project that has two."""
    (tmp_path / "test_two.py").write_text(TWO_STORAGES)
    completed = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert completed.returncode == 0, completed.stdout
