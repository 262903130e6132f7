"""Libraries and scripts written for transformers run unmodified on hexloop, with transformers' numbers.

Each case runs in an environment with pinned packages, which `make test-ecosystem` creates.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hexloop.app.takeover.checking import Difference, differences
from tests.ecosystem.cases import ENVIRONMENTS, SCRIPTS, SMALLER_ENVIRONMENT, Case, all_cases
from tests.ecosystem.programs import launched, prepared, python_of, run

CASES = all_cases()
AGREES = re.compile(
    r"agrees with transformers to the last bit: ([\d,]+) values at ([\d,]+) steps, and ([\d,]+) tensors"
)
SHARED = ("tiny", "official.py")
"""The names of modules that scripts import start with these."""
RECORDING = ("-m", "hexloop.app.takeover.recording")


def parameters(cases: list[Case]) -> list[Any]:
    marks = {case: () if case.smaller_set else (pytest.mark.matrix,) for case in cases}
    return [pytest.param(case, id=case.name, marks=marks[case]) for case in cases]


@pytest.mark.parametrize("case", parameters([case for case in CASES if case.tolerance is None]))
@pytest.mark.timeout(1800)
def test_agrees_to_the_last_bit(case: Case, tmp_path: Path) -> None:
    """All losses, rates, norms, metrics and final weights are those of transformers, and files stay in the folder."""
    script = prepared(case, tmp_path)
    command = launched(case, "-m", "hexloop", "run", "--check", *script)
    done = run(python_of(case.environment), *command, folder=tmp_path)
    report = done.stdout[-1000:] + done.stderr[-4000:]
    assert done.returncode == 0, report
    found = AGREES.search(done.stdout)
    assert found, report
    assert all(int(number.replace(",", "")) > 0 for number in found.groups()), report
    assert {path.name for path in tmp_path.iterdir()} <= {"inputs", "cache"}


@pytest.mark.parametrize("case", parameters([case for case in CASES if case.tolerance is not None]))
@pytest.mark.timeout(1800)
def test_agrees_closely(case: Case, tmp_path: Path) -> None:
    """Two runs with transformers differ in their last bits; hexloop's numbers are within the tolerance."""
    script = prepared(case, tmp_path)
    runs = []
    for number, library in enumerate(("transformers", "transformers", "hexloop")):
        folder = tmp_path / f"records-{number}"
        folder.mkdir()
        command = launched(case, *RECORDING, folder, library, *script)
        done = run(python_of(case.environment), *command, folder=tmp_path, TMPDIR=str(folder))
        assert done.returncode == 0, done.stderr[-8000:]
        lines = (folder / f"{library}.jsonl").read_text(encoding="utf-8").splitlines()
        runs.append([record for record in map(json.loads, lines) if record["kind"] != "start"])
    assert runs[0], "nothing was recorded"
    assert list(differences(runs[0], runs[1])), "transformers' two runs agree to the last bit, so remove the tolerance"
    far = [str(each) for each in differences(runs[0], runs[2]) if not is_close(each, case)]
    assert not far, far[:5]


def is_close(difference: Difference, case: Case) -> bool:
    """Return whether a value is within the tolerance; the digests of weights cannot be, and are passed over."""
    one, other = difference.one, difference.other
    if isinstance(one, str) and isinstance(other, str) and difference.name != "what happens":
        return True
    return isinstance(one, float) and isinstance(other, float) and one == pytest.approx(other, rel=case.tolerance)


def test_the_table_is_complete() -> None:
    """Names are unique, scripts and environments exist, and each of them is used."""
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    assert {case.environment for case in CASES} == {path.stem for path in ENVIRONMENTS.glob("*.txt")}
    programs = {path.name for path in SCRIPTS.glob("*.py") if not path.name.startswith(SHARED)}
    assert {case.script for case in CASES} == programs


def test_the_smaller_set() -> None:
    """It is about a tenth of the cases of the one environment that it needs."""
    smaller = [case for case in CASES if case.smaller_set]
    cases = [case for case in CASES if case.environment == SMALLER_ENVIRONMENT]
    assert len(cases) / 10 <= len(smaller) <= len(cases) / 8
    assert {case.environment for case in smaller} == {SMALLER_ENVIRONMENT}
