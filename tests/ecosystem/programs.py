"""Runs programs with the Python of an environment that `make test-ecosystem` creates."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.ecosystem.cases import SCRIPTS, Case

CREATED = Path(__file__).resolve().parents[2] / ".ecosystem"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


def python_of(environment: str) -> Path:
    """Return the Python of an environment. Skips the test if the environment has not been created."""
    python = CREATED / environment / "bin" / "python"
    if not python.exists():
        pytest.skip(f"`make test-ecosystem` creates the environment {environment!r} and runs this")
    return python


def run(python: Path, *words: str | Path, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python with `words` in `folder` without the network, and wait for its end."""
    environment: Mapping[str, str] = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "TRITON_INTERPRET": "1",  # read when triton is imported
        "HF_HOME": str(folder / "cache"),
        "HF_HUB_OFFLINE": "1",
        **variables,
    }
    return subprocess.run(
        [python, *map(str, words)], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def prepared(case: Case, folder: Path) -> list[str | Path]:
    """Write the inputs of a case to `folder`, and return the script and its arguments. Skips as `python_of` does."""
    inputs = folder / "inputs"
    python = python_of(case.environment)
    if case.inputs:
        done = run(python, SCRIPTS / "tiny.py", inputs, *case.inputs, folder=folder)
        assert done.returncode == 0, done.stderr
    arguments = [argument.replace("{inputs}", str(inputs)) for argument in case.arguments]
    return [SCRIPTS / case.script, *arguments, "--output_dir", "out"]


def launched(case: Case, *words: str | Path) -> list[str | Path]:
    """Return the command line of a module and its arguments in the processes of a case: `-m MODULE ...`."""
    return [*words] if case.processes == 1 else [*TORCHRUN, str(case.processes), *words]
