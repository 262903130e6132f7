"""Scripts of the structure of transformers' examples end as with `python`, leave the same files, and resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.ecosystem.cases import Case
from tests.ecosystem.cases_official import CASES
from tests.ecosystem.programs import launched, prepared, python_of, run

HEXLOOP = ("-m", "hexloop", "run", "--reproduce", "transformers")
ONE_EACH = [case for case in CASES if case.name == case.script.removesuffix(".py") or case.processes > 1]
OF_MACHINE = ("runtime", "per_second", "total_flos")
"""Parts of the names of results that depend on the machine."""


def results(folder: Path) -> dict[str, Any]:
    values = json.loads((folder / "all_results.json").read_text(encoding="utf-8"))
    return {name: None if any(part in name for part in OF_MACHINE) else value for name, value in values.items()}


def names(folder: Path) -> set[str]:
    """Return the names of the files in a folder, but for pickles, which hexloop does not write."""
    return {path.name for path in folder.iterdir() if path.suffix not in (".bin", ".pt", ".pth")}


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name, marks=pytest.mark.matrix) for case in ONE_EACH])
@pytest.mark.timeout(1800)
def test_a_script_ends_as_with_python(case: Case, tmp_path: Path) -> None:
    """Exit code 0, equal results and predictions, no file missing but pickles; and a second start resumes."""
    python = python_of(case.environment)
    script, *arguments = prepared(case, tmp_path)
    arguments = arguments[:-1]  # the folder
    plain, ours = tmp_path / "plain", tmp_path / "ours"
    for folder, start in ((plain, ()), (ours, HEXLOOP)):
        command = launched(case, *start, script, *arguments, folder)
        done = run(python, *command, folder=tmp_path)
        assert done.returncode == 0, done.stderr[-8000:]
    assert results(ours) == results(plain)
    for path in (*plain.glob("*predict*"), *plain.glob("*generated*")):
        if path.name != "predict_results.json":
            assert (ours / path.name).read_text() == path.read_text(), path.name
    assert names(plain) <= names(ours)
    assert names(plain / "checkpoint-20") <= names(ours / "checkpoint-20")

    again = run(python, *launched(case, *HEXLOOP, script, *arguments, ours, "--max_steps", "30"), folder=tmp_path)
    assert again.returncode == 0, again.stderr[-8000:]
    state = json.loads((ours / "trainer_state.json").read_text(encoding="utf-8"))
    assert state["global_step"] == 30
    evaluated = [entry["step"] for entry in state["log_history"] if "eval_runtime" in entry]
    assert evaluated[:3] == [10, 20, 30]
