"""Runs stopped by real signals, in separate processes, are saved and resume bitwise."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hexloop.adapters.journal.json_lines import read
from hexloop.adapters.storage.local import LocalStorage
from hexloop.domain.checkpoints.reading import checkpoint_steps, verify
from tests.engines.preempted import CONTEXT, STEPS, Scenario, train

EVERY_SIGNAL = ["SIGINT", "SIGTERM", "SIGUSR1"]
IDENTITY = ("manifest.json", "run_state.json", "trainer_state.json", "training_args.json")
"""Files that tell runs apart, or hold readings of the clock."""


def ended(folder: Path, scenario: Scenario) -> int | None:
    """The exit code of a process that trains as the scenario says."""
    folder.mkdir(exist_ok=True)
    process = CONTEXT.Process(target=train, args=(folder, scenario))
    process.start()
    process.join(60)
    return process.exitcode


def told(folder: Path) -> dict[str, Any]:
    """What the last process in the folder said of its end."""
    document: dict[str, Any] = json.loads((folder / "told.json").read_text())
    return document


def bits(folder: Path) -> dict[str, Any]:
    """The last checkpoint of a finished run: every file of state, and the history but for readings of the clock."""
    checkpoint = folder / "out" / f"checkpoint-{STEPS}"
    files: dict[str, Any] = {
        path.name: path.read_bytes() for path in sorted(checkpoint.iterdir()) if path.name not in IDENTITY
    }
    state = json.loads((checkpoint / "run_state.json").read_text())
    for own in ("run", "parent_checkpoint"):
        del state[own]
    for entry in state["history"]:
        for reading in [name for name in entry if name.endswith(("runtime", "per_second"))]:
            del entry[reading]
    return files | {"state": state}


Whole = Callable[[int], dict[str, Any]]


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Return the result of an uninterrupted run with this many workers."""

    @cache
    def run(workers: int) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp("whole")
        assert ended(folder, Scenario(workers=workers)) == 0
        return bits(folder)

    return run


def assert_goes_on(folder: Path, whole: Whole, workers: int = 0, **changed: Any) -> None:
    """The same line once more finishes the run, as if nothing had been."""
    assert ended(folder, Scenario(resume="auto", workers=workers, **changed)) == 0
    expected, resumed = whole(workers), bits(folder)
    assert resumed.keys() == expected.keys()
    assert [name for name in expected if resumed[name] != expected[name]] == []


def assert_saved_and_stopped(folder: Path, scenario: Scenario, step: int) -> None:
    """The run ends after `step` with exit code 3 and a checkpoint of it, and every handler is put back."""
    assert ended(folder, scenario) == 3
    names = [f"signal {name}" for name in dict.fromkeys(scenario.signals)]
    expected = {"handlers put back": True, "step": step, "reasons": names, "checkpoint": f"checkpoint-{step}"}
    assert told(folder) == expected
    verify(LocalStorage(str(folder / "out")), f"checkpoint-{step}")


@pytest.mark.parametrize("name", EVERY_SIGNAL)
def test_a_signal_lets_the_step_end_saves_and_stops(tmp_path: Path, whole: Whole, name: str) -> None:
    """The run stops at that step and resumes exactly."""
    assert_saved_and_stopped(tmp_path, Scenario((name,), "step"), 4)
    assert_goes_on(tmp_path, whole)


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("SIGTERM", "fork"),
        pytest.param("SIGINT", "fork", marks=pytest.mark.matrix),
        pytest.param("SIGUSR1", "fork", marks=pytest.mark.matrix),
        pytest.param("SIGTERM", "spawn", marks=pytest.mark.matrix),
        pytest.param("SIGINT", "spawn", marks=pytest.mark.matrix),
        pytest.param("SIGUSR1", "spawn", marks=pytest.mark.matrix),
        pytest.param("SIGTERM", "forkserver", marks=pytest.mark.matrix),
    ],
)
def test_workers_go_on_when_the_whole_group_is_told_to_stop(
    tmp_path: Path, whole: Whole, name: str, method: str
) -> None:
    """Two workers get the signal as well; the run still saves, and no process is left."""
    scenario = Scenario((name,), "step", to_group=True, workers=2, start_method=method)
    assert_saved_and_stopped(tmp_path, scenario, 4)
    assert_goes_on(tmp_path, whole, 2)


def test_a_signal_in_an_evaluation_cuts_it_short(tmp_path: Path, whole: Whole) -> None:
    """The resumed run restarts the evaluation, and its history equals that of an uninterrupted run."""
    assert_saved_and_stopped(tmp_path, Scenario(("SIGTERM",), "evaluation"), 4)
    assert_goes_on(tmp_path, whole)


@pytest.mark.parametrize("behind", [False, True])
def test_a_signal_in_a_save_lets_it_be_whole_and_saves_no_step_twice(
    tmp_path: Path, whole: Whole, behind: bool
) -> None:
    """The save under way is completed; the run stops at that step, or, where it went on beside, at the next one."""
    scenario = Scenario(("SIGTERM",), "save", arguments={"save_steps": 4, "save_async": behind})
    assert ended(tmp_path, scenario) == 3
    step = told(tmp_path)["step"]
    assert step == 4 or (behind and step > 4)
    began = [note["checkpoint"] for note in read(tmp_path / "out" / "journal.jsonl") if note.get("phase") == "began"]
    assert began == [f"checkpoint-{each}" for each in sorted({4, step})]
    assert_goes_on(tmp_path, whole, arguments={"save_steps": 4, "save_async": behind})


@pytest.mark.parametrize(
    ("name", "moment", "code"),
    [
        ("SIGTERM", "step", 143),
        ("SIGINT", "save", 130),
        pytest.param("SIGINT", "step", 130, marks=pytest.mark.matrix),
        pytest.param("SIGUSR1", "step", 128 + signal.SIGUSR1, marks=pytest.mark.matrix),
        pytest.param("SIGTERM", "evaluation", 143, marks=pytest.mark.matrix),
        pytest.param("SIGTERM", "save", 143, marks=pytest.mark.matrix),
    ],
)
def test_a_second_signal_stops_at_once_and_harms_nothing(
    tmp_path: Path, whole: Whole, name: str, moment: str, code: int
) -> None:
    """The process unwinds; every folder named as a checkpoint is complete, and the run resumes from it."""
    workers = 1 if moment == "step" else 0
    scenario = Scenario((name, name), moment, arguments={"save_steps": 2}, workers=workers)
    assert ended(tmp_path, scenario) == code
    assert told(tmp_path)["handlers put back"]
    storage = LocalStorage(str(tmp_path / "out"))
    steps = checkpoint_steps(storage)
    assert 2 in steps
    for step in steps:
        verify(storage, f"checkpoint-{step}")
    assert_goes_on(tmp_path, whole, workers, arguments={"save_steps": 2})


@pytest.mark.parametrize(
    "workers", [1, pytest.param(0, marks=pytest.mark.matrix), pytest.param(2, marks=pytest.mark.matrix)]
)
def test_a_run_that_waits_for_data_stops_after_the_step_that_they_were_for(
    tmp_path: Path, whole: Whole, workers: int
) -> None:
    """A signal while no data come is remembered; the step is done once they are there, then the run saves and stops."""
    process = CONTEXT.Process(target=train, args=(tmp_path, Scenario(stuck_at=13, workers=workers)))
    process.start()
    assert process.pid is not None
    wait_until((tmp_path / "waiting").exists)
    time.sleep(0.2)
    os.kill(process.pid, signal.SIGUSR1)
    time.sleep(0.2)
    assert process.is_alive()
    (tmp_path / "go").touch()
    process.join(60)
    assert process.exitcode == 3
    assert told(tmp_path)["reasons"] == ["signal SIGUSR1"]
    assert_goes_on(tmp_path, whole, workers)


def test_a_run_whose_data_never_come_is_ended_by_the_second_signal(tmp_path: Path) -> None:
    """And its worker, which is stuck in the data set's own code, ends with it."""
    process = CONTEXT.Process(target=train, args=(tmp_path, Scenario(stuck_at=13, workers=1)))
    process.start()
    assert process.pid is not None
    wait_until((tmp_path / "waiting").exists)
    for _ in range(2):
        time.sleep(0.2)
        os.killpg(process.pid, signal.SIGTERM)
    process.join(60)
    assert process.exitcode == 143
    worker = int((tmp_path / "waiting").read_text())
    assert worker != process.pid
    wait_until(lambda: not lives(worker))


def test_a_finished_run_is_not_trained_again(tmp_path: Path, whole: Whole) -> None:
    """The same command again leaves a finished run unchanged; a longer run resumes from its end."""
    assert ended(tmp_path, Scenario(resume="auto")) == 0
    assert_goes_on(tmp_path, whole)
    notes = read(tmp_path / "out" / "journal.jsonl")
    assert [note["step"] for note in notes if note["kind"] == "began"] == [0, STEPS]
    assert ended(tmp_path, Scenario(resume="auto", arguments={"max_steps": STEPS + 2})) == 0
    assert told(tmp_path)["step"] == STEPS + 2


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until it holds; the test's own limit ends a wait in vain."""
    while not condition():
        time.sleep(0.01)


def lives(process: int) -> bool:
    """Return whether a process, possibly orphaned, is still running."""
    try:
        os.kill(process, 0)
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:  # it ended just now, or this system has no such file
        return not Path("/proc/self").exists()
