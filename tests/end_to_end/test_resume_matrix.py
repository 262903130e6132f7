"""Runs of every kind, interrupted and resumed, equal uninterrupted ones.

`make test-all` resumes the whole array in fresh processes; `make test` few of its cases, in its own process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hexloop.app.testing.resume_exactness import first_difference
from tests.covering import Choice, all_pairs, covering_array, pairs_of
from tests.end_to_end.resume import halves
from tests.end_to_end.resume.cases import FACTORS, SCHEDULES, allowed
from tests.end_to_end.resume.halves import read

ROOT = Path(__file__).parents[2]
Parts = Callable[..., None]
PLAIN: Choice = {
    "workers": 0, "augmentation": "torch", "dropout": 0.3, "accumulation": 4, "schedule": "linear",
    "precision": "fp32", "early stopping": True, "callback": True, "way": "cut twice",
}  # fmt: skip


def listed(cases: list[tuple[int, Choice]], folder: Path) -> str:
    """Write the cases to a file and return its path."""
    path = folder / "cases.json"
    path.write_text(json.dumps(cases))
    return str(path)


def in_this_process(cases: list[tuple[int, Choice]], folder: Path, *parts: str) -> None:
    halves.main(listed(cases, folder), str(folder), *parts)


def in_a_process(cases: list[tuple[int, Choice]], folder: Path, *parts: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.end_to_end.resume.halves", listed(cases, folder), str(folder), *parts],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-5000:]


def assert_all_resume_exactly(cases: list[tuple[int, Choice]], folder: Path, run: Parts = in_a_process) -> None:
    """Run in three turns: uninterrupted runs and first parts, resumed runs, and what follows second interruptions."""
    run(cases, folder, "whole", "0")
    run(cases, folder, "1")
    twice = [(number, case) for number, case in cases if case["way"] == "cut twice"]
    if twice:
        run(twice, folder, "2")
    differing = {}
    for number, case in cases:
        steps: dict[int, Any] = {}
        parts = sorted(path.stem for path in (folder / str(number)).glob("[0-9].json"))
        assert len(parts) == (3 if case["way"] == "cut twice" else 2)
        for part in parts:
            noted = read(folder / str(number), part)
            steps = {step: each for step, each in steps.items() if step <= noted.started_at} | noted.steps
        noted.steps = steps
        found = first_difference(read(folder / str(number), "whole"), noted, [0])
        if found is not None:
            differing[number] = f"{case}: {found}"
    assert not differing, f"{len(differing)} of {len(cases)} differ:\n" + "\n".join(differing.values())


def cases() -> list[tuple[int, Choice]]:
    return list(enumerate(covering_array(FACTORS, allowed)))


def test_the_array_covers_every_pair() -> None:
    """Each allowed pair of values occurs in at least one case, and no other pair."""
    chosen = covering_array(FACTORS, allowed)

    assert set().union(*map(pairs_of, chosen)) == all_pairs(FACTORS, allowed)
    assert all(allowed(case) and case.keys() == FACTORS.keys() for case in chosen)
    assert chosen == covering_array(FACTORS, allowed)
    assert len(chosen) < 200
    assert len(SCHEDULES) == 12


def with_every_value(listed: list[tuple[int, Choice]]) -> list[tuple[int, Choice]]:
    """Return few cases without workers that contain every value of the other factors.

    Workers take seconds to start; test_resume_data.py resumes runs with some.
    """
    listed = [each for each in listed if not each[1]["workers"]]
    missing, chosen = {(factor, value) for factor in FACTORS.keys() - {"workers"} for value in FACTORS[factor]}, []
    while missing:
        number, case = max(listed, key=lambda each: len(missing & each[1].items()))
        missing -= case.items()
        chosen.append((number, case))
    return chosen


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
@pytest.mark.filterwarnings("ignore:The run ends with")  # one stopped before its first save has no best checkpoint
def test_every_value_resumes_exactly(tmp_path: Path) -> None:
    """Weights, optimizer, history, data and random states equal the uninterrupted run's, in cases of the array."""
    assert_all_resume_exactly(with_every_value(cases()), tmp_path, run=in_this_process)


@pytest.mark.matrix
def test_every_kind_of_data_resumes_exactly_in_a_fresh_process(tmp_path: Path) -> None:
    """Weights, optimizer, history, data and random states equal the uninterrupted run's, with all features on.

    With workers, the saved position is that of the run, not of prefetched batches.
    """
    ways, precisions = FACTORS["way"][:4], FACTORS["precision"]
    chosen = [
        {**PLAIN, "data": data, "way": ways[number % len(ways)], "precision": precisions[number % len(precisions)]}
        for number, data in enumerate(FACTORS["data"])
    ]
    chosen.append({**PLAIN, "workers": 2, "way": "cut", "accumulation": 1, "data": "iterable with state"})
    assert_all_resume_exactly(list(enumerate(chosen)), tmp_path)


@pytest.mark.matrix
@pytest.mark.timeout(1800)
def test_every_pair_resumes_exactly(tmp_path: Path) -> None:
    """The covering array, with many cases in each process."""
    assert_all_resume_exactly(cases(), tmp_path)


@pytest.mark.matrix
@pytest.mark.parametrize("number", [0, 17, 34, 51, 68])
def test_a_case_resumes_exactly_in_processes_of_its_own(tmp_path: Path, number: int) -> None:
    """A case of the array with a process for each of its parts."""
    assert_all_resume_exactly([cases()[number]], tmp_path)
