"""The adapter of comet_ml on the real library, whose offline archives are read back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from hexloop.ports.logger import Outcome, Record
from tests.trackers.contract import FIRST, SECOND, TrackerContract, information, joined
from tests.trackers.running import SentRun, StoredRun

USERS_OWN_EXPERIMENT = """
import comet_ml
from hexloop.adapters.logger.comet_ml import CometML
from hexloop.ports.logger import Outcome, Record, RunInformation

experiment = comet_ml.start(online=False)
logger = CometML()
key = logger.start(RunInformation("digits"))
assert key == experiment.get_key()
logger.write(Record(5, 0.5, {"loss": 0.5}))
logger.finish(Outcome("failed", "ValueError: no"))
assert not experiment.ended
experiment.log_metric("own", 1.0, step=6)
experiment.end()
"""


class TestComet(TrackerContract):
    adapter = "hexloop.adapters.logger.comet_ml:CometML"
    package = module = extra = "comet_ml"
    program = "read_comet.py"
    seconds_before_death = 2.0  # a thread of the library writes the file
    statuses: ClassVar[Mapping[str, str | None]] = {
        each: each for each in ("finished", "failed", "stopped", "preempted")
    }

    def variables(self, folder: Path) -> dict[str, str]:
        (folder / "temporary").mkdir(exist_ok=True)
        return {
            "COMET_START_ONLINE": "false",
            "COMET_OFFLINE_DIRECTORY": str(folder / "comet"),
            "COMET_AUTO_LOG_CO2": "false",
            "TMPDIR": str(folder / "temporary"),
        }

    def parameter(self, name: str) -> str:
        return f"config|{name}" if name == "hidden_size" else f"args|{name}"

    def without_login(self) -> dict[str, str]:
        return {"COMET_START_ONLINE": "true"}

    def login_hints(self) -> tuple[str, ...]:
        return ("COMET_API_KEY",)

    def merged(self, runs: list[StoredRun]) -> StoredRun:
        assert len(runs) == 2  # an archive of each process, for the same key; `comet upload` puts them together
        assert all(each.more["resume_strategy"] == "get_or_create" for each in runs)
        return joined(runs)

    def check_summary(self, one: StoredRun) -> None:
        assert one.more["epochs"]["train/loss"] == [0.25, 0.5, 0.75]
        assert one.summary["model/num_parameters"] == 10
        assert one.parameters["args|accelerator_config|split_batches"] is False
        assert one.parameters["config|learning_rate"] == "hidden by the arguments"

    @pytest.mark.matrix
    def test_a_run_that_was_killed_twice_is_complete(self, tmp_path: Path) -> None:
        """What the library had not archived is archived when the run resumes, without a line that was cut."""
        first = self.track(tmp_path, SentRun(information(), FIRST, outcome=None), dies_after=2.0)
        [messages] = (tmp_path / "temporary").glob("*/messages.json")
        with messages.open("a") as file:
            file.write('{"payload":{"local_timest')
        resumed = information(tracked_as=first.identity, step=20)
        self.track(tmp_path, SentRun(resumed, SECOND[:1], outcome=None), dies_after=2.0)
        self.track(tmp_path, SentRun(information(tracked_as=first.identity, step=30), SECOND[1:]))
        parts = self.read(tmp_path)
        assert len(parts) == len(list((tmp_path / "comet").iterdir())) == 3
        expected = self.expected(*FIRST, *SECOND)
        assert self.found(joined(parts), expected) == expected
        assert list((tmp_path / "temporary").iterdir()) == []

    @pytest.mark.matrix
    def test_data_that_is_gone_is_named(self, tmp_path: Path) -> None:
        """If the temporary folder of a killed process was emptied, a warning says what is missing."""
        first = self.track(tmp_path, SentRun(information(), FIRST, outcome=None), dies_after=2.0)
        [messages] = (tmp_path / "temporary").glob("*/messages.json")
        messages.unlink()
        answer = self.track(tmp_path, SentRun(information(tracked_as=first.identity, step=20), SECOND))
        assert answer.error is None, answer.output
        [warning] = answer.warnings
        assert str(messages) in warning

    @pytest.mark.matrix
    def test_the_key_of_the_environment_wins(self, tmp_path: Path) -> None:
        """COMET_EXPERIMENT_KEY is the experiment's, whatever the checkpoint says."""
        key = "0123456789abcdef0123456789abcdef"
        changed = {"COMET_EXPERIMENT_KEY": key, "COMET_PROJECT_NAME": "digits"}
        answer = self.track(tmp_path, SentRun(information(tracked_as="f" * 32), FIRST), variables=changed)
        [one] = self.read(tmp_path)
        assert answer.identity == one.identity == key
        assert one.more["project_name"] == "digits"

    @pytest.mark.matrix
    def test_an_unknown_mode_turns_logging_off(self, tmp_path: Path) -> None:
        """A word of the library's older versions is warned of, and nothing is written."""
        answer = self.track(tmp_path, SentRun(information(), FIRST), variables={"COMET_MODE": "OFFLINE"})
        assert answer.identities == [None]
        assert "COMET_MODE=offline" in answer.warnings[0]
        assert self.read(tmp_path) == []

    @pytest.mark.matrix
    def test_a_trial_is_an_experiment(self, tmp_path: Path) -> None:
        """Each trial of a search is named, has its values, and is a new experiment."""
        trials = [
            SentRun(information(trial=f"trial-{each}", trial_parameters={"seed": each}), FIRST) for each in range(2)
        ]
        self.track(tmp_path, *trials, variables={"COMET_MODE": "get_or_create"})
        found = self.read(tmp_path)
        assert [one.name for one in found] == ["trial-0", "trial-1"]
        assert [one.more["resume_strategy"] for one in found] == ["create"] * 2
        assert [one.summary["optimizer_id"] for one in found] == ["trial-0", "trial-1"]

    @pytest.mark.matrix
    def test_the_users_own_experiment_is_used_and_left_open(self, tmp_path: Path) -> None:
        """Its values and the run's are in one archive, which the user ends."""
        self.run(tmp_path, USERS_OWN_EXPERIMENT)
        [one] = self.read(tmp_path)
        assert one.history["train/loss"] == [(5, 0.5)]
        assert one.history["own"] == [(6, 1.0)]
        assert one.summary["hexloop/problem"] == "ValueError: no"

    @pytest.mark.matrix
    def test_files_are_uploaded_if_asked_for(self, tmp_path: Path) -> None:
        """COMET_LOG_ASSETS uploads the folder of the run at its end, without hidden folders; the model is described."""
        for name in ("checkpoint-20/config.json", "README.md", ".hexloop/state"):
            (tmp_path / "out" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "out" / name).write_text(name)
        self.track(tmp_path, SentRun(information(), FIRST, with_model=True), variables={"COMET_LOG_ASSETS": "true"})
        [one] = self.read(tmp_path)
        assert one.more["files"] == {name: name for name in ("checkpoint-20/config.json", "README.md")}
        assert "Linear(in_features=4" in one.more["graph"]

    @pytest.mark.matrix
    def test_epochs_and_flags_are_numbers(self, tmp_path: Path) -> None:
        """A boolean is 0 or 1, because the library writes its name otherwise."""
        record = Record(3, 1.5, {"flag": True})
        self.track(tmp_path, SentRun(information(), (record,), outcome=Outcome("stopped")))
        [one] = self.read(tmp_path)
        assert one.history["train/flag"] == [(3, 1)]
        assert one.more["epochs"]["train/flag"] == [1.5]
