"""Searches by wandb's sweeps, with a module in the place of wandb, whose service is not there: what is passed to it."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import hexloop
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.folders import Folder
from hexloop.domain.search.records import read_search
from hexloop.ports.search import TrialState
from tests.end_to_end.test_search_ray import Line, points


class StandIn(ModuleType):
    """What is used of wandb: a sweep whose agent proposes a list of parameters."""

    def __init__(self, proposals: list[dict[str, Any]]) -> None:
        super().__init__("wandb")
        self.__spec__ = ModuleSpec("wandb", None)
        self.proposals, self.sweeps, self.agents = proposals, list[Any](), list[Any]()
        self.run: Any = None
        self.runs: list[Any] = []

    def sweep(self, config: dict[str, Any], **place: Any) -> str:
        self.sweeps.append((config, place))
        return "sweep-1"

    def agent(self, sweep: str, function: Any, count: int, **place: Any) -> None:
        self.agents.append((sweep, count, place))
        for number, parameters in enumerate(self.proposals[:count]):
            self.run = StandInRun(f"id{number}", parameters)
            self.runs.append(self.run)
            function()
            self.run = None


class StandInRun:
    """A run of wandb."""

    def __init__(self, identifier: str, config: dict[str, Any]) -> None:
        self.id, self.config = identifier, config
        self.logged: list[dict[str, float]] = []
        self.ended: list[int] = []

    def log(self, values: dict[str, float]) -> None:
        self.logged.append(values)

    def finish(self, exit_code: int = 0) -> None:
        self.ended.append(exit_code)


def make_model(trial: Any = None) -> Line:
    if trial is not None and trial["learning_rate"] == 0.5:
        raise ValueError("unlucky")
    return Line()


def trainer(folder: Path) -> hexloop.Trainer:
    args = hexloop.TrainingArguments(
        str(folder / "search"), max_steps=8, per_device_train_batch_size=4, eval_strategy="steps", eval_steps=4,
        save_strategy="no", use_cpu=True, disable_tqdm=True, report_to="none",
    )  # fmt: skip
    return hexloop.Trainer(model_init=make_model, args=args, train_dataset=points(8), eval_dataset=points(4))


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    module = StandIn([{"learning_rate": 1e-4}, {"learning_rate": 0.5}, {"learning_rate": 1e-2}])
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_a_sweep(wandb: StandIn, tmp_path: Path) -> None:
    """The service gets the space, the metric and the goal; each run its objectives; the best trial is returned."""
    best = trainer(tmp_path).hyperparameter_search(
        lambda _: {"method": "grid", "metric": {}, "parameters": {"learning_rate": {"values": [1e-4, 0.5, 1e-2]}}},
        n_trials=3,
        backend="wandb",
        project="p",
        entity="e",
        name="n",
    )
    assert isinstance(best, hexloop.BestRun)
    ((config, place),) = wandb.sweeps
    assert config["metric"] == {"name": "eval/loss", "goal": "minimize"}
    assert (config["method"], config["name"], place) == ("grid", "n", {"project": "p", "entity": "e"})
    assert wandb.agents == [("sweep-1", 3, {"project": "p", "entity": "e"})]
    assert (best.run_id, best.hyperparameters, best.run_summary) == ("id2", {"learning_rate": 1e-2}, "sweep-1")
    assert wandb.runs[2].logged[-1] == {"eval/loss": best.objective}
    assert [each.ended for each in wandb.runs] == [[0], [1], [0]]
    record = read_search(Folder(str(tmp_path / "search")))
    assert record is not None
    assert [(each.name, each.state) for each in record.trials.values()] == [
        ("run-id0", TrialState.COMPLETE),
        ("run-id1", TrialState.FAILED),
        ("run-id2", TrialState.COMPLETE),
    ]
    assert record.trials[1].reason == "ValueError: unlucky"


def test_a_sweep_that_is_joined(wandb: StandIn, tmp_path: Path) -> None:
    """Is not made again; a space of hexloop's distributions becomes one of wandb's."""
    best = trainer(tmp_path).hyperparameter_search(
        {"learning_rate": {"low": 1e-5, "high": 1e-1, "log": True}, "max_steps": [4, 8], "seed": {"low": 1, "high": 9}},
        n_trials=1,
        backend="wandb",
        direction="maximize",
        sweep_id="mine",
        metric="eval/objective",
    )
    assert isinstance(best, hexloop.BestRun)
    assert (wandb.sweeps, wandb.agents) == ([], [("mine", 1, {"project": None, "entity": None})])
    assert wandb.runs[0].logged[-1] == {"eval/objective": best.objective}
    assert best.run_summary == "mine"


def test_the_parameters_of_a_sweep(wandb: StandIn, tmp_path: Path) -> None:
    """Each kind of distribution."""
    trainer(tmp_path).hyperparameter_search(
        {
            "learning_rate": {"low": 1e-5, "high": 1e-1, "log": True},
            "weight_decay": {"low": 0.0, "high": 0.5},
            "warmup_steps": {"low": 0, "high": 4, "step": 2},
            "seed": {"low": 1, "high": 9},
            "optim": ["sgd", "adamw_torch"],
        },
        n_trials=1,
        backend="wandb",
    )
    assert wandb.sweeps[0][0]["parameters"] == {
        "learning_rate": {"distribution": "log_uniform_values", "min": 1e-5, "max": 1e-1},
        "weight_decay": {"distribution": "uniform", "min": 0.0, "max": 0.5},
        "warmup_steps": {"values": [0, 2, 4]},
        "seed": {"distribution": "int_uniform", "min": 1, "max": 9},
        "optim": {"values": ["sgd", "adamw_torch"]},
    }
    assert wandb.sweeps[0][0]["method"] == "random"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"projekt": "p"}, "did you mean project?"),
        ({"direction": ["minimize", "maximize"]}, "choose backend='optuna'"),
        ({"hp_space": lambda _: 3}, "the configuration of a sweep"),
        ({"resume": True}, "runs the trials by itself"),
    ],
)
def test_what_is_refused(wandb: StandIn, tmp_path: Path, given: dict[str, Any], words: str) -> None:
    """Before a sweep is made."""
    with pytest.raises(ConfigurationError, match=words):
        trainer(tmp_path).hyperparameter_search(backend="wandb", n_trials=1, **given)
    assert wandb.sweeps == []
