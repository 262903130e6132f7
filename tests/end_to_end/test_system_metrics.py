"""System metrics and information of runs: what they write, from which process, and that they change nothing."""

from __future__ import annotations

import json
import os
import platform
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from hexloop.adapters.device.simulated import SimulatedDevice
from hexloop.adapters.machine import SimulatedMachine
from hexloop.app.pages.history import RunHistory
from hexloop.app.pages.reading import read_runs
from hexloop.app.pages.system import system_metrics_in
from hexloop.app.run.system_metrics import measure_of
from hexloop.domain.run_folder import JOURNAL, system_file
from hexloop.domain.system_metrics import METRICS
from hexloop.ports.device import DeviceUse, Memory
from tests.end_to_end.small.trainers import same_weights, small_trainer, weights

SAVES: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def information(folder: Path) -> list[dict[str, Any]]:
    return [note for note in lines(folder / JOURNAL) if note["kind"] == "information"]


def test_a_run_is_measured(tmp_path: Path) -> None:
    """From its start, by this process, with the numbers of the machine; and the thread ends with it."""
    machine = SimulatedMachine({"cpu": 12.5, "memory": 1e9})
    trainer = small_trainer(tmp_path, parts={"machine": machine}, **SAVES)
    trainer.train()
    (found,) = system_metrics_in(tmp_path, trainer.state.run_state.run).ranks
    assert found.rank == 0
    assert found.host
    assert found.values["cpu"][0] == 12.5
    assert lines(tmp_path / system_file(0))[0]["process"] == os.getpid()
    assert not any("measures rank" in each.name for each in threading.enumerate())


def test_psutil_measures_by_default(tmp_path: Path) -> None:
    """This machine."""
    trainer = small_trainer(tmp_path, **SAVES)
    trainer.train()
    (found,) = system_metrics_in(tmp_path, trainer.state.run_state.run).ranks
    assert {"memory", "memory_total", "process_memory", "disk_free"} <= found.values.keys()
    assert found.values.keys() <= METRICS.keys()


def test_what_a_gpu_does_is_measured(tmp_path: Path) -> None:
    """By the Device port; what it does not measure is left out."""
    device = SimulatedDevice("simulated:0")
    measure = measure_of(SimulatedMachine({"cpu": 1.0}), device)
    device.memory_now = Memory(10, 20, 0)
    assert measure() == {"cpu": 1.0}
    device.memory_now, device.use_now = Memory(10, 20, 100), DeviceUse(use=50.0, memory=60.0, power=70.0)
    assert measure() == {
        "cpu": 1.0,
        "gpu_use": 50.0,
        "gpu_memory": 60.0,
        "gpu_power": 70.0,
        "gpu_memory_total": 100,
        "gpu_allocated": 10,
    }


@pytest.mark.parametrize(
    "given", [{"system_metrics": False, **SAVES}, {"journal": "off", **SAVES}, {"save_strategy": "no"}]
)
def test_a_run_that_does_not_want_it_is_not_measured(tmp_path: Path, given: dict[str, Any]) -> None:
    """By its argument, without a journal, or if it leaves nothing else."""
    machine = SimulatedMachine()
    small_trainer(tmp_path, parts={"machine": machine}, **given).train()
    assert machine.calls == 0
    assert not (tmp_path / system_file(0)).exists()


def test_a_machine_that_fails_changes_nothing(tmp_path: Path) -> None:
    """The run ends with the same weights."""
    trained = []
    for name, failure in (("one", None), ("two", RuntimeError("no driver"))):
        trainer = small_trainer(tmp_path / name, parts={"machine": SimulatedMachine(failure=failure)}, **SAVES)
        trainer.train()
        trained.append(weights(trainer))
    assert same_weights(*trained)


def test_loader_workers_do_not_measure(tmp_path: Path) -> None:
    """They are forked from the process whose thread does."""
    trainer = small_trainer(tmp_path, num_train_epochs=3, dataloader_num_workers=2, **SAVES)
    trainer.train()
    starts = [each for each in lines(tmp_path / system_file(0)) if each.get("kind") == "began"]
    assert [each["process"] for each in starts] == [os.getpid()]


def test_a_resumed_run_continues_its_file(tmp_path: Path) -> None:
    """With a start for each session."""
    small_trainer(tmp_path, max_steps=2, **SAVES).train()
    trainer = small_trainer(tmp_path, max_steps=4, **SAVES)
    trainer.train(resume_from_checkpoint=True)
    (found,) = system_metrics_in(tmp_path, trainer.state.run_state.run).ranks
    assert len(found.starts) == 2
    assert len(found.times) >= 2


def test_a_run_notes_its_machine_code_and_sizes(tmp_path: Path) -> None:
    """In the journal, from where its page has them; without secrets."""
    small_trainer(tmp_path, **SAVES).train()
    (note,) = information(tmp_path)
    assert lines(tmp_path / JOURNAL)[0]["kind"] == "began"
    assert note["host"]["python"].startswith("3.")
    assert note["host"]["device"] == "cpu"
    assert note["host"]["memory"] > 1 << 20
    assert note["packages"]["torch"]
    assert note["data"] == {"training_samples": 16, "evaluation_samples": None}
    (record,) = read_runs([str(tmp_path)])
    history: RunHistory = record.history
    assert history.information.packages["torch"]
    assert history.information.parameters == note["model"]["parameters"] > 0
    assert history.information.model_bytes == 4 * note["model"]["parameters"]
    assert history.information.training_samples == 16
    assert len(history.sessions.entries) == 1


def test_the_only_program_that_is_started_for_it_is_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of many gigabytes may be slow to start one, and some clusters do not let it."""
    programs: list[str] = []
    wanted = True

    def note(event: str, given: tuple[Any, ...]) -> None:
        if wanted and event == "subprocess.Popen":
            programs.append(str(given[0]))

    sys.addaudithook(note)
    monkeypatch.setattr(platform, "_uname_cache", None)
    small_trainer(tmp_path, **SAVES).train()
    wanted = False
    assert information(tmp_path)[0]["host"]["system"].endswith(platform.machine())
    assert {Path(each).name for each in programs} <= {"git"}


def test_a_data_set_without_a_length_has_none(tmp_path: Path) -> None:
    """One whose class raises stops nothing, and several data sets are added up."""
    from tests.end_to_end.small.models import rows

    class Unknown(list[Any]):
        asked = 0

    parts: dict[str, Any] = {"eval_dataset": {"a": rows(4), "b": rows(2)}}
    small_trainer(tmp_path, parts=parts, **SAVES).train()
    assert information(tmp_path)[0]["data"]["evaluation_samples"] == 6
