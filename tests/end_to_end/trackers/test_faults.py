"""A tracker that is slow, fails, hangs or is killed, in programs of their own: it costs a run nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.trackers.stand_in import NAME, calls_in, install, steps_in
from tests.warm_python import warm_python

ROOT = Path(__file__).parents[3]

SAVING = {"save_strategy": "steps", "save_steps": 5, "max_steps": 20, "logging_steps": 1}


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """The folder with the package of the stand-in."""
    return install(tmp_path / "packages")


def environment(packages: Path, fault: str = "", **further: str) -> dict[str, str]:
    paths = [str(ROOT / "src"), str(ROOT), str(packages)]
    file = str(packages.parent / "kept.jsonl")
    return {
        **os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1",
        "STAND_IN_FILE": file, "STAND_IN_FAULT": fault, **further,
    }  # fmt: skip


def start(packages: Path, fault: str = "", resume: str = "none", **given: Any) -> subprocess.Popen[str]:
    program = [warm_python(), "-m", "tests.end_to_end.trackers.tracked_run", str(packages.parent / "run"), resume]
    chosen = {**SAVING, "report_to": NAME, **given}
    return subprocess.Popen(
        [*program, json.dumps(chosen)], cwd=ROOT, env=environment(packages, fault), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def ended(process: subprocess.Popen[str], seconds: float = 120.0) -> tuple[dict[str, Any], str]:
    """Return the result and the messages of a program that succeeds."""
    output, errors = process.communicate(timeout=seconds)
    assert process.returncode == 0, errors
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result, errors


def outbox(packages: Path, command: str) -> subprocess.CompletedProcess[str]:
    program = [warm_python(), "-m", "hexloop", "outbox", command, str(packages.parent / "run")]
    return subprocess.run(
        program, cwd=ROOT, env=environment(packages), text=True, capture_output=True, check=False, timeout=120
    )


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of the same run without a tracker."""
    packages = install(tmp_path_factory.mktemp("plain") / "packages")
    return ended(start(packages, report_to="none"))[0]


@pytest.mark.matrix
@pytest.mark.parametrize(
    "fault",
    [
        "hang",
        *(
            pytest.param(fault, marks=pytest.mark.matrix)
            for fault in ("sleep 1", "raise", "refuse", "hang start", "hang write", "hang finish")
        ),
    ],
)
def test_a_fault_costs_the_run_nothing(fault: str, packages: Path, plain: dict[str, Any]) -> None:
    """Weights and logs are those of a run without the tracker; the program ends; a flush delivers every record once."""
    result, errors = ended(start(packages, fault, logger_grace=1.5))
    assert (result["weights"], result["history"]) == (plain["weights"], plain["history"])
    assert result["ended"] < 30
    assert errors.count("Not logged yet, and kept in the outbox") == 1
    assert f"hexloop outbox flush {packages.parent / 'run'}" in errors
    kept = packages.parent / "kept.jsonl"
    before = len(steps_in(kept))
    if fault != "hang finish":
        assert before < 20
        assert f"for {NAME}" in outbox(packages, "list").stdout
    flushed = outbox(packages, "flush")
    assert flushed.returncode == 0, flushed.stdout + flushed.stderr
    assert steps_in(kept) == list(range(1, 21))
    assert [each["kind"] for each in calls_in(kept, "finish")] == ["finished"]
    assert not (packages.parent / "run" / ".hexloop/outbox").exists()
    if fault in ("raise", "refuse"):
        assert errors.count(f"The logger {NAME} failed to start") == 1


@pytest.mark.matrix
def test_the_next_run_in_the_folder_delivers_what_another_left(packages: Path) -> None:
    """After its own end. What still fails is named with the run that left it."""
    ended(start(packages, "refuse", logger_grace=0.2))
    _, errors = ended(start(packages, "refuse", logger_grace=0.2, save_strategy="no"))
    assert f"{NAME} (of the earlier run " in errors
    ended(start(packages, save_strategy="no"))
    kept = packages.parent / "kept.jsonl"
    assert steps_in(kept) == [*range(1, 21)] * 3
    assert [each["kind"] for each in calls_in(kept, "finish")] == ["finished"] * 3
    assert not (packages.parent / "run" / ".hexloop/outbox").exists()


@pytest.mark.matrix
def test_a_tracker_that_recovers_within_the_grace_misses_nothing(packages: Path, plain: dict[str, Any]) -> None:
    """A slow one is waited for, for a bounded time."""
    result, errors = ended(start(packages, "sleep 0.05", logger_grace=60.0))
    assert result["weights"] == plain["weights"]
    assert "Not logged yet" not in errors
    assert steps_in(packages.parent / "kept.jsonl") == list(range(1, 21))


@pytest.mark.parametrize("resumes", [True, pytest.param(False, marks=pytest.mark.matrix)], ids=["resumed", "flushed"])
def test_a_killed_run_loses_no_record(resumes: bool, packages: Path, plain: dict[str, Any]) -> None:
    """After SIGKILL, the resumed run continues the tracker's run and completes its history; so does a flush."""
    kept, run = packages.parent / "kept.jsonl", packages.parent / "run"
    process = start(packages, "sleep 0.3", max_steps=2000, save_steps=10)
    deadline = time.monotonic() + 100
    while not list(run.glob("checkpoint-*/manifest.json")) or len(steps_in(kept)) < 2:
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    delivered, logged = steps_in(kept), [json.loads(line) for line in _lines(run)]
    assert len(delivered) < len([each for each in logged if "loss" in each.get("values", {})])
    if not resumes:
        assert outbox(packages, "flush").returncode == 0
        steps = list(dict.fromkeys(steps_in(kept)))
        assert steps == list(range(1, len(steps) + 1))
        assert len(steps) > len(delivered)
        assert calls_in(kept, "finish")[-1]["kind"] == "preempted"
        return
    newest = max(int(path.parent.name.partition("-")[2]) for path in run.glob("checkpoint-*/manifest.json"))
    ended(start(packages, "", "auto", max_steps=newest + 30, save_steps=10))
    assert list(dict.fromkeys(steps_in(kept))) == list(range(1, newest + 31))
    assert len(steps_in(kept)) <= newest + 31  # one may come twice: that which was delivered when the process died
    first, second = calls_in(kept, "start")
    assert first["tracked_as"] is None
    assert second["step"] >= newest  # the resume publishes a checkpoint that was complete but for its name
    assert second["tracked_as"].startswith("run-of-")
    assert [each["kind"] for each in calls_in(kept, "finish")] == ["finished"]


def _lines(run: Path) -> list[str]:
    found = list(run.glob(".hexloop/outbox/logs-*/entries-*.jsonl"))
    return [line for path in found for line in path.read_text().splitlines() if line.endswith("}")]


@pytest.mark.matrix
def test_a_signal_marks_the_run_as_preempted(packages: Path) -> None:
    """The tracker learns that it was not the end."""
    kept = packages.parent / "kept.jsonl"
    process = start(packages, max_steps=100_000, interrupts=["SIGTERM"])
    deadline = time.monotonic() + 100
    while len(steps_in(kept)) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    ended(process)
    [outcome] = calls_in(kept, "finish")
    assert outcome["kind"] == "preempted"
    assert "SIGTERM" in outcome["problem"]


@pytest.mark.matrix
def test_only_the_first_of_several_processes_logs(packages: Path) -> None:
    """All of them together are one run of the tracker."""
    program = [
        sys.executable, "-m", "hexloop", "launch", "--processes", "2", str(Path(__file__).with_name("tracked_run.py")),
        str(packages.parent / "run"), "none", json.dumps({**SAVING, "report_to": NAME}),
    ]  # fmt: skip
    completed = subprocess.run(
        program, cwd=ROOT, env=environment(packages), text=True, capture_output=True, check=False, timeout=240
    )
    assert completed.returncode == 0, completed.stderr
    kept = packages.parent / "kept.jsonl"
    assert steps_in(kept) == list(range(1, 21))
    assert len(calls_in(kept, "start")) == len(calls_in(kept, "finish")) == 1
