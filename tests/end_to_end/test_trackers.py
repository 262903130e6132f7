"""Trackers of transformers in `report_to`: its callbacks on hexloop's runs, and what is said where they are missing."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hexloop import ConfigurationError, Trainer
from hexloop.app.callbacks.trackers import TRACKERS, fail_safe, tracker_problem
from tests.end_to_end.small.models import rows
from tests.end_to_end.small.trainers import small_trainer

integrations = pytest.importorskip("transformers.integrations.integration_utils")

LIVE = '''
import json
import os


class Live:
    """Writes what it is told to the file that DVCLIVE_TEST names, one line for each call."""

    def __init__(self):
        self._step = 0

    def _write(self, kind, **facts):
        with open(os.environ["DVCLIVE_TEST"], "a") as file:
            file.write(json.dumps({"kind": kind, "step": self._step, **facts}, default=str) + "\\n")

    def log_params(self, params):
        self._write("params", params=params)

    def log_metric(self, name, value):
        if os.environ.get("DVCLIVE_FAILS"):
            raise ConnectionError("the server is gone")
        self._write("metric", name=name, value=value)

    def next_step(self):
        self._step += 1

    def end(self):
        self._write("end")
'''
PLOTS = """
class Metric:
    @staticmethod
    def could_log(value):
        return isinstance(value, int | float)
"""
UTILS = """
def standardize_metric_name(name, framework):
    return name
"""


@pytest.fixture
def dvclive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """A package with the interface of dvclive that transformers' callback calls; returns what it wrote."""
    package = tmp_path / "packages" / "dvclive"
    package.mkdir(parents=True)
    for name, text in (("__init__", LIVE), ("plots", PLOTS), ("utils", UTILS)):
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(package.parent))
    log = tmp_path / "dvclive.jsonl"
    monkeypatch.setenv("DVCLIVE_TEST", str(log))
    yield lambda: [json.loads(line) for line in log.read_text().splitlines()]
    for name in [name for name in sys.modules if name.partition(".")[0] == "dvclive"]:
        del sys.modules[name]


def tracked(folder: Path, **given: Any) -> Trainer:
    """Return a Trainer that evaluates and reports to dvclive."""
    parts = {"loggers": None, "eval_dataset": rows(4)}
    trainer: Trainer = small_trainer(folder, parts=parts, report_to="dvclive", eval_strategy="epoch", **given)
    return trainer


def test_the_callback_of_transformers_tracks_a_run(dvclive: Any, tmp_path: Path) -> None:
    """It receives the arguments, every log and the end, as in a run of transformers."""
    trainer = tracked(tmp_path / "out")
    (callback,) = [
        each for each in trainer.callback_handler.callbacks if isinstance(each, integrations.DVCLiveCallback)
    ]
    trainer.train()
    written = dvclive()
    assert written[0]["kind"] == "params"
    assert written[0]["params"]["learning_rate"] == 0.01
    logged = [(each["name"], each["value"]) for each in written if each["kind"] == "metric"]
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert [value for name, value in logged if name.endswith("train/loss") or name == "loss"] == losses
    assert any("eval" in name and name.endswith("loss") for name, _ in logged)
    assert written[-1]["kind"] == "end"
    assert trainer.pop_callback(integrations.DVCLiveCallback) is callback, "it is found by the class of transformers"


def test_a_tracker_that_fails_ends_nothing(dvclive: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reported once and then left alone, and the run is complete."""
    monkeypatch.setenv("DVCLIVE_FAILS", "1")
    trainer = tracked(tmp_path / "out")
    with pytest.warns(
        UserWarning, match=r"DVCLiveCallback failed to log \(ConnectionError: the server is gone\)"
    ) as warned:
        assert trainer.train().global_step == 4
    assert len(warned) == 1
    assert [each["kind"] for each in dvclive()] == ["params"]


def test_a_tracker_that_cannot_start_ends_nothing(
    dvclive: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failing constructor is reported, and the Trainer works without the tracker."""

    def fail(_callback: object, *_values: object, **_named: object) -> None:
        raise RuntimeError("no login")

    monkeypatch.setattr(integrations.DVCLiveCallback, "__init__", fail)
    with pytest.warns(UserWarning, match=r"The tracker dvclive failed to start \(RuntimeError: no login\)"):
        trainer = tracked(tmp_path / "out")
    assert trainer.train().global_step == 4


def test_all_includes_the_trackers_that_are_installed(dvclive: Any, tmp_path: Path) -> None:
    """As in transformers."""
    trainer = small_trainer(tmp_path / "out", parts={"loggers": None}, report_to="all")
    assert any(isinstance(each, integrations.DVCLiveCallback) for each in trainer.callback_handler.callbacks)


def test_loggers_replace_trackers(dvclive: Any, tmp_path: Path) -> None:
    """If loggers are passed, no trackers are added."""
    trainer = small_trainer(tmp_path / "out", parts={"loggers": []}, report_to="dvclive")
    assert not any(isinstance(each, integrations.DVCLiveCallback) for each in trainer.callback_handler.callbacks)


@pytest.mark.parametrize("name", sorted(TRACKERS))
def test_a_missing_package_is_named(name: str, tmp_path: Path) -> None:
    """The error says that hexloop uses transformers' callback, and what to install."""
    if (problem := tracker_problem(name)) is None:
        pytest.skip(f"{name} is installed")
    with pytest.raises(ConfigurationError) as raised:
        small_trainer(tmp_path, parts={"loggers": None}, report_to=name)
    assert raised.value.problems == (problem,)
    assert f"report_to={name!r}" in problem
    assert f"`pip install {TRACKERS[name][1]}`" in problem


def test_without_transformers_both_are_to_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says that hexloop has no logger of its own yet."""
    monkeypatch.setattr("hexloop.app.callbacks.trackers.find_spec", lambda _name: None)
    problem = tracker_problem("mlflow")
    assert problem is not None
    assert "hexloop has no logger for it yet" in problem
    assert "`pip install 'hexloop[transformers]' mlflow`" in problem


def test_every_tracker_is_known_to_transformers() -> None:
    """The table has the names of transformers, without the ones that hexloop has itself or that need a service."""
    assert TRACKERS.keys() == integrations.INTEGRATION_TO_CALLBACK.keys() - {"tensorboard", "kubeflow"}


def test_a_folder_of_a_run_is_not_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trackers write folders of their own names, such as ./wandb."""
    if tracker_problem("wandb") is None:
        pytest.skip("wandb is installed")
    (tmp_path / "wandb").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert tracker_problem("wandb") is not None


def test_a_name_that_is_close_is_suggested(tmp_path: Path) -> None:
    """Only names that can be chosen are suggested."""
    with pytest.raises(ConfigurationError, match=r"report_to='tensorbord' .*; did you mean 'tensorboard'\?"):
        small_trainer(tmp_path, parts={"loggers": None}, report_to="tensorbord")
    with pytest.raises(ConfigurationError, match=r"choose one of tensorboard, json_lines, console"):
        small_trainer(tmp_path, parts={"loggers": None}, report_to="opcode")


def test_only_overridden_events_are_guarded() -> None:
    """A callback costs nothing at events that it does not override."""

    class Theirs(integrations.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> str:
            return "logged"

    guarded = fail_safe(Theirs)()
    assert type(guarded).on_step_end is integrations.TrainerCallback.on_step_end
    assert type(guarded).on_log is not Theirs.on_log
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert guarded.on_log(None, None, None) == "logged"
