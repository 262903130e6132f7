"""Searches by Ray Tune on a real cluster of this machine: schedulers, scopes, failures, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import hexloop
from hexloop.domain.errors import ConfigurationError, RunStateError
from hexloop.domain.folders import Folder
from hexloop.domain.search.records import SearchRecord, read_search
from hexloop.ports.search import TrialState

ray = pytest.importorskip("ray")
tune = pytest.importorskip("ray.tune")

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.*"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray.*"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Line(torch.nn.Module):
    """Squared error of a straight line."""

    def __init__(self, slope: float = 0.0) -> None:
        super().__init__()
        self.slope = torch.nn.Parameter(torch.tensor([slope]))

    def forward(self, x: Any, labels: Any = None) -> dict[str, Any]:
        return {"loss": ((self.slope * x - labels) ** 2).mean(), "logits": self.slope * x}


def points(count: int) -> list[dict[str, float]]:
    return [{"x": float(number), "labels": 2.0 * number} for number in range(1, count + 1)]


def make_model(trial: Any = None) -> Line:
    if trial is not None and trial.get("seed") == 13:
        raise ValueError("unlucky")
    return Line()


def trainer(folder: Path, **arguments: Any) -> hexloop.Trainer:
    settings = {
        "max_steps": 12, "per_device_train_batch_size": 4, "eval_strategy": "steps", "eval_steps": 4, "use_cpu": True,
        "save_strategy": "steps", "save_steps": 4, "disable_tqdm": True, "report_to": "none",
    }  # fmt: skip
    args = hexloop.TrainingArguments(str(folder / "search"), **{**settings, **arguments})
    return hexloop.Trainer(
        model_init=make_model, args=args, train_dataset=points(8), eval_dataset=points(4),
    )  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A small cluster, whose processes find the modules of the tests. The names of its sockets must be short."""
    before, handler = os.environ.get("PYTHONPATH"), signal.getsignal(signal.SIGTERM)
    root = str(Path(__file__).parents[2])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [before, root]))
    folder = tempfile.mkdtemp(prefix="ray")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(
            num_cpus=2, object_store_memory=100 << 20, include_dashboard=False, log_to_driver=False,
            configure_logging=False, _temp_dir=folder,
        )  # fmt: skip
    yield
    ray.shutdown()
    signal.signal(signal.SIGTERM, handler)  # Ray leaves one of its own
    shutil.rmtree(folder, ignore_errors=True)
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


def record_of(folder: Path) -> SearchRecord:
    found = read_search(Folder(str(folder / "search")))
    assert found is not None
    return found


def options(folder: Path, **more: Any) -> dict[str, Any]:
    return {"backend": "ray", "storage_path": str(folder / "ray"), "verbose": 0, **more}


@pytest.mark.matrix
def test_a_search_with_several_trials_at_a_time(cluster: None, tmp_path: Path) -> None:
    """Its best run has Ray's analysis, and the parameters by name; each trial has its folder, and is recorded.

    One that fails counts as failed; the Trainer's own arguments and model stay.
    """
    ours = trainer(tmp_path)
    rate, interrupt = ours.args.learning_rate, signal.getsignal(signal.SIGINT)
    best = ours.hyperparameter_search(
        lambda _: {"learning_rate": ray.tune.grid_search([1e-3, 1e-2]), "seed": ray.tune.grid_search([1, 13])},
        n_trials=1,
        **options(tmp_path),
    )
    assert isinstance(best, hexloop.BestRun)
    record = record_of(tmp_path)
    assert len(record.trials) == 4
    states = {(each.parameters["learning_rate"], each.parameters["seed"]): each for each in record.trials.values()}
    assert {key: each.state for key, each in states.items() if key[1] == 13} == {
        (each, 13): TrialState.FAILED for each in (1e-3, 1e-2)
    }
    assert all("unlucky" in str(each.reason) for key, each in states.items() if key[1] == 13)
    complete = {key[0]: each for key, each in states.items() if key[1] == 1}
    assert all(each.state is TrialState.COMPLETE for each in complete.values())
    winner = min(complete.values(), key=lambda each: (each.values or [0.0])[0])
    assert best.run_id == winner.identifier
    assert best.hyperparameters == dict(winner.parameters)
    assert best.objective == (winner.values or [])[0]
    assert type(best.run_summary).__name__ == "ExperimentAnalysis"
    assert (tmp_path / "search" / f"run-{best.run_id}" / "checkpoint-12" / "manifest.json").exists()
    assert winner.checkpoint == f"run-{best.run_id}/checkpoint-12"
    assert ours.args.learning_rate == rate
    assert ours.model is not None
    hexloop.with_hyperparameters(ours.args, best.hyperparameters)
    assert signal.getsignal(signal.SIGINT) is interrupt, "Ray's own would keep Ctrl+C from ending the program"


@pytest.mark.matrix
def test_a_scheduler_prunes_and_seeds_repeat(cluster: None, tmp_path: Path) -> None:
    """The same seed draws the same parameters; trials that ASHA stops are pruned; space and folder names as given."""
    drawn = []
    for attempt in ("a", "b"):
        scheduler = tune.schedulers.ASHAScheduler(metric="objective", mode="min", grace_period=1, max_t=9)
        ours = trainer(tmp_path / attempt)
        best = ours.hyperparameter_search(
            {"learning_rate": {"low": 1e-4, "high": 1e-1, "log": True}},
            n_trials=5,
            hp_name=lambda trial: f"rate-{trial['learning_rate']:.6f}",
            seed=7,
            scheduler=scheduler,
            resources_per_trial={"cpu": 2},
            **options(tmp_path / attempt),
        )
        assert isinstance(best, hexloop.BestRun)
        record = record_of(tmp_path / attempt)
        drawn.append([each.parameters for each in record.trials.values()])
        states = {each.state for each in record.trials.values()}
        assert states == {TrialState.COMPLETE, TrialState.PRUNED}
        assert all((tmp_path / attempt / "search" / each.name).is_dir() for each in record.trials.values())
        assert all(each.name.startswith("rate-0.") for each in record.trials.values())
    assert drawn[0] == drawn[1]


@pytest.mark.matrix
def test_without_evaluations_each_trial_is_evaluated_at_its_end(cluster: None, tmp_path: Path) -> None:
    """With which it counts."""
    best = trainer(tmp_path, eval_strategy="no").hyperparameter_search(
        lambda _: {"learning_rate": ray.tune.choice([1e-3])}, n_trials=1, compute_objective=_loss, **options(tmp_path)
    )
    assert isinstance(best, hexloop.BestRun)
    assert list(record_of(tmp_path).trials[0].reports) == [12]


class FailsOnce(hexloop.TrainerCallback):
    """Fails after step 10, unless a file says that it has."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        if state.global_step == 10 and not os.path.exists(self.mark):
            Path(self.mark).touch()
            raise RuntimeError("once")


@pytest.mark.matrix
def test_a_trial_that_ray_restarts_resumes(cluster: None, tmp_path: Path) -> None:
    """From the checkpoint that Ray has of it, or the newest in its folder if Ray has none yet."""
    ours = trainer(tmp_path)
    ours.add_callback(FailsOnce(str(tmp_path / "failed")))
    best = ours.hyperparameter_search(
        lambda _: {"learning_rate": ray.tune.choice([1e-3])}, n_trials=1, max_failures=1, **options(tmp_path)
    )
    assert isinstance(best, hexloop.BestRun)
    (trial,) = record_of(tmp_path).trials.values()
    assert trial.state is TrialState.COMPLETE
    assert sorted(trial.reports) == [4, 8, 12]
    journal = (tmp_path / "search" / trial.name / ".hexloop/journal.jsonl").read_text().splitlines()
    started = [note["step"] for note in map(json.loads, journal) if note["kind"] == "began"]
    assert len(started) == 2
    assert started[1] in (4, 8)


def _loss(metrics: dict[str, float]) -> float:
    return metrics["eval_loss"]


@pytest.mark.matrix
@pytest.mark.parametrize("scope", ["last", "all", "avg", "last-5-avg", "last-10-avg"])
def test_scopes(cluster: None, tmp_path: Path, scope: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the option or the variable; the best trial is the one that Ray chooses by that scope."""
    given: dict[str, Any] = {}
    if scope == "avg":
        monkeypatch.setenv("RAY_SCOPE", scope)
    else:
        given["ray_scope"] = scope
    best = trainer(tmp_path).hyperparameter_search(
        lambda _: {"learning_rate": ray.tune.grid_search([1e-3, 1e-2])}, n_trials=1, **given, **options(tmp_path)
    )
    assert isinstance(best, hexloop.BestRun)
    analysis: Any = best.run_summary
    chosen = analysis.get_best_trial("objective", "min", scope)
    assert best.run_id == chosen.trial_id
    assert best.objective == chosen.last_result["objective"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"ray_scope": "first"}, "ray_scope='first', but it is one of last, all"),
        ({"num_smples": 3}, "no option 'num_smples'"),
        ({"direction": ["minimize", "minimize"]}, "directions"),
        ({"resume": True}, "runs the trials by itself"),
        ({"eval_strategy": "no", "scheduler": "ASHAScheduler"}, "decides by evaluations during training"),
        ({"eval_strategy": "no", "scheduler": "PopulationBasedTraining"}, "decides by evaluations during training"),
        ({"eval_strategy": "no", "scheduler": "MedianStoppingRule"}, "decides by evaluations during training"),
        ({"eval_strategy": "no", "scheduler": "HyperBandForBOHB"}, "decides by evaluations during training"),
    ],
)
def test_what_is_refused(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    """Before a cluster is started."""
    arguments = {"eval_strategy": given.pop("eval_strategy")} if "eval_strategy" in given else {}
    if name := given.pop("scheduler", None):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kinds: Any = import_module("ray.tune.schedulers")
        mutations = {"hyperparam_mutations": {"learning_rate": [1e-3]}} if name == "PopulationBasedTraining" else {}
        given["scheduler"] = getattr(kinds, name)(**mutations)
    with pytest.raises(ConfigurationError, match=words.replace("(", "\\(")):
        trainer(tmp_path, **arguments).hyperparameter_search(backend="ray", n_trials=1, **given)


@pytest.mark.matrix
def test_a_search_in_which_all_trials_fail(cluster: None, tmp_path: Path) -> None:
    """Says why."""
    with pytest.raises(RunStateError, match="unlucky"):
        trainer(tmp_path).hyperparameter_search(
            lambda _: {"seed": ray.tune.choice([13])}, n_trials=1, **options(tmp_path)
        )
