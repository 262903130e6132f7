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

from hexloop.adapters.journal import read
from hexloop.adapters.storage.local import LocalStorage
from hexloop.domain.checkpoints.reading import checkpoint_steps, verify
from tests.end_to_end.small.documents import documents_of
from tests.engines.preempted import STEPS, Scenario, train
from tests.engines.processes import CONTEXT

EVERY_SIGNAL = ["SIGINT", "SIGTERM", "SIGUSR1"]
IDENTITY = ("manifest.json", "run_state.json", "trainer_state.json", "training_args.json")
"""Files that identify a run, or contain clock readings."""


def ended(folder: Path, scenario: Scenario) -> int | None:
    """Return the exit code of a process that trains by the scenario."""
    folder.mkdir(exist_ok=True)
    process = CONTEXT.Process(target=train, args=(folder, scenario))
    process.start()
    process.join(60)
    return process.exitcode


def report(folder: Path) -> dict[str, Any]:
    """Return the report of the last process in the folder."""
    document: dict[str, Any] = json.loads((folder / "reported.json").read_text())
    return document


def bits(folder: Path) -> dict[str, Any]:
    """Return the last checkpoint of a finished run: all state files, and the history without clock readings."""
    checkpoint = folder / "out" / f"checkpoint-{STEPS}"
    files: dict[str, Any] = {
        path.name: path.read_bytes() for path in sorted(checkpoint.iterdir()) if path.name not in IDENTITY
    }
    documents = documents_of(checkpoint)
    state = documents.pop("run_state")
    for own in ("run", "parent_checkpoint"):
        del state[own]
    for entry in state["history"]:
        for reading in [name for name in entry if name.endswith(("runtime", "per_second"))]:
            del entry[reading]
    return files | documents | {"state": state}


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


def assert_resumes(folder: Path, whole: Whole, workers: int = 0, **changed: Any) -> None:
    """Running the same command again finishes the run, with the result of an uninterrupted run."""
    assert ended(folder, Scenario(resume="auto", workers=workers, **changed)) == 0
    expected, resumed = whole(workers), bits(folder)
    assert resumed.keys() == expected.keys()
    assert [name for name in expected if resumed[name] != expected[name]] == []


def assert_saved_and_stopped(folder: Path, scenario: Scenario, step: int) -> None:
    """The run stops after `step` with exit code 3 and a checkpoint, and every signal handler is restored."""
    assert ended(folder, scenario) == 3
    names = [f"signal {name}" for name in dict.fromkeys(scenario.signals)]
    expected = {"handlers restored": True, "step": step, "reasons": names, "checkpoint": f"checkpoint-{step}"}
    assert report(folder) == expected
    verify(LocalStorage(str(folder / "out")), f"checkpoint-{step}")


@pytest.mark.parametrize("name", EVERY_SIGNAL)
def test_a_signal_finishes_the_step_saves_and_stops(tmp_path: Path, whole: Whole, name: str) -> None:
    """The current step finishes; the run saves it, stops, and resumes exactly."""
    assert_saved_and_stopped(tmp_path, Scenario((name,), "step"), 4)
    assert_resumes(tmp_path, whole)


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
def test_workers_ignore_a_signal_to_the_process_group(tmp_path: Path, whole: Whole, name: str, method: str) -> None:
    """Two workers receive the signal, too; the run still saves, and no process remains."""
    scenario = Scenario((name,), "step", to_group=True, workers=2, start_method=method)
    assert_saved_and_stopped(tmp_path, scenario, 4)
    assert_resumes(tmp_path, whole, 2)


def test_a_signal_during_an_evaluation_interrupts_it(tmp_path: Path, whole: Whole) -> None:
    """The resumed run repeats the evaluation, and its history equals that of an uninterrupted run."""
    assert_saved_and_stopped(tmp_path, Scenario(("SIGTERM",), "evaluation"), 4)
    assert_resumes(tmp_path, whole)


@pytest.mark.parametrize("behind", [False, True])
def test_a_signal_during_a_save_completes_it_and_saves_no_step_twice(
    tmp_path: Path, whole: Whole, behind: bool
) -> None:
    """The save in flight completes. The run stops at that step, or at the next one if it saves asynchronously."""
    scenario = Scenario(("SIGTERM",), "save", arguments={"save_steps": 4, "save_async": behind})
    assert ended(tmp_path, scenario) == 3
    step = report(tmp_path)["step"]
    assert step == 4 or (behind and step > 4)
    began = [
        note["checkpoint"] for note in read(tmp_path / "out" / ".hexloop/journal.jsonl") if note.get("phase") == "began"
    ]
    assert began == [f"checkpoint-{each}" for each in sorted({4, step})]
    assert_resumes(tmp_path, whole, arguments={"save_steps": 4, "save_async": behind})


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
def test_a_second_signal_stops_at_once_and_keeps_checkpoints_complete(
    tmp_path: Path, whole: Whole, name: str, moment: str, code: int
) -> None:
    """The process unwinds; every folder named as a checkpoint is complete, and the run resumes from it."""
    workers = 1 if moment == "step" else 0
    scenario = Scenario((name, name), moment, arguments={"save_steps": 2}, workers=workers)
    assert ended(tmp_path, scenario) == code
    assert report(tmp_path)["handlers restored"]
    storage = LocalStorage(str(tmp_path / "out"))
    steps = checkpoint_steps(storage)
    assert 2 in steps
    for step in steps:
        verify(storage, f"checkpoint-{step}")
    assert_resumes(tmp_path, whole, workers, arguments={"save_steps": 2})


@pytest.mark.parametrize(
    "workers", [1, pytest.param(0, marks=pytest.mark.matrix), pytest.param(2, marks=pytest.mark.matrix)]
)
def test_a_run_that_waits_for_data_stops_after_the_current_step(tmp_path: Path, whole: Whole, workers: int) -> None:
    """A signal while the loader waits is recorded; once the data arrive, the step finishes, and the run saves."""
    process = CONTEXT.Process(target=train, args=(tmp_path, Scenario(stuck_at=13, workers=workers)))
    process.start()
    assert process.pid is not None
    wait_until(lambda: is_waiting(tmp_path))
    os.kill(process.pid, signal.SIGUSR1)
    time.sleep(0.2)
    assert process.is_alive()
    (tmp_path / "go").touch()
    process.join(60)
    assert process.exitcode == 3
    assert report(tmp_path)["reasons"] == ["signal SIGUSR1"]
    assert_resumes(tmp_path, whole, workers)


@pytest.mark.matrix
def test_a_second_signal_stops_a_run_whose_data_never_arrive(tmp_path: Path) -> None:
    """Its worker, which is stuck in the dataset's code, ends, too."""
    process = CONTEXT.Process(target=train, args=(tmp_path, Scenario(stuck_at=13, workers=1)))
    process.start()
    assert process.pid is not None
    wait_until(lambda: is_waiting(tmp_path))
    os.killpg(process.pid, signal.SIGTERM)
    wait_until((tmp_path / "asked").exists)
    os.killpg(process.pid, signal.SIGTERM)
    process.join(60)
    assert process.exitcode == 143
    worker = int((tmp_path / "waiting").read_text())
    assert worker != process.pid
    wait_until(lambda: not lives(worker))


@pytest.mark.matrix
def test_a_finished_run_does_not_train_again(tmp_path: Path, whole: Whole) -> None:
    """The same command again leaves a finished run unchanged; a longer run resumes from its end."""
    assert ended(tmp_path, Scenario(resume="auto")) == 0
    assert_resumes(tmp_path, whole)
    notes = read(tmp_path / "out" / ".hexloop/journal.jsonl")
    assert [note["step"] for note in notes if note["kind"] == "began"] == [0, STEPS]
    assert ended(tmp_path, Scenario(resume="auto", arguments={"max_steps": STEPS + 2})) == 0
    assert report(tmp_path)["step"] == STEPS + 2


def is_waiting(folder: Path) -> bool:
    """Return whether a run waits for the sample that never arrives: its worker reads ahead while it takes steps."""
    if not (folder / "waiting").exists():
        return False
    stepped = folder / "stepped"
    return time.time() - (stepped if stepped.exists() else folder / "waiting").stat().st_mtime > 0.5


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until it holds; the timeout of the test is the limit."""
    while not condition():
        time.sleep(0.01)


def lives(process: int) -> bool:
    """Return whether a process, possibly orphaned, is still running."""
    try:
        os.kill(process, 0)
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:  # it has just ended, or this system has no /proc
        return not Path("/proc/self").exists()
