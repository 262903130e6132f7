"""The corpus of the fuzzers has no findings, and neither have a few changes of each case."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.processes import run_all
from tests.fuzz.queues import QUEUES
from tests.fuzz.targets import CORPUS, PARSERS, Target
from tests.warm_python import warm_python

MOST_BYTES = 300_000


@pytest.mark.matrix
def test_the_corpus_has_no_findings() -> None:
    """Each seed, and each case that was a finding once, goes through its target, in a process of its own."""
    ended = subprocess.run(
        [warm_python(), "-m", "tests.fuzz", "--replay"],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert int(ended.stdout.split()[-4]) >= len(files), ended.stdout
    assert sum(path.stat().st_size for path in files) < MOST_BYTES


@pytest.mark.one_in(4)
@pytest.mark.parametrize("target", [*PARSERS, *QUEUES], ids=lambda target: target.name)
def test_changed_cases_have_no_findings(target: Target) -> None:
    """Random changes of the corpus, in processes of their own."""
    seeds = target.seeds()

    @settings(max_examples=4, database=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.integers(0, 2**32), min_size=1, max_size=60))
    def check(numbers: list[int]) -> None:
        cases = [target.mutate(Random(each).choice(seeds), Random(each), seeds) for each in numbers]
        assert not run_all(target.name, target.run, cases).findings

    check()


def test_every_folder_of_the_corpus_has_a_target() -> None:
    """A folder without one would never be replayed."""
    from tests.fuzz.everything import TARGETS

    assert {path.name for path in CORPUS.iterdir()} <= TARGETS.keys()
