"""The adapter of wandb on the real library in its offline mode, whose files are read back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from hexloop.ports.logger import Record, SavedModel
from tests.trackers.contract import CONFIGURATION, FIRST, LAST, SECOND, TrackerContract, information, joined
from tests.trackers.running import SentRun, StoredRun

RESUMED_ON_A_SERVER = """
import wandb
from hexloop.adapters.logger.wandb import Wandb
from hexloop.ports.logger import Record, RunInformation

class Resumed:
    '''A run as the server returns it after step 20: no server can be had here.'''
    resumed, step = True, 21

    def __init__(self, run):
        self.run = run
        run.summary.update({"train/global_step": 20, "train/loss": 0.5, "_step": 20})

    def __getattr__(self, name):
        return getattr(self.run, name)

begin = wandb.init
wandb.init = lambda **arguments: Resumed(begin(**arguments))
logger = Wandb()
logger.start(RunInformation("again", tracked_as="abc", step=10))
for record in (
    Record(15, 0.0, {"loss": 0.1}), Record(20, 0.0, {"loss": 0.2}), Record(20, 0.0, {"eval_loss": 0.3}),
    Record(30, 0.0, {"loss": 0.4}),
):
    logger.write(record)
logger.finish()
"""
USERS_OWN_RUN = """
import wandb
from hexloop.adapters.logger.wandb import Wandb
from hexloop.ports.logger import Outcome, Record, RunInformation

run = wandb.init(project="mine", id="users", name="by the user")
run.config.update({"seed": 1})
logger = Wandb()
print(logger.start(RunInformation("digits", {"seed": 7}, chosen_name="ignored")))
for step in range(3):
    wandb.log({"own": step})
logger.write(Record(1, 0.0, {"loss": 0.25}))
logger.write(Record(10, 0.0, {"loss": 0.125}))
logger.finish(Outcome("failed", "ValueError: no"))
wandb.log({"own": 3})
trial = Wandb()
print(trial.start(RunInformation("digits", trial="trial-1", group="search")))
trial.write(Record(1, 0.0, {"loss": 0.5}))
assert wandb.run is run
trial.finish()
run.finish()
"""
IN_THE_USERS_THREAD = """
import wandb
from concurrent.futures import ThreadPoolExecutor
from hexloop.adapters.logger.wandb import Wandb
from hexloop.ports.logger import Record, RunInformation

calls = ThreadPoolExecutor(max_workers=1)
first, second = Wandb(), Wandb()
one = calls.submit(first.start, RunInformation("first")).result()
assert wandb.run.id == one
wandb.log({"own": 1.0})
other = calls.submit(second.start, RunInformation("second")).result()
assert wandb.run.id == one != other
calls.submit(second.write, Record(5, 0.0, {"loss": 0.5})).result()
calls.submit(first.write, Record(5, 0.0, {"loss": 0.25})).result()
calls.submit(second.finish).result()
calls.submit(first.finish).result()
assert wandb.run is None
print(one, other)
"""


class TestWandb(TrackerContract):
    adapter = "hexloop.adapters.logger.wandb:Wandb"
    package = module = extra = "wandb"
    program = "read_wandb.py"
    statuses: ClassVar[Mapping[str, str | None]] = {
        "finished": "exit code 0",
        "failed": "exit code 1",
        "stopped": "exit code 255",
        "preempted": "exit code 1, preempting",
    }
    single_values = True
    seconds_before_death = 2.5

    def variables(self, folder: Path) -> dict[str, str]:
        return {"WANDB_MODE": "offline", "WANDB_DIR": str(folder)}

    def without_login(self) -> dict[str, str]:
        return {"WANDB_MODE": "online"}

    def login_hints(self) -> tuple[str, ...]:
        return ("WANDB_API_KEY",)

    def merged(self, runs: list[StoredRun]) -> StoredRun:
        assert len(runs) == 2  # a file of each process, for the same id; `wandb sync --append` puts them together
        return joined(runs)

    def check_summary(self, one: StoredRun) -> None:
        single = {name: value for name, value in LAST.values.items() if name != "epoch"}
        assert single.items() <= one.summary.items()
        assert one.summary["hexloop/outcome"] == "finished"
        assert one.more["project"] == "huggingface"
        assert ["*", "train/global_step"] in one.more["axes"]
        assert all(steps == [point[0] for point in one.history[name]] for name, steps in one.more["x"].items())
        assert one.parameters["model/num_parameters"] == 10
        assert one.parameters["accelerator_config"] == CONFIGURATION["accelerator_config"]

    @pytest.mark.matrix
    def test_the_id_of_the_environment_wins(self, tmp_path: Path) -> None:
        """WANDB_RUN_ID and WANDB_PROJECT are the run's, whatever the checkpoint says."""
        changed = {"WANDB_RUN_ID": "chosen", "WANDB_PROJECT": "digits"}
        answer = self.track(tmp_path, SentRun(information(tracked_as="before"), FIRST), variables=changed)
        [one] = self.read(tmp_path)
        assert answer.identity == one.identity == "chosen"
        assert one.more["project"] == "digits"

    @pytest.mark.matrix
    def test_a_trial_is_named_and_grouped(self, tmp_path: Path) -> None:
        """A trial of a search has its own name, in the group of the search."""
        trials = [
            SentRun(information(trial=f"trial-{each}", trial_parameters={"seed": each}, group="search"), FIRST)
            for each in range(2)
        ]
        self.track(tmp_path, *trials)
        assert [(one.name, one.more["group"]) for one in self.read(tmp_path)] == [
            ("trial-0", "search"),
            ("trial-1", "search"),
        ]

    @pytest.mark.matrix
    def test_the_users_own_run_is_used_and_left_open(self, tmp_path: Path) -> None:
        """It keeps its name, loses no value though its steps are ahead, and a trial does not touch it."""
        printed = self.run(tmp_path, USERS_OWN_RUN).split()
        one, trial = sorted(self.read(tmp_path), key=lambda each: each.name or "")
        assert (one.identity, one.name, one.status) == ("users", "by the user", "exit code 0")
        assert printed[:1] == ["users"]
        assert one.parameters["seed"] == 7
        assert [value for _, value in one.history["own"]] == [0, 1, 2, 3]
        assert [value for _, value in one.history["train/loss"]] == [0.25, 0.125]
        assert one.more["x"]["train/loss"] == [1, 10]
        assert one.history["train/loss"][1][0] == 10
        assert one.summary["hexloop/problem"] == "ValueError: no"
        assert (trial.name, trial.history["train/loss"]) == ("trial-1", [(1, 0.5)])

    @pytest.mark.matrix
    def test_the_users_thread_sees_the_run(self, tmp_path: Path) -> None:
        """wandb.log of the user goes to the first run; a second run at the same time has a handle of its own."""
        identities = self.run(tmp_path, IN_THE_USERS_THREAD).split()
        runs = {one.identity: one for one in self.read(tmp_path)}
        first, second = (runs[identity] for identity in identities[-2:])
        assert first.history["own"] == [(0, 1.0)]
        assert first.history["train/loss"] == [(5, 0.25)]
        assert second.history["train/loss"] == [(5, 0.5)]
        assert "own" not in second.history

    @pytest.mark.matrix
    def test_repeated_records_of_a_resumed_run_are_left_out(self, tmp_path: Path) -> None:
        """What the server has is not sent again; other values of the same step are sent."""
        self.run(tmp_path, RESUMED_ON_A_SERVER)
        [one] = self.read(tmp_path)
        assert [value for _, value in one.history["train/loss"]] == [0.4]
        assert [value for _, value in one.history["eval/loss"]] == [0.3]

    @pytest.mark.matrix
    @pytest.mark.parametrize("log_model", ["end", "checkpoint", "false", "sometimes"])
    def test_models_are_artifacts(self, log_model: str, tmp_path: Path) -> None:
        """WANDB_LOG_MODEL chooses the architecture and the final model, also the checkpoints, or none."""
        checkpoint, final = tmp_path / "checkpoint-20", tmp_path / "model"
        for folder in (checkpoint, final):
            folder.mkdir()
            (folder / "model.safetensors").write_bytes(b"weights")
        models = (
            SavedModel(str(checkpoint), "checkpoint-20", 20, 0.5, best=True, metrics={"eval_loss": 0.5}),
            SavedModel(str(final), "model", 40, 1.0, final=True, metrics={"eval_loss": 0.375}),
        )
        wanted = {"end": models[1:], "checkpoint": models}.get(log_model, ())
        run = SentRun(information(), (*FIRST, *SECOND), wanted, with_model=True)
        answer = self.track(tmp_path, run, variables={"WANDB_LOG_MODEL": log_model})
        assert answer.error is None, answer.output
        [one] = self.read(tmp_path)
        found = [(each["files"], each["aliases"]) for each in one.more["artifacts"]]
        architecture = (["model_architecture.txt"], ["base_model"])
        saved = (["model.safetensors"], ["best", "checkpoint_global_step_20", "epoch_0.5"])
        last = (["model.safetensors"], ["final_model"])
        all_of_them = {"end": [architecture, last], "checkpoint": [architecture, saved, last]}
        assert [(files, sorted(set(aliases) - {"latest"})) for files, aliases in found] == all_of_them.get(
            log_model, []
        )
        assert {each["name"] for each in one.more["artifacts"]} <= {"model-a_tiny_run"}
        if found:
            assert one.more["artifacts"][-1]["metadata"]["eval/loss"] == 0.375
            assert one.more["artifacts"][-1]["metadata"]["final_model"] is True
        assert len(answer.warnings) == (log_model == "sometimes")

    @pytest.mark.matrix
    def test_a_model_is_watched(self, tmp_path: Path) -> None:
        """WANDB_WATCH=all logs histograms of gradients and parameters of the live model every 100 steps."""
        program = """
from torch import nn, ones
from hexloop.adapters.logger.wandb import Wandb
from hexloop.ports.logger import Record, RunInformation
model = nn.Linear(4, 2)
logger = Wandb()
logger.start(RunInformation("watched", {"logging_steps": 10}, model=model))
for step in range(1, 202):
    model(ones(1, 4)).sum().backward()
    if step % 50 == 0:
        logger.write(Record(step, 0.0, {"loss": 1.0}))
logger.finish()
assert not model._forward_hooks
"""
        self.run(tmp_path, program, WANDB_WATCH="all")
        [one] = self.read(tmp_path)
        assert {"gradients/weight/values", "parameters/weight/values"} <= set(one.history)
        assert [step for step, _ in one.history["train/loss"]] == [50, 100, 150, 200]

    @pytest.mark.matrix
    def test_a_record_without_values_for_curves(self, tmp_path: Path) -> None:
        """Nothing but values of the whole run, or nothing at all, is no error."""
        answer = self.track(tmp_path, SentRun(information(), (Record(1, 0.0, {}), Record(2, 0.0, {"train_loss": 0.5}))))
        assert answer.error is None
        [one] = self.read(tmp_path)
        assert one.summary["train_loss"] == 0.5
