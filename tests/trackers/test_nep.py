"""The adapter of neptune on the real library in its offline mode, whose files are read back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from hexloop.ports.logger import Record, SavedModel, Value
from tests.trackers.contract import CONFIGURATION, FIRST, TrackerContract, information, joined
from tests.trackers.running import SentRun, StoredRun

USERS_OWN_RUN = """
import neptune
from hexloop.adapters.logger.neptune import Neptune
from hexloop.ports.logger import Outcome, Record, RunInformation

run = neptune.init_run(name="by the user")
logger = Neptune(run=run, base_namespace="mine", log_parameters=False)
assert logger.start(RunInformation("digits", {"seed": 7})) is None
assert logger.run is run
logger.write(Record(5, 0.5, {"loss": 0.5, "note": "a text"}))
logger.finish(Outcome("failed", "ValueError: no"))
assert logger.run is run
run["own"].append(1.0, step=6)
run.stop()
"""
OPENED_AGAIN = """
from hexloop.adapters.logger.neptune import Neptune
from hexloop.ports.logger import RunInformation

logger = Neptune()
assert logger.run is None
identity = logger.start(RunInformation("digits", chosen_name="first"))
logger.finish()
logger.run["after"] = 1
logger.run.stop()
"""
WHAT_IS_SENT = """
import neptune
from hexloop.adapters.logger.neptune import Neptune
from hexloop.ports.logger import RunInformation

asked = []  # no server can be had here: what the library would be asked for
begin = neptune.init_run
neptune.init_run = lambda **options: asked.append(options) or begin(**{**options, "with_id": None})
for options in ({"project": "team/digits", "tags": ["a"]}, {"with_id": "DIG-3"}):
    logger = Neptune(**options)
    logger.start(RunInformation("digits", chosen_name="second", tracked_as="abc"))
    logger.finish()
print([{name: value for name, value in each.items() if value is not None} for each in asked])
"""


class TestNeptune(TrackerContract):
    adapter = "hexloop.adapters.logger.neptune:Neptune"
    package = module = extra = environment = "neptune"
    program = "read_nep.py"
    statuses: ClassVar[Mapping[str, str | None]] = {
        "finished": "finished",
        "failed": "failed and sys/failed",
        "stopped": "stopped",
        "preempted": "preempted",
    }

    def variables(self, folder: Path) -> dict[str, str]:
        return {"NEPTUNE_MODE": "offline"}

    def name_of(self, name: str) -> str:
        return f"finetuning/{super().name_of(name)}"

    def left_out(self, name: str, value: Value) -> bool:
        return name == "epoch" or super().left_out(name, value)

    def parameter(self, name: str) -> str:
        part = "model_parameters" if name == "hidden_size" else "trainer_parameters"
        return f"finetuning/{part}/{name}"

    def without_login(self) -> dict[str, str]:
        return {"NEPTUNE_MODE": "async"}

    def login_hints(self) -> tuple[str, ...]:
        return ("NEPTUNE_API_TOKEN",)

    def merged(self, runs: list[StoredRun]) -> StoredRun:
        assert len(runs) == 2  # offline, the library stores no id by which a run continues; the field has it
        return joined(runs)

    def check_summary(self, one: StoredRun) -> None:
        assert one.parameters["finetuning/train/epoch"] == 1.0
        assert one.parameters["finetuning/trainer_parameters/accelerator_config/split_batches"] is False
        assert one.parameters["finetuning/model_parameters/learning_rate"] == "hidden by the arguments"

    @pytest.mark.matrix
    def test_the_users_own_run_is_used_and_left_open(self, tmp_path: Path) -> None:
        """Values are in the namespace that was asked for, without parameters, and the user goes on."""
        self.run(tmp_path, USERS_OWN_RUN)
        [one] = self.read(tmp_path)
        assert one.name == "by the user"
        assert one.history == {"mine/train/loss": [(5, 0.5)], "mine/train/note": [(5, "a text")], "own": [(6, 1.0)]}
        assert one.status == "failed and sys/failed"
        assert not any("trainer_parameters" in name for name in one.parameters)

    @pytest.mark.matrix
    def test_the_run_can_be_opened_again(self, tmp_path: Path) -> None:
        """After training, `run` is the run for the user's own values."""
        self.run(tmp_path, OPENED_AGAIN)
        first, second = self.read(tmp_path)
        assert (first.name, second.parameters["after"]) == ("first", 1)

    @pytest.mark.matrix
    def test_a_run_on_the_server_continues_by_its_id(self, tmp_path: Path) -> None:
        """The library is asked for the run with the same `custom_run_id`, or for the one that the user named."""
        printed = self.run(tmp_path, WHAT_IS_SENT).splitlines()
        assert any("'project': 'team/digits'" in line and "'custom_run_id': 'abc'" in line for line in printed)
        assert any("'with_id': 'DIG-3'" in line for line in printed)
        assert not any("'name': 'second'" in line for line in printed)

    @pytest.mark.matrix
    @pytest.mark.parametrize(
        ("asked", "expected"),
        [
            ("same", [("upload", "checkpoint-20"), ("upload", "checkpoint-40")]),
            ("last", [("upload", "last"), ("delete", "last"), ("upload", "last")]),
            ("best", [("upload", "best")]),
        ],
    )
    def test_checkpoints_are_uploaded(self, asked: str, expected: list[Any], tmp_path: Path) -> None:
        """All, the newest, or the best; the final model is not uploaded a second time."""
        models = [
            SavedModel(str(tmp_path), f"checkpoint-{step}", step, step / 40, best=step == 20) for step in (20, 40)
        ]
        models.append(SavedModel(str(tmp_path), "model", 40, 1.0, final=True))
        sent = information(configuration={**CONFIGURATION, "load_best_model_at_end": True})
        answer = self.track(tmp_path, SentRun(sent, FIRST, models), options={"log_checkpoints": asked})
        assert answer.error is None, answer.output
        [one] = self.read(tmp_path)
        found = [(kind, name.removeprefix("finetuning/checkpoints/")) for kind, name, _ in one.more["uploads"]]
        assert found == expected

    @pytest.mark.matrix
    @pytest.mark.parametrize(("asked", "problem"), [("all", "none of None, same"), ("best", "load_best_model_at_end")])
    def test_wrong_arguments_are_refused(self, asked: str, problem: str, tmp_path: Path) -> None:
        """An unknown word, and the best checkpoint of a run that looks for none."""
        answer = self.track(tmp_path, SentRun(information(), FIRST), options={"log_checkpoints": asked})
        assert answer.error is not None
        assert problem in answer.error["text"]

    @pytest.mark.matrix
    def test_a_trial_is_a_run(self, tmp_path: Path) -> None:
        """Each trial of a search is a new run with its name and values."""
        trials = [
            SentRun(information(trial=f"trial-{each}", trial_parameters={"seed": each}), FIRST) for each in range(2)
        ]
        self.track(tmp_path, *trials)
        found = {one.name: one.parameters["finetuning/trial_params/seed"] for one in self.read(tmp_path)}
        assert found == {"trial-0": 0, "trial-1": 1}

    @pytest.mark.matrix
    def test_a_step_is_sent_once(self, tmp_path: Path) -> None:
        """Neptune refuses a step that a series has; another name at the same step is taken."""
        records = (FIRST[0], FIRST[0], Record(10, 0.25, {"eval_loss": 0.5}))
        self.track(tmp_path, SentRun(information(), records))
        [one] = self.read(tmp_path)
        assert one.history["finetuning/train/loss"] == [(10, 0.75)]
        assert one.history["finetuning/eval/loss"] == [(10, 0.5)]
