"""Scripts that train again from a checkpoint of theirs have transformers' numbers, but for a documented one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hexloop.app.takeover.checking import differences
from tests.ecosystem.cases import Case
from tests.ecosystem.cases_trl import RESUMED
from tests.ecosystem.programs import launched, prepared, python_of, run
from tests.ecosystem.test_ecosystem import RECORDING

DIFFERENT = "train_loss"
"""It is the mean over the whole run; with transformers, over the steps since the resume."""


@pytest.mark.matrix
@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in RESUMED])
@pytest.mark.timeout(1800)
def test_a_resumed_run_agrees_to_the_last_bit(case: Case, tmp_path: Path) -> None:
    """Losses, rates, norms, metrics and the final weights of both trainings are those of transformers."""
    script, runs = prepared(case, tmp_path), []
    for library in ("transformers", "hexloop"):
        folder = tmp_path / library
        folder.mkdir()
        command = launched(case, *RECORDING, folder, library, *script)
        done = run(python_of(case.environment), *command, folder=tmp_path, TMPDIR=str(folder))
        assert done.returncode == 0, done.stderr[-8000:]
        lines = (folder / f"{library}.jsonl").read_text(encoding="utf-8").splitlines()
        runs.append([record for record in map(json.loads, lines) if record["kind"] != "start"])
    assert sum(record["kind"] == "weights" for record in runs[0]) == 2, "the script does not train twice"
    found = [str(each) for each in differences(*runs) if each.name != DIFFERENT]
    assert not found, found[:5]
