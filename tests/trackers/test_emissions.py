"""The adapter of codecarbon on the real library, whose file is read back."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from tests.trackers.contract import FIRST, OUTCOMES, information
from tests.trackers.running import PROGRAMS, Answer, SentRun, pinned, run, track

ROCM = """
import torch
torch.version.hip = "6.4.1"
from hexloop.adapters.logger.codecarbon import CodeCarbon
try:
    CodeCarbon()
except ValueError as error:
    print(error)
"""


def measured(folder: Path, *runs: SentRun, **more: Any) -> tuple[Answer, list[dict[str, str]]]:
    """Send runs to the adapter, and return the answer and the rows of the file."""
    variables = {"CODECARBON_LOG_LEVEL": "error", "CODECARBON_PROJECT_NAME": "digits"}
    adapter = "hexloop.adapters.logger.codecarbon:CodeCarbon"
    answer = track("trackers", adapter, "codecarbon", runs, folder=folder, variables=variables, **more)
    path = folder / "out" / "emissions.csv"
    rows = list(csv.DictReader(path.read_text().splitlines())) if path.exists() else []
    return answer, rows


def test_emissions_are_written(tmp_path: Path) -> None:
    """The row has the energy and the emissions of the run, under the library's own settings."""
    answer, rows = measured(tmp_path, SentRun(information(), FIRST))
    assert answer.error is None, answer.output
    assert answer.version == pinned("trackers", "codecarbon")
    assert answer.identities == [None]
    [row] = rows
    assert row["project_name"] == "digits"
    assert row["codecarbon_version"] == answer.version
    assert float(row["duration"]) > 0
    assert float(row["emissions"]) > 0


@pytest.mark.matrix
@pytest.mark.parametrize("kind", ["failed", "stopped", "preempted"])
def test_a_run_that_does_not_finish_is_measured(kind: str, tmp_path: Path) -> None:
    """However it ends, its row is written."""
    _, rows = measured(tmp_path, SentRun(information(), FIRST, outcome=OUTCOMES[kind]))
    assert len(rows) == 1


@pytest.mark.matrix
def test_each_run_has_a_row(tmp_path: Path) -> None:
    """Several runs of a process, and a run that is resumed by another process, are measured apart."""
    measured(tmp_path, *(SentRun(information(run=str(number)), FIRST) for number in range(2)))
    _, rows = measured(tmp_path, SentRun(information(step=20), FIRST))
    assert len({row["run_id"] for row in rows}) == len(rows) == 3


@pytest.mark.matrix
def test_a_killed_process_leaves_its_row(tmp_path: Path) -> None:
    """The row is brought up to date while the run goes on, and is one row however often."""
    _, rows = measured(tmp_path, SentRun(information(), FIRST, outcome=None), options={"seconds": 0.0}, dies_after=0.0)
    assert len(rows) == 1


@pytest.mark.matrix
def test_a_run_at_a_url_writes_beside_the_program(tmp_path: Path) -> None:
    """The library writes local files only."""
    answer, rows = measured(tmp_path, SentRun(information(folder="s3://bucket/out"), FIRST))
    assert answer.error is None, answer.output
    assert rows == []
    assert (tmp_path / "emissions.csv").exists()


@pytest.mark.matrix
def test_a_trainer_measures_its_run(tmp_path: Path) -> None:
    """`report_to="codecarbon"` writes a row into the output folder."""
    run("trackers", PROGRAMS / "training.py", "codecarbon", "finish", folder=tmp_path, variables={})
    [row] = csv.DictReader((tmp_path / "out" / "emissions.csv").read_text().splitlines())
    assert float(row["duration"]) > 0


@pytest.mark.matrix
def test_a_missing_package_is_an_error_of_the_constructor(tmp_path: Path) -> None:
    """It names what to install."""
    answer, _ = measured(tmp_path, SentRun(information()), hidden=["codecarbon"])
    assert answer.error is not None
    assert "run `pip install " in answer.error["text"]


@pytest.mark.matrix
def test_rocm_is_refused(tmp_path: Path) -> None:
    """The library cannot measure GPUs of AMD, as in transformers; no such GPU is needed to refuse."""
    printed = run("trackers", "-c", ROCM, folder=tmp_path, variables={})
    assert "PyTorch for ROCm (6.4.1)" in printed
