"""The adapter of MLflow on the real library: a database without a server, and a real server on loopback."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from hexloop.ports.logger import SavedModel
from tests.trackers.contract import CONFIGURATION, FIRST, PROBLEM, SECOND, TrackerContract, information
from tests.trackers.mlflow_server import mlflow_server
from tests.trackers.running import SentRun, StoredRun, run

USERS_OWN_RUN = """
import mlflow
from concurrent.futures import ThreadPoolExecutor
from hexloop.adapters.logger.mlflow import MLflow
from hexloop.ports.logger import Outcome, Record, RunInformation

calls = ThreadPoolExecutor(max_workers=1)
with mlflow.start_run(run_name="by the user") as active:
    logger = MLflow()
    print(calls.submit(logger.start, RunInformation("digits", {"seed": 7}, chosen_name="nested")).result())
    logger.enter_thread()
    mlflow.log_metric("own", 1.0, step=3)
    calls.submit(logger.write, Record(5, 0.5, {"loss": 0.25})).result()
    logger.leave_thread()
    calls.submit(logger.finish, Outcome("failed", "ValueError: no")).result()
    assert mlflow.active_run().info.run_id == active.info.run_id
    mlflow.log_metric("own", 2.0, step=6)
"""
IN_THE_USERS_THREAD = """
import mlflow
from concurrent.futures import ThreadPoolExecutor
from hexloop.adapters.logger.mlflow import MLflow
from hexloop.ports.logger import Record, RunInformation

calls = ThreadPoolExecutor(max_workers=1)
for name in ("first", "second"):
    logger = MLflow()
    identity = calls.submit(logger.start, RunInformation("digits", chosen_name=name)).result()
    logger.enter_thread()
    assert mlflow.active_run().info.run_id == identity
    mlflow.log_metric("own", 1.0, step=3)
    calls.submit(logger.write_all, [Record(step, 0.5, {"loss": 1 / step}) for step in (1, 2, 4)]).result()
    logger.leave_thread()
    assert mlflow.active_run() is None
    assert mlflow.last_active_run().info.run_id == identity
    calls.submit(logger.finish).result()
"""


class MLflowContract(TrackerContract):
    """What holds with and without a server."""

    adapter = "hexloop.adapters.logger.mlflow:MLflow"
    package = module = extra = "mlflow"
    program = "read_mlflow.py"
    statuses: ClassVar[Mapping[str, str | None]] = {
        "finished": "FINISHED",
        "failed": "FAILED",
        "stopped": "KILLED",
        "preempted": "KILLED",
    }

    def name_of(self, name: str) -> str:
        return name

    def check_problem(self, one: StoredRun) -> None:
        assert one.more["tags"]["hexloop.problem"] == PROBLEM
        assert one.more["tags"]["hexloop.outcome"] == "failed"

    def saved(self, folder: Path) -> SavedModel:
        checkpoint = folder / "saved" / "checkpoint-20"
        (checkpoint / "tokenizer").mkdir(parents=True)
        (checkpoint / "model.safetensors").write_bytes(b"weights")
        (checkpoint / "tokenizer" / "vocabulary.txt").write_text("a")
        return SavedModel(str(checkpoint), "checkpoint-20", 20, 0.5)

    @pytest.mark.matrix
    def test_checkpoints_are_artifacts(self, tmp_path: Path) -> None:
        """Files keep their names, in a folder with the name of the checkpoint."""
        sent = SentRun(information(), FIRST, (self.saved(tmp_path),))
        answer = self.track(tmp_path, sent, variables={"HF_MLFLOW_LOG_ARTIFACTS": "1"})
        assert answer.error is None, answer.output
        [one] = self.read(tmp_path)
        assert one.more["artifacts"] == [
            "checkpoint-20/model.safetensors",
            "checkpoint-20/tokenizer/vocabulary.txt",
        ]

    @pytest.mark.matrix
    def test_refused_parameters_are_adapted_and_said_once(self, tmp_path: Path) -> None:
        """Long values are cut, changed ones keep their first value, names are cleaned, 300 are no problem."""
        many = {f"number {number}": number for number in range(300)}
        first = {**CONFIGURATION, **many, "long": "x" * 7000, "a(b)": 1}
        answer = self.track(tmp_path, SentRun(information(configuration=first), FIRST))
        assert answer.error is None, answer.output
        [warning] = answer.warnings
        assert re.fullmatch(
            r"Parameters of mlflow are cut to \d+ characters, the most that mlflow takes: long\.", warning
        )
        changed = {**first, "seed": 8, "learning_rate": 0.5}
        resumed = information(configuration=changed, tracked_as=answer.identity, step=20)
        second = self.track(tmp_path, SentRun(resumed, SECOND))
        assert second.error is None, second.output
        assert "have changed; mlflow keeps their first values: learning_rate, seed." in second.warnings[1]
        [one] = self.read(tmp_path)
        assert one.parameters["seed"] == "7"
        assert one.parameters["number 299"] == "299"
        assert one.parameters["a_b_"] == "1"
        assert len(one.parameters["long"]) >= 500


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new database; MLflow takes seconds to create one."""
    folder = tmp_path_factory.mktemp("empty")
    variables = {"MLFLOW_TRACKING_URI": f"sqlite:///{folder}/store.db"}
    run(
        "trackers",
        "-c",
        "import mlflow; mlflow.MlflowClient().search_experiments()",
        folder=folder,
        variables=variables,
    )
    return folder / "store.db"


class TestMLflow(MLflowContract):
    """A database of SQLite, which the library itself writes."""

    @pytest.fixture(autouse=True)
    def _store(self, empty_store: Path, tmp_path: Path) -> None:
        shutil.copy(empty_store, tmp_path / "store.db")

    def variables(self, folder: Path) -> dict[str, str]:
        return {"MLFLOW_TRACKING_URI": f"sqlite:///{folder}/store.db", "MLFLOW_EXPERIMENT_NAME": "digits"}

    @pytest.mark.matrix
    def test_variables_of_the_environment(self, tmp_path: Path) -> None:
        """Tags, the limit of parameters, and nested parameters as one level are as the variables say."""
        variables = {
            "MLFLOW_TAGS": '{"team": "a", "n": 1}',
            "MLFLOW_FLATTEN_PARAMS": "true",
            "MLFLOW_MAX_LOG_PARAMS": "4",
        }
        answer = self.track(
            tmp_path, SentRun(information(model_configuration={"a": {"b": {"c": 1}}}), FIRST), variables=variables
        )
        assert answer.error is None, answer.output
        [one] = self.read(tmp_path)
        assert one.more["tags"].items() >= {"team": "a", "n": "1"}.items()
        assert one.parameters == {"a.b.c": "1", "learning_rate": "0.001", "max_steps": "40", "eval_strategy": "steps"}

    @pytest.mark.matrix
    @pytest.mark.parametrize("tags", ["{team", '["a"]'])
    def test_tags_that_are_not_an_object(self, tags: str, tmp_path: Path) -> None:
        """The error names the variable, and no run is started."""
        answer = self.track(tmp_path, SentRun(information()), variables={"MLFLOW_TAGS": tags})
        assert answer.error is not None
        assert "ConfigurationError" in answer.error["types"]
        assert "MLFLOW_TAGS" in answer.error["text"]
        assert self.read(tmp_path) == []

    @pytest.mark.matrix
    def test_the_id_of_the_environment_wins(self, tmp_path: Path) -> None:
        """MLFLOW_RUN_ID attaches to that run, whatever the checkpoint says."""
        wanted = self.track(tmp_path, SentRun(information(), FIRST)).identity
        other = self.track(tmp_path, SentRun(information(), FIRST)).identity
        answer = self.track(
            tmp_path, SentRun(information(tracked_as=other), SECOND), variables={"MLFLOW_RUN_ID": wanted}
        )
        assert answer.identity == wanted
        runs = {one.identity: one for one in self.read(tmp_path)}
        assert len(runs) == 2
        assert len(runs[wanted].history["loss"]) == 3
        assert len(runs[other].history["loss"]) == 2

    @pytest.mark.matrix
    def test_a_run_that_was_deleted_is_not_an_error(self, tmp_path: Path) -> None:
        """A new run is started, and a warning names the old one."""
        answer = self.track(tmp_path, SentRun(information(tracked_as="0" * 32), FIRST))
        assert answer.error is None, answer.output
        assert "0" * 32 in answer.warnings[0]
        [one] = self.read(tmp_path)
        assert answer.identity == one.identity

    @pytest.mark.matrix
    def test_a_record_that_is_repeated_is_there_once(self, tmp_path: Path) -> None:
        """After a resume, values of a step that the run has are not sent again."""
        identity = self.track(tmp_path, SentRun(information(), FIRST)).identity
        self.track(tmp_path, SentRun(information(tracked_as=identity, step=10), (*FIRST[1:], *SECOND)))
        [one] = self.read(tmp_path)
        assert one.history["loss"] == [(10, 0.75), (20, 0.5), (30, 0.25)]
        assert one.history["eval_loss"] == [(20, 0.625), (40, 0.375)]

    @pytest.mark.matrix
    @pytest.mark.parametrize("nested", ["", "1"])
    def test_the_users_own_run_is_used_and_left_open(self, nested: str, tmp_path: Path) -> None:
        """What is logged goes into it, or with MLFLOW_NESTED_RUN into a run nested in it."""
        printed = self.run(tmp_path, USERS_OWN_RUN, MLFLOW_NESTED_RUN=nested).split()
        runs = {one.name: one for one in self.read(tmp_path)}
        users = runs["by the user"]
        used = runs["nested"] if nested else users
        assert printed == [used.identity]
        assert used.history["loss"] == [(5, 0.25)]
        assert used.parameters == {"seed": "7"}
        assert used.more["tags"]["hexloop.problem"] == "ValueError: no"
        assert users.status == "FINISHED"
        if nested:
            assert used.status == "FAILED"
            assert used.more["tags"]["mlflow.parentRunId"] == users.identity
            assert used.history["own"] == [(3, 1.0)]
            assert users.history["own"] == [(6, 2.0)]
        else:
            assert len(runs) == 1
            assert users.history["own"] == [(3, 1.0), (6, 2.0)]

    @pytest.mark.matrix
    def test_the_users_thread_sees_the_run(self, tmp_path: Path) -> None:
        """The run is active in the user's thread until it finishes, and its last active run afterwards."""
        self.run(tmp_path, IN_THE_USERS_THREAD)
        runs = self.read(tmp_path)
        assert sorted(one.name or "" for one in runs) == ["first", "second"]
        for one in runs:
            assert one.status == "FINISHED"
            assert one.history == {"own": [(3, 1.0)], "loss": [(1, 1.0), (2, 0.5), (4, 0.25)]}

    @pytest.mark.matrix
    def test_it_can_be_switched_off(self, tmp_path: Path) -> None:
        """DISABLE_MLFLOW_INTEGRATION is an error of the constructor, which names it."""
        answer = self.track(tmp_path, SentRun(information()), variables={"DISABLE_MLFLOW_INTEGRATION": "TRUE"})
        assert answer.error is not None
        assert "DISABLE_MLFLOW_INTEGRATION" in answer.error["text"]

    @pytest.mark.matrix
    def test_a_server_that_is_down_is_a_connection_error(self, tmp_path: Path) -> None:
        """It is of a type that is tried again."""
        variables = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
        answer = self.track(tmp_path, SentRun(information()), variables=variables)
        assert answer.error is not None
        assert "ConnectionError" in answer.error["types"], answer.error
        assert answer.identities == []


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the server."""
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def server(store: Path) -> Iterator[str]:
    with mlflow_server("trackers", store) as address:
        yield address


@pytest.mark.matrix
class TestMLflowServer(MLflowContract):
    """A server on loopback, in which each test has an experiment of its own."""

    @pytest.fixture(autouse=True)
    def _address(self, server: str, store: Path) -> None:
        self.address, self.store = server, store

    def variables(self, folder: Path) -> dict[str, str]:
        return {"MLFLOW_TRACKING_URI": self.address, "MLFLOW_EXPERIMENT_NAME": folder.name}

    def images(self, folder: Path) -> list[str]:
        return super().images(self.store)

    def test_many_records_at_once(self, tmp_path: Path) -> None:
        """More metrics than the server takes in one call are sent in parts."""
        program = """
from hexloop.adapters.logger.mlflow import MLflow
from hexloop.ports.logger import Record, RunInformation
logger = MLflow()
logger.start(RunInformation("many"))
logger.write_all([Record(step, 0.0, {"loss": float(step), "rate": 0.5}) for step in range(700)])
logger.finish()
"""
        self.run(tmp_path, program)
        [one] = self.read(tmp_path)
        assert one.history["loss"] == [(step, float(step)) for step in range(700)]
