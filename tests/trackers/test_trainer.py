"""A Trainer with `report_to`, on the real library of each tracker, whose store is read back."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from hexloop.ports.logger import Record
from tests.trackers import (
    test_clear,
    test_comet,
    test_dvc,
    test_mlflow,
    test_nep,
    test_swanlab,
    test_trackio,
    test_wandb,
)
from tests.trackers.contract import TrackerContract, joined
from tests.trackers.running import LONGEST, PROGRAMS, StoredRun, python_of, variables_for

TRACKERS: dict[str, TrackerContract] = {
    "clearml": test_clear.TestClearML(),
    "comet_ml": test_comet.TestComet(),
    "dvclive": test_dvc.TestDVCLive(),
    "mlflow": test_mlflow.TestMLflow(),
    "neptune": test_nep.TestNeptune(),
    "swanlab": test_swanlab.TestSwanLab(),
    "trackio": test_trackio.TestTrackio(),
    "wandb": test_wandb.TestWandb(),
}
WITH_ALL_VALUES = ("mlflow", "swanlab", "trackio", "wandb")
"""Those whose history has each value of the log, but for those that their contract leaves out."""


def train(tracker: str, mode: str, folder: Path) -> str:
    """Train in the environment of the tracker; return what was printed."""
    contract = TRACKERS[tracker]
    done = subprocess.run(
        [python_of(contract.environment), PROGRAMS / "training.py", tracker, mode],
        cwd=folder,
        env=variables_for(folder, contract.variables(folder)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    assert (done.returncode == 0) == (mode != "fail"), done.stdout
    assert "The logger" not in done.stdout
    assert "left alone" not in done.stdout
    return done.stdout


def stored(tracker: str, folder: Path) -> StoredRun:
    """Return the only run of the store, or the parts that each process left of it."""
    return joined(TRACKERS[tracker].read(folder))


def steps_of(tracker: str, run: StoredRun, name: str) -> list[float | None]:
    """Return the steps of a value."""
    return [step for step, _ in dict.fromkeys(run.history.get(TRACKERS[tracker].name_of(name), []))]


@pytest.mark.matrix
@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_run_is_tracked(tracker: str, tmp_path: Path) -> None:
    """Its losses, metrics and parameters are in the store, and that it finished."""
    train(tracker, "finish", tmp_path)
    contract, run = TRACKERS[tracker], stored(tracker, tmp_path)
    assert steps_of(tracker, run, "loss") == [2, 4, 6, 8]
    assert steps_of(tracker, run, "eval_loss") == [4, 8]
    assert contract.same(run.parameters[contract.parameter("learning_rate")], 0.25)
    assert run.status == contract.statuses["finished"]
    assert run.name in (None, "a tiny run")


@pytest.mark.matrix
@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_run_that_failed_is_marked_and_continues(tracker: str, tmp_path: Path) -> None:
    """The store has the error; the run resumes from its checkpoint into the same run of the tracker, and finishes."""
    printed = train(tracker, "fail", tmp_path)
    assert "the disk is on fire" in printed
    contract, failed = TRACKERS[tracker], stored(tracker, tmp_path)
    assert failed.status == contract.statuses["failed"]
    assert "the disk is on fire" in str({**failed.parameters, **failed.summary, **failed.more})
    train(tracker, "resume", tmp_path)
    run = stored(tracker, tmp_path)
    assert run.identity == failed.identity
    assert set(steps_of(tracker, run, "loss")) == {2, 4, 6, 8}
    assert set(steps_of(tracker, run, "eval_loss")) == {4, 8}
    assert run.status == contract.statuses["finished"]


@pytest.mark.matrix
@pytest.mark.parametrize("tracker", WITH_ALL_VALUES)
def test_the_history_is_that_of_the_trainer(tracker: str, tmp_path: Path) -> None:
    """Each number of `trainer.state.log_history` is in the store, at its step; several runs in a process are apart."""
    train(tracker, "twice", tmp_path)
    contract = TRACKERS[tracker]
    runs = contract.read(tmp_path)
    assert len({run.identity for run in runs}) == len(runs) == 2
    entries = json.loads((tmp_path / "log_history.json").read_text(encoding="utf-8"))
    records = [Record(entry.pop("step"), entry["epoch"], entry) for entry in entries]
    expected = contract.expected(*records)
    loss = contract.name_of("loss")
    assert [run.history[loss] for run in runs] == [expected[loss]] * 2  # both are the same run, but for their speed
    assert any(contract.found(run, expected) == expected for run in runs)
