"""The adapter of swanlab on the real library in its offline mode, whose folders are read back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from hexloop.adapters.logger.tracker import SINGLE_VALUES, grouped
from hexloop.ports.logger import Record
from tests.trackers.contract import FIRST, PROBLEM, TrackerContract, information, joined
from tests.trackers.running import SentRun, StoredRun

USERS_OWN_RUN = """
import swanlab
from concurrent.futures import ThreadPoolExecutor
from hexloop.adapters.logger.swanlab import SwanLab
from hexloop.ports.logger import Outcome, Record, RunInformation

run = swanlab.init(project="mine", name="by the user")
calls = ThreadPoolExecutor(max_workers=1)
logger = SwanLab()
identity = calls.submit(logger.start, RunInformation("digits", {"seed": 7}, chosen_name="ignored")).result()
assert identity == run.id
swanlab.log({"own": 1.0}, step=3)
calls.submit(logger.write, Record(5, 0.0, {"loss": 0.25})).result()
calls.submit(logger.finish, Outcome("failed", "ValueError: no")).result()
swanlab.log({"own": 2.0}, step=6)
run.finish()
"""
TWO_AT_ONCE = """
from hexloop.adapters.logger.swanlab import SwanLab
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.logger import RunInformation

first, second = SwanLab(), SwanLab()
first.start(RunInformation("first"))
try:
    second.start(RunInformation("second"))
except ConfigurationError as error:
    assert "one run of a process at a time" in str(error)
else:
    raise AssertionError
first.finish()
second.start(RunInformation("second"))
second.finish()
"""


class TestSwanLab(TrackerContract):
    adapter = "hexloop.adapters.logger.swanlab:SwanLab"
    package = module = extra = environment = "swanlab"
    program = "read_swanlab.py"
    statuses: ClassVar[Mapping[str, str | None]] = {
        "finished": "RUN_STATE_FINISHED",
        "failed": "RUN_STATE_CRASHED",
        "stopped": "RUN_STATE_ABORTED",
        "preempted": "RUN_STATE_ABORTED",
    }
    seconds_before_death = 3.0

    def variables(self, folder: Path) -> dict[str, str]:
        return {"SWANLAB_MODE": "offline", "SWANLAB_LOG_DIR": str(folder / "swanlog")}

    def without_login(self) -> dict[str, str]:
        return {"SWANLAB_MODE": "cloud"}

    def login_hints(self) -> tuple[str, ...]:
        return ("SWANLAB_API_KEY",)

    def name_of(self, name: str) -> str:
        return f"single_value/{name}" if name in SINGLE_VALUES else grouped(name)

    def merged(self, runs: list[StoredRun]) -> StoredRun:
        assert len(runs) == 2  # a folder of each process, for the same id
        return joined(runs)

    def check_summary(self, one: StoredRun) -> None:
        assert one.parameters["FRAMEWORK"] == "hexloop"
        assert one.parameters["model_num_parameters"] == 10
        assert one.parameters["hexloop/outcome"] == "finished"

    def check_problem(self, one: StoredRun) -> None:
        assert one.more["error"] == PROBLEM

    @pytest.mark.matrix
    def test_the_id_of_the_environment_wins(self, tmp_path: Path) -> None:
        """SWANLAB_RUN_ID and SWANLAB_PROJECT are the run's, whatever the checkpoint says."""
        run = SentRun(information(tracked_as="before"), FIRST)
        answer = self.track(tmp_path, run, variables={"SWANLAB_RUN_ID": "chosen", "SWANLAB_PROJECT": "digits"})
        assert answer.error is None, answer.output
        [one] = self.read(tmp_path)
        assert answer.identity == one.identity == "chosen"
        assert one.more["project"] == "digits"

    @pytest.mark.matrix
    def test_a_trial_is_named_and_grouped(self, tmp_path: Path) -> None:
        """A trial of a search has the name of the run and of the trial, in the group of the search."""
        trials = [SentRun(information(trial=f"trial-{each}", group="search"), FIRST) for each in range(2)]
        assert self.track(tmp_path, *trials).error is None
        assert [(one.name, one.more["group"]) for one in self.read(tmp_path)] == [
            ("a tiny run-trial-0", "search"),
            ("a tiny run-trial-1", "search"),
        ]

    @pytest.mark.matrix
    def test_the_users_own_run_is_used_and_left_open(self, tmp_path: Path) -> None:
        """What is logged goes into it, from both threads, and the user finishes it."""
        self.run(tmp_path, USERS_OWN_RUN)
        [one] = self.read(tmp_path)
        assert (one.name, one.status) == ("by the user", "RUN_STATE_FINISHED")
        assert one.history["own"] == [(3, 1.0), (6, 2.0)]
        assert one.history["train/loss"] == [(5, 0.25)]
        assert one.parameters["seed"] == 7
        assert one.parameters["hexloop/problem"] == "ValueError: no"

    @pytest.mark.matrix
    def test_two_runs_at_once_are_refused(self, tmp_path: Path) -> None:
        """Swanlab has one run of a process; another one may follow it."""
        self.run(tmp_path, TWO_AT_ONCE)
        assert len(self.read(tmp_path)) == 2

    @pytest.mark.matrix
    def test_models_are_not_taken(self, tmp_path: Path) -> None:
        """SWANLAB_LOG_MODEL is reported once; a text is a text, and parameters of an adapter are counted."""
        record = Record(5, 0.0, {"note": "a text"})
        run = SentRun(information(adapter_configuration={"r": 8}, trainable_parameters=4), (record,))
        answer = self.track(tmp_path, run, variables={"SWANLAB_LOG_MODEL": "true"})
        assert len(answer.warnings) == 1
        assert "SWANLAB_LOG_MODEL" in answer.warnings[0]
        [one] = self.read(tmp_path)
        assert "train/note" in one.more["texts"]
        assert one.parameters["peft_model_trainable_params"] == 4
        assert one.parameters["peft_config"] == {"r": 8}
