"""The adapter of clearml on the real library in its offline mode, whose sessions are read back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from hexloop.ports.logger import Record, SavedModel, Value
from tests.trackers.contract import CONFIGURATION, FIRST, LAST, TrackerContract, information
from tests.trackers.running import SentRun, StoredRun

USERS_OWN_TASK = """
import os
from clearml import Task
from hexloop.adapters.logger.clearml import ClearML
from hexloop.ports.logger import Outcome, Record, RunInformation

task = Task.init("mine", "by the user", reuse_last_task_id=False)
for loss in (0.5, 0.25):
    logger = ClearML()
    assert logger.models == "none"
    assert logger.start(RunInformation("digits", {"seed": 7})) == task.id
    logger.write(Record(5, 0.5, {"loss": loss, "train_loss": loss}))
    logger.finish(Outcome("failed", "ValueError: no"))
task.get_logger().report_scalar("own", "value", 1.0, 6)
task.close()
os.environ.pop("CLEARML_LOG_MODEL")
assert ClearML().models == "checkpoints"
"""
A_STATUS_IS_SENT = """
from clearml import Task
from hexloop.adapters.logger.clearml import ClearML
from hexloop.ports.logger import Outcome, RunInformation

sent = []  # no server can be had here: what the library would send to it
Task.mark_failed = lambda task, **words: sent.append(("failed", task.id, words))
Task.mark_stopped = lambda task, **words: sent.append(("stopped", task.id, words))
for outcome in (Outcome("failed", "ValueError: no"), Outcome("preempted", "SIGTERM")):
    logger = ClearML()
    identity = logger.start(RunInformation("digits"))
    logger.finish(outcome)
    assert sent[-1][1] == identity
    assert Task.current_task() is None
print([(kind, words["status_message"]) for kind, _, words in sent])
"""
MODELS_ARE_SENT = """
import clearml
from hexloop.adapters.logger.clearml import ClearML
from hexloop.ports.logger import RunInformation, SavedModel

sent = []  # no server can be had here: what the library would send to it

class OutputModel:
    def __init__(self, task, name):
        assert task is clearml.Task.current_task()
        self.name, self.id = name, f"id of {name}"

    def connect(self, task, name):
        assert name == self.name

    def update_weights_package(self, weights_path, target_filename, iteration, auto_delete_file):
        assert not auto_delete_file and weights_path == target_filename
        sent.append(("upload", target_filename, iteration))

class Model:
    @staticmethod
    def remove(identity, delete_weights_file, force, raise_on_errors):
        sent.append(("remove", identity))
        raise ValueError("the server is busy")

logger = ClearML()
logger.start(RunInformation("digits", {"save_total_limit": 1}))
clearml.OutputModel, clearml.Model = OutputModel, Model
offline, clearml.Task.is_offline = clearml.Task.is_offline, lambda: False
for step in (10, 20):
    logger.save(SavedModel(f"checkpoint-{step}", f"checkpoint-{step}", step, 0.5))
clearml.Task.is_offline = offline
logger.finish()
print(sent)
"""


class TestClearML(TrackerContract):
    adapter = "hexloop.adapters.logger.clearml:ClearML"
    package = module = extra = "clearml"
    program = "read_clear.py"
    seconds_before_death = 8.0  # a thread of the library writes the files every few seconds
    single_values = True
    statuses: ClassVar[Mapping[str, str | None]] = {
        each: each for each in ("finished", "failed", "stopped", "preempted")
    }

    def variables(self, folder: Path) -> dict[str, str]:
        return {"CLEARML_OFFLINE_MODE": "1", "CLEARML_LOG_MODEL": "false"}

    def left_out(self, name: str, value: Value) -> bool:
        return name == "epoch" or super().left_out(name, value)

    def parameter(self, name: str) -> str:
        return f"Model Configuration/{name}" if name == "hidden_size" else f"Transformers/{name}"

    def without_login(self) -> dict[str, str]:
        return {"CLEARML_OFFLINE_MODE": ""}

    def login_hints(self) -> tuple[str, ...]:
        return ("CLEARML_API_ACCESS_KEY",)

    def check_summary(self, one: StoredRun) -> None:
        assert one.summary == LAST.values
        assert one.more["project"] == "HuggingFace Transformers"
        assert one.parameters["Transformers/accelerator_config/split_batches"] == "False"
        assert one.parameters["Transformers/_ignore_hparams_ui_overrides_"] == "True"

    @pytest.mark.matrix
    def test_what_is_not_finite_is_in_the_log(self, tmp_path: Path) -> None:
        """The library would report 0 for it, so it is no point of a curve, and this is said once."""
        records = tuple(Record(step, 0.5, {"loss": float("nan"), "note": "a text"}) for step in (10, 20))
        answer = self.track(tmp_path, SentRun(information(), records))
        [one] = self.read(tmp_path)
        assert one.history == {}
        assert "step 20: loss = nan" in one.more["log"]
        assert "step 10: note = a text" in one.more["log"]
        assert [warning.partition("; ")[2].partition("=")[0] for warning in answer.warnings] == ["loss", "note"]

    @pytest.mark.matrix
    def test_the_users_own_task_is_used_and_left_open(self, tmp_path: Path) -> None:
        """A second run in it has names with a suffix, and no model is uploaded unless asked for."""
        self.run(tmp_path, USERS_OWN_TASK, CLEARML_LOG_MODEL="FALSE")
        [one] = self.read(tmp_path)
        assert one.name == "by the user"
        assert one.history == {"train/loss": [(5, 0.5)], "train_2/loss": [(5, 0.25)], "own/value": [(6, 1.0)]}
        assert one.summary == {"train_loss": 0.5, "train_loss_2": 0.25}
        assert one.parameters["Transformers_2/seed"] == "7"
        assert one.parameters["hexloop_2/problem"] == "ValueError: no"

    @pytest.mark.matrix
    def test_the_status_of_the_task_is_the_outcome(self, tmp_path: Path) -> None:
        """After it is closed, which completes it, a task is marked as failed or stopped."""
        printed = self.run(tmp_path, A_STATUS_IS_SENT).splitlines()[-1]
        assert printed == "[('failed', 'ValueError: no'), ('stopped', 'preempted: SIGTERM')]"

    @pytest.mark.matrix
    def test_checkpoints_are_in_the_task(self, tmp_path: Path) -> None:
        """Offline, each is an artifact; the final one is left out, because the checkpoint has it."""
        models = []
        for name in ("checkpoint-20", "checkpoint-40", "model"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "weights").write_text(name)
            step = 20 if name == "checkpoint-20" else 40
            models.append(SavedModel(str(tmp_path / name), name, step, step / 40, final=name == "model"))
        variables = {"CLEARML_LOG_MODEL": "true", "CLEARML_TASK": "mine", "CLEARML_PROJECT": "digits"}
        answer = self.track(tmp_path, SentRun(information(), FIRST, models), variables=variables)
        assert answer.error is None, answer.output
        [one] = self.read(tmp_path)
        assert (one.name, one.more["project"]) == ("mine", "digits")
        assert one.more["artifacts"] == {f"checkpoint-{step}": {"weights": f"checkpoint-{step}"} for step in (20, 40)}

    @pytest.mark.matrix
    def test_checkpoints_are_output_models_on_a_server(self, tmp_path: Path) -> None:
        """Each is uploaded as one, and the oldest ones beyond save_total_limit are removed; a failure is a warning."""
        printed = self.run(tmp_path, MODELS_ARE_SENT).splitlines()[-1]
        sent = [f"('upload', 'checkpoint-{step}', {step})" for step in (10, 20)]
        assert printed == f"[{sent[0]}, {sent[1]}, ('remove', 'id of checkpoint-10')]"

    @pytest.mark.matrix
    def test_a_trial_is_a_task(self, tmp_path: Path) -> None:
        """Each trial of a search is a new task with its name and values."""
        trials = [
            SentRun(information(trial=f"trial-{each}", trial_parameters={"seed": each}), FIRST) for each in range(2)
        ]
        self.track(tmp_path, *trials)
        found = {one.name: one.parameters["Trial/seed"] for one in self.read(tmp_path)}
        assert found == {"trial-0": "0", "trial-1": "1"}
        assert CONFIGURATION["seed"] == 7
