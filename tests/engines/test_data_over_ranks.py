"""Data sharding in real processes: the same batches as one process, every row once, and the same evaluation."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.engines import shared_data
from tests.engines.processes import run_ranks

Results = list[dict[str, Any]]
"""What each process read and returned, by scenario."""

STREAM = {"data": "stream", "rows": 41}  # the last batch has one row, so that the others compute padding
DISPATCH = {"accelerator": {"dispatch_batches": True}}
SHORT: dict[str, dict[str, Any]] = {
    "map": {"data": "map", "rows": 25, "epochs": 1},
    "stream": {"data": "stream", "rows": 25, "epochs": 1, "held_out": 1},  # one batch is held out, for two processes
    "dispatched": {"data": "stateful", "rows": 19, "epochs": 1, **DISPATCH},
    "loader": {"data": "loader", "rows": 21, "epochs": 1, "shuffle": False},
    "rebalanced": {
        "data": "map",
        "rows": 41,
        "epochs": 2,
        "arguments": {
            "train_sampling_strategy": "batch_rebalance",
            "length_column_name": "ids",
            "gradient_accumulation_steps": 2,
        },
    },
    "buckets": {"data": "map", "rows": 40, "epochs": 1, "arguments": {"compile_buckets": 2}},
    "own step": {"data": "map", "rows": 41, "trainer": "own step"},
    "own part": {"data": "own part"},
    "own part in a loader": {"data": "own part", "trainer": "own loader"},
    "one sample": {"data": "map", "rows": 1},
    "one row": {"data": "without length", "rows": 1, "arguments": {"max_steps": 3}},
}
SAME_AS_ALONE: dict[str, dict[str, Any]] = {
    "map": {"data": "map", "rows": 41},
    "accumulated": {"data": "map", "rows": 41, "arguments": {"gradient_accumulation_steps": 3}},
    "meeting each batch": {
        "data": "map",
        "arguments": {"gradient_accumulation_steps": 3},
        "accelerator": {"gradient_accumulation_kwargs": {"sync_each_batch": True}},
    },
    "stream": STREAM,
    "shuffled": {"data": "shuffled", "arguments": {"keyed_data_randomness": True}},
    "shuffled with workers": {"data": "stateful", "workers": 2, "rows": 43},
    "dispatched": {**STREAM, **DISPATCH},
    "dispatched with workers": {"data": "stateful", "workers": 2, "rows": 43, **DISPATCH},
    "dropped": {**STREAM, "arguments": {"dataloader_drop_last": True}},
    "loader": {"data": "loader", "shuffle": False, "rows": 41},
    "loader with workers": {"data": "loader", "shuffle": False, "rows": 41, "workers": 2},
    "dispatched loader": {"data": "loader", "shuffle": False, "rows": 41, **DISPATCH},
    "split loader": {"data": "loader", "shuffle": False, "rows": 41, "splits": True, "eval_batch": 4},
    "split stream": {**STREAM, "splits": True, "eval_batch": 4},
    "list of batches": {"data": "list of batches", "rows": 41},
    "metrics by batch": {"data": "map", "arguments": {"batch_eval_metrics": True}},
    "accumulated evaluation": {"data": "stream", "arguments": {"eval_accumulation_steps": 2}},
    "lists of batches": {"data": "stream", "arguments": {"eval_do_concat_batches": False}},
    "one held-out row": {"data": "map", "held_out": 1},
}
OF_ITS_OWN_ORDER: dict[str, dict[str, Any]] = {
    "shuffled loader": {"data": "loader"},
    "shuffled loader with workers": {"data": "loader", "workers": 2},
    "dispatched shuffled loader": {"data": "loader", **DISPATCH},
}
RESUMED: dict[str, dict[str, Any]] = {
    "stream": STREAM,
    "stateful": {"data": "stateful"},
    "stateful with workers": {"data": "stateful", "workers": 2},
    "dispatched": {"data": "stateful", **DISPATCH},
    "dispatched with workers": {"data": "stateful", "workers": 2, **DISPATCH},
    "loader": {"data": "loader"},
    "loader with workers": {"data": "loader", "workers": 2},
    "list of batches": {"data": "list of batches"},
}


def launch(world: int, scenarios: dict[str, Any], folder: Path, **environment: str) -> Results:
    """Run the scenarios in so many processes."""
    words = ("-m", "tests.engines.shared_data", str(folder), json.dumps(scenarios))
    run_ranks(world, *words, folder=folder, variables={"OMP_NUM_THREADS": "1", **environment})
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(world)]


def of(results: Results, name: str) -> Results:
    """Return each process's result of a scenario, after checking that all finished under the expected engine."""
    found = [each[name] for each in results]
    for each in found:
        assert "error" not in each, (name, each)
        assert each["engine"] == "DistributedDataParallel" or not each["seen"]
        assert each["world"] == len(results)
    return found


def steps(results: Results) -> list[list[int]]:
    """Return the rows of each step over all processes, in the order of ranks. All took the same number of steps."""
    return [[row for rows in each for row in rows] for each in zip(*(one["seen"] for one in results), strict=True)]


def numbers(nested: Any) -> Iterator[float]:
    """Return the numbers in nested lists."""
    if isinstance(nested, list):
        for each in nested:
            yield from numbers(each)
    else:
        yield float(nested)


def apart(one: Any, other: Any) -> float:
    """Return the norm of the difference, relative to the norm."""
    pairs = list(zip(numbers(one), numbers(other), strict=True))
    return math.dist(*zip(*pairs, strict=True)) / math.hypot(*(value for value, _ in pairs))


def assert_same_as_alone(alone: dict[str, Any], together: Results, exactly: bool = True) -> None:
    """Each step has the same rows; losses, weights and evaluation are bitwise equal."""
    assert steps(together) == list(alone["seen"])
    for each in together:
        assert each["losses"] == pytest.approx(alone["losses"], rel=1e-5)
        assert apart(alone["weights"], each["weights"]) < 1e-5
        for name in ("predictions", "label_ids", "metrics", "given") if exactly else ("label_ids",):
            assert each[name] == alone[name], name
        assert apart(alone["predictions"][0], each["predictions"][0]) < 1e-6


def assert_rebalanced(alone: dict[str, Any], together: Results) -> None:
    """Each optimizer step has the samples and the results of one process; the processes compute about the same."""

    def of_steps(batches: Any) -> list[list[int]]:
        """Return the rows of each optimizer step; an epoch has 6 micro-batches of two processes."""
        return [sorted(row for each in batches[at : at + 2] for row in each) for at in range(0, len(batches), 2)]

    assert of_steps(steps(together)) == of_steps(alone["seen"])
    for each in together:
        assert each["losses"] == pytest.approx(alone["losses"], rel=1e-5)
        assert apart(alone["weights"], each["weights"]) < 1e-5
    first, second = (each["seen"] for each in together)
    assert (len(first), len(second)) == (12, 12)
    assert {len(rows) for rows in first} > {4}
    costs = [[len(rows) * max(rows) for rows in each] for each in (first[:4], second[:4])]  # the ids are the lengths
    assert all(0.5 < one / other < 2 for one, other in zip(*costs, strict=True))


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any], Any]:
    """Return the results of a single process, this one."""

    @cache
    def run(scenario: str) -> dict[str, Any]:
        return shared_data.run(json.loads(scenario), tmp_path_factory.mktemp("alone"))

    return lambda scenario: run(json.dumps(scenario))


def test_two_processes_match_one_process(tmp_path: Path, alone: Callable[[Any], Any]) -> None:
    """Map-style data, a stream whose last batch is partial, a dispatched stream, a loader; buckets; refused data."""
    results = launch(2, SHORT, tmp_path)

    for name in ("map", "stream", "dispatched", "loader", "buckets"):
        assert_same_as_alone(alone(SHORT[name]), of(results, name))
    assert_rebalanced(alone(SHORT["rebalanced"]), of(results, "rebalanced"))
    for name, reported in (
        ("own step", "dataloader_drop_last=True"),
        ("own part", "read different rows"),
        ("own part in a loader", "read different rows"),
        ("one sample", "too many ranks for the data"),
        ("one row", "too many ranks for the data"),
    ):
        assert all(reported in each[name]["error"] and each[name]["world"] == 2 for each in results), name


@pytest.fixture(scope="session")
def together(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Results]:
    """Return the results of `size` processes in every scenario that also runs in one."""

    @cache
    def run(world: int) -> Results:
        scenarios = SAME_AS_ALONE | OF_ITS_OWN_ORDER | {"distributed": {"data": "distributed"}}
        return launch(world, scenarios, tmp_path_factory.mktemp("together"))

    return run


@pytest.mark.matrix
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("name", SAME_AS_ALONE)
def test_several_processes_match_one_process(
    name: str, world: int, together: Callable[[int], Results], alone: Callable[[Any], Any]
) -> None:
    """Each step has the same rows, and losses, weights and evaluation agree.

    Where evaluation batches are split, smaller and less padded batches round differently.
    """
    scenario = SAME_AS_ALONE[name]
    assert_same_as_alone(alone(scenario), of(together(world), name), exactly="splits" not in scenario)


@pytest.mark.matrix
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("name", OF_ITS_OWN_ORDER)
def test_a_shuffling_loader_yields_each_row_once_in_one_order(
    name: str, world: int, together: Callable[[int], Results]
) -> None:
    """The order of a user's loader does not depend on the number of processes or on which rank reads."""
    found = steps(of(together(world), name))

    assert found == steps(of(together(2), "shuffled loader"))
    for epoch in (found[:6], found[6:]):
        assert sorted(row for rows in epoch for row in rows) == list(range(45))
    assert found[:6] != found[6:]


@pytest.mark.matrix
@pytest.mark.parametrize("world", [2, 4])
def test_a_distributed_sampler_is_used_unchanged(
    world: int, together: Callable[[int], Results], alone: Callable[[Any], Any]
) -> None:
    """Its sampler receives the epoch and may repeat rows in training; evaluation reads each row once, in order."""
    found = of(together(world), "distributed")

    repeated = -45 % world
    for epoch in (steps(found)[:6], steps(found)[6:]):
        rows = [row for rows in epoch for row in rows]
        assert (len(rows), set(rows)) == (45 + repeated, set(range(45)))
    assert steps(found)[:6] != steps(found)[6:]
    for each in found:
        assert each["predictions"] == alone({"data": "loader"})["predictions"]


@pytest.mark.matrix
@pytest.mark.parametrize("world", [2, 4])
def test_a_resumed_run_is_bitwise_equal_to_an_uninterrupted_one(world: int, tmp_path: Path) -> None:
    """With the same number of processes and with dropout: rows, losses and weights are bitwise equal."""
    stopped = {f"resumed {name}": scenario | {"stop_at": 4} for name, scenario in RESUMED.items()}
    results = launch(world, RESUMED | stopped, tmp_path, DROPS="1")

    for name in RESUMED:
        for whole, resumed in zip(of(results, name), of(results, f"resumed {name}"), strict=True):
            for kept in ("seen", "losses", "weights"):
                assert resumed[kept] == whole[kept], (name, kept)


@pytest.mark.matrix
@pytest.mark.parametrize("world", [2, 3, 4])
def test_all_ranks_finish_whatever_the_number_of_batches(
    world: int, tmp_path: Path, alone: Callable[[Any], Any]
) -> None:
    """Streams of 0 to 2 * world + 1 batches, with and without workers: training, evaluation and prediction.

    Evaluation returns what one process returns. Training reads no row twice. If the stream has no row, all ranks raise
    the same error.
    """
    size, scenarios = shared_data.GLOBAL_BATCH // world, dict[str, dict[str, Any]]()
    for workers in (0, 2):
        for batches in range(2 * world + 2):
            shared = {"data": "stream", "workers": workers}
            scenarios[f"evaluates {batches}, {workers}"] = {
                **shared,
                "held_out": max(2 * batches - 1, 0),
                "trains": False,
            }
            rows = max(size * batches - 1, world)  # fewer are refused: too many ranks
            scenarios[f"trains {batches}, {workers}"] = {**shared, "held_out": 1, "rows": rows, "epochs": 1}
    # The last one, because the processes of a run that failed no longer work together.
    scenarios["trains nothing"] = {"data": "stream", "held_out": 1, "rows": 0}
    results = launch(world, scenarios, tmp_path)

    assert {each["trains nothing"].get("error") for each in results} == {results[0]["trains nothing"]["error"]}
    for name, scenario in list(scenarios.items())[:-1]:
        found = of(results, name)
        if scenario.get("trains", True):
            read = [row for rows in steps(found) for row in rows]
            # As many steps are planned as for one reader, although each of several workers has a last batch.
            assert len(read) == len(set(read)) if scenario["workers"] else read == [*range(scenario["rows"])], name
        else:
            expected = alone(scenario | {"workers": 0})
            for each in found:
                # Workers take turns by batch, so that their rows come in another order than those of one.
                assert sorted(each["label_ids"] or []) == sorted(expected["label_ids"] or []), name
                assert each["label_ids"] == found[0]["label_ids"]


@pytest.mark.matrix
def test_a_run_resumes_with_the_same_rows_on_another_number_of_processes(tmp_path: Path) -> None:
    """A checkpoint of two processes resumes in four and in one."""
    names = [name for name in RESUMED if "loader" not in name]
    stopped = {name: RESUMED[name] | {"stop_at": 4} for name in names}
    before = launch(2, stopped, tmp_path / "two")
    resumed_by = {name: RESUMED[name] | {"from": str(tmp_path / "two" / name / "checkpoint-4")} for name in names}
    after = launch(4, resumed_by, tmp_path / "four")
    (in_one,) = launch(1, resumed_by, tmp_path / "one")

    for name in names:
        whole = steps(of(before, name))
        assert steps(of(after, name)) == whole[4:], name
        assert apart(of(before, name)[0]["weights"], of(after, name)[0]["weights"]) < 1e-5
        assert in_one[name]["seen"] == whole[4:], name
