"""Packed documents in real processes: 1, 2 and 4 train on the same rows, also after a resume on another number."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.engines.processes import run_ranks

WORLDS = (1, 2, 4)

PACKED: dict[str, Any] = {"packing": True, "max_length": 24, "num_train_epochs": 2}
SCENARIOS: dict[str, dict[str, Any]] = {
    "bfd": {"arguments": PACKED, "save_steps": 2},
    "wrapped": {"arguments": {**PACKED, "packing_strategy": "wrapped", "max_length": 9}, "save_steps": 9},
    "tokens": {"arguments": {**PACKED, "tokens_per_batch": 50}, "save_steps": 2},
    "padded tokens": {"arguments": {"tokens_per_batch": 50, "num_train_epochs": 2}, "save_steps": 3},
    "stream": {"arguments": {"packing": True, "max_length": 24, "max_steps": 8}, "data": "stream", "save_steps": 3},
    "stateful": {"arguments": {"packing": True, "max_length": 24, "max_steps": 8}, "data": "stateful", "save_steps": 3},
}

Results = list[dict[str, Any]]


def launch(world: int, scenarios: dict[str, Any], folder: Path) -> Results:
    """Run the scenarios in so many processes."""
    words = ("-m", "tests.engines.packed_ranks", str(folder), json.dumps(scenarios))
    run_ranks(world, *words, folder=folder, variables={"OMP_NUM_THREADS": "1"})
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(world)]


def rows(results: Results, name: str) -> list[list[int]]:
    """Return the rows of a scenario in the order of positions: micro-batch by micro-batch, and rank by rank."""
    turns = zip(*(each[name]["seen"] for each in results), strict=True)
    return list(chain.from_iterable(chain.from_iterable(turns)))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[Path, Results]]:
    """The folder and the results of all scenarios, by the number of processes."""
    folders = {world: tmp_path_factory.mktemp(f"world-{world}") for world in WORLDS}
    return {world: (folder, launch(world, SCENARIOS, folder)) for world, folder in folders.items()}


@pytest.mark.matrix
@pytest.mark.parametrize("name", SCENARIOS)
def test_any_number_of_processes_trains_on_the_same_rows(whole: dict[int, tuple[Path, Results]], name: str) -> None:
    """The same documents share rows, in the same order and with the same losses."""
    alone = whole[1][1]
    assert len(rows(alone, name)) > 10
    for world in WORLDS[1:]:
        found = whole[world][1]
        assert rows(found, name) == rows(alone, name)
        assert all(each[name]["steps"] == alone[0][name]["steps"] for each in found)
        assert all(each[name]["epoch"] == pytest.approx(alone[0][name]["epoch"]) for each in found)
        assert found[0][name]["losses"] == pytest.approx(alone[0][name]["losses"], abs=1e-5)


@pytest.mark.matrix
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (2, 4), (4, 2), (4, 4)])
def test_a_run_resumes_on_another_number_of_processes(
    whole: dict[int, tuple[Path, Results]], tmp_path: Path, before: int, after: int
) -> None:
    """From each of its checkpoints it continues with the rows that come next."""
    folder, results = whole[before]
    scenarios, saved = {}, dict[str, int]()
    for name, scenario in SCENARIOS.items():
        for checkpoint in sorted((folder / name).glob("checkpoint-*")):
            step = int(checkpoint.name.rpartition("-")[2])
            if step < results[0][name]["steps"]:
                resumed = f"{name} from {step}"
                scenarios[resumed], saved[resumed] = {**scenario, "save_steps": 1000, "from": str(checkpoint)}, step
    assert len(scenarios) > len(SCENARIOS)
    found = launch(after, scenarios, tmp_path)
    for resumed, step in saved.items():
        name = resumed.rpartition(" from ")[0]
        expected, rest = rows(results, name), rows(found, resumed)
        assert rest == expected[len(expected) - len(rest) :]
        assert len(found[0][resumed]["losses"]) == results[0][name]["steps"]
        per_step = len(expected) / results[0][name]["steps"]
        assert abs(len(rest) - (results[0][name]["steps"] - step) * per_step) < 3 * per_step
