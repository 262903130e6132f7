"""A device that a program adds to torch, in processes of its own: contract suites, training and resume."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler: apt-get install g++"),
]


def test_suites_pass_on_it() -> None:
    """Those of devices, precisions, learners and evaluators, and runs that are compared with the CPU's."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/private_device/suites.py"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=600)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 80
    assert "skipped" not in done.stdout
