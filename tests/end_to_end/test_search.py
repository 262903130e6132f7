"""Hyperparameter search with the Trainer."""

from __future__ import annotations

import json
import logging
import math
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hexloop
from hexloop import (
    BestRun,
    ConfigurationError,
    RunStateError,
    Trainer,
    TrainerCallback,
    takeover,
    with_hyperparameters,
)
from hexloop.app.assembly import searches
from hexloop.app.search.results import default_compute_objective, default_hp_space_wandb, hp_params
from hexloop.domain.errors import CheckpointError, MissingCheckpointError
from hexloop.domain.folders import Folder
from hexloop.domain.search.records import SearchRecord, read_search
from hexloop.ports.search import TrialState
from hexloop.testing import ManualClock, MemoryStorage, RecordingLogger, ScriptedSearch
from tests.end_to_end.small.models import net, rows
from tests.end_to_end.small.trainers import same_weights, small_trainer, weights

optuna = pytest.importorskip("optuna")


def space(trial: Any) -> dict[str, Any]:
    """Return parameters whose names in the trial are others than those of the arguments."""
    return {
        "learning_rate": trial.suggest_float("rate", 1e-4, 1.0, log=True),
        "per_device_train_batch_size": trial.suggest_categorical("batch", [2, 4]),
    }


EVALUATING: dict[str, Any] = {
    "max_steps": 8,
    "eval_strategy": "steps",
    "eval_steps": 2,
    "save_strategy": "steps",
    "save_steps": 2,
    "save_total_limit": 1,
}


def new_model() -> nn.Module:
    return net()


def searcher(folder: Path, kind: type[Trainer] = Trainer, parts: dict[str, Any] | None = None, **given: Any) -> Any:
    """Return a Trainer that evaluates and saves every other of 8 steps."""
    found = {"model_init": new_model, "eval_dataset": rows(8, seed=1), **(parts or {})}
    return small_trainer(folder, kind, found, **{**EVALUATING, **given})


def record_of(folder: Path) -> SearchRecord:
    record = read_search(Folder(str(folder)))
    assert record is not None
    assert record.skipped == 0
    return record


def outcomes(folder: Path) -> list[tuple[Any, ...]]:
    """Return what each trial of a search was and how it ended."""
    trials = record_of(folder).trials.values()
    return [(each.number, each.drawn, each.parameters, each.state, each.values, each.checkpoint) for each in trials]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[ScriptedSearch]]:
    """Let backend="scripted" be a search of these parameters; return where the searches are that were made."""

    def install(
        parameters: Sequence[dict[str, Any]], prunes: Callable[[int, int, Sequence[float]], bool] | None = None
    ) -> list[ScriptedSearch]:
        made: list[ScriptedSearch] = []

        def make(_options: object) -> ScriptedSearch:
            made.append(ScriptedSearch(parameters, *([] if prunes is None else [prunes])))
            return made[-1]

        monkeypatch.setattr(searches, "find_plugin", lambda port, name: make if name == "scripted" else None)
        return made

    return install


# What a search returns, and what it leaves


def test_the_best_trial(tmp_path: Path) -> None:
    """Its parameters are by argument, its objective is its best evaluation, and each trial has a folder of its own."""
    trainer = searcher(tmp_path)
    before = dict(vars(trainer.args))
    best: BestRun = trainer.hyperparameter_search(space, n_trials=5, backend="optuna")

    record = record_of(tmp_path)
    complete = {each.number: each for each in record.trials.values() if each.state is TrialState.COMPLETE}
    chosen = min(complete.values(), key=lambda each: (each.values or (math.inf,))[0])
    assert best[:3] == (chosen.identifier, (chosen.values or (0.0,))[0], chosen.parameters)
    assert best.hyperparameters.keys() == {"learning_rate", "per_device_train_batch_size"}
    assert isinstance(best, BestRun)
    assert best.run_summary is not None
    assert len(best.run_summary.trials) == 5
    assert vars(trainer.args) == before
    assert {f"run-{number}" for number in range(5)} < {*os.listdir(tmp_path)}
    for each in complete.values():
        assert each.values == (min(value for (value,) in read_reports(tmp_path, each.number)),)
    assert trainer.hp_search_backend is None


def read_reports(folder: Path, number: int) -> list[Sequence[float]]:
    lines = map(json.loads, (folder / "search.jsonl").read_text().splitlines())
    return [line["values"] for line in lines if line["kind"] == "reported" and line["trial"] == number]


@pytest.mark.filterwarnings("ignore:These modules imported classes:UserWarning")  # other tests did
def test_the_last_evaluation_counts_where_it_is_asked_for(tmp_path: Path) -> None:
    """`objective="last"`, and by default with `reproduce` or during a takeover."""
    searcher(tmp_path / "a").hyperparameter_search(space, n_trials=2, backend="random", objective="last")
    searcher(tmp_path / "b", reproduce="transformers").hyperparameter_search(space, n_trials=2, backend="random")
    with takeover():
        trainer = searcher(tmp_path / "c")
    trainer.hyperparameter_search(space, n_trials=2, backend="random")
    for name in "abc":
        record = record_of(tmp_path / name)
        assert record.definition.objective == "last"
        for each in record.trials.values():
            assert list(each.values or ()) == read_reports(tmp_path / name, each.number)[-1]


def test_without_an_evaluation_the_end_counts(tmp_path: Path) -> None:
    """The model at the end of the trial is evaluated; the backend does not prune it."""
    trainer = searcher(tmp_path, eval_strategy="no")
    trainer.hyperparameter_search(space, n_trials=2, backend="random")
    for each in record_of(tmp_path).trials.values():
        assert each.state is TrialState.COMPLETE
        assert len(read_reports(tmp_path, each.number)) == 1


def test_the_same_proposals_and_objectives_as_optuna_by_hand(tmp_path: Path) -> None:
    """With the same sampler and seed, pruner included."""
    searcher(tmp_path / "ours").hyperparameter_search(
        space,
        n_trials=9,
        backend="optuna",
        sampler=optuna.samplers.TPESampler(seed=3, n_startup_trials=3),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=2),
        objective="last",
    )

    def objective(trial: Any) -> float:
        parameters = space(trial)
        values: list[float] = []

        class Reporting(TrainerCallback):
            def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                values.append(kwargs["metrics"]["eval_loss"])
                trial.report(values[-1], state.global_step)
                if trial.should_prune():
                    raise optuna.TrialPruned

        parts = {"callbacks": [Reporting()]}
        folder = tmp_path / f"theirs-{trial.number}"
        searcher(folder, parts=parts, save_strategy="no", **parameters).train()
        return values[-1]

    study = optuna.create_study(
        sampler=optuna.samplers.TPESampler(seed=3, n_startup_trials=3),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=2),
    )
    study.optimize(objective, n_trials=9)
    names = {"COMPLETE": TrialState.COMPLETE, "PRUNED": TrialState.PRUNED}
    ours = [(each.drawn, each.state, each.values) for each in record_of(tmp_path / "ours").trials.values()]
    theirs = [
        (each.params, names[each.state.name], tuple(each.values) if each.state.name == "COMPLETE" else None)
        for each in study.trials
    ]
    assert ours == theirs
    assert {state for _, state, _ in ours} == {TrialState.COMPLETE, TrialState.PRUNED}


def test_several_objectives(tmp_path: Path) -> None:
    """All trials that no other one beats are returned, each with its objectives."""

    def objectives(metrics: dict[str, float]) -> list[float]:
        return [metrics["eval_loss"], -metrics["eval_loss"]]

    trainer = searcher(tmp_path)
    best = trainer.hyperparameter_search(
        space, objectives, n_trials=3, direction=["minimize", "minimize"], backend="optuna"
    )
    assert [each.run_id for each in best] == ["0", "1", "2"]
    assert all(each.objective[0] == -each.objective[1] for each in best)


def test_a_dictionary_is_a_space(tmp_path: Path) -> None:
    """Choices and ranges by argument; a grid tries all combinations, and then ends."""
    trainer = searcher(tmp_path)
    given = {"learning_rate": [0.01, 0.1], "warmup_steps": {"low": 0, "high": 1}}
    trainer.hyperparameter_search(given, n_trials=None, backend="grid")
    found = [tuple(each.parameters.values()) for each in record_of(tmp_path).trials.values()]
    assert found == [(0.01, 0), (0.01, 1), (0.1, 0), (0.1, 1)]
    assert record_of(tmp_path).definition.space == given


# What a trial is


class Watching(TrainerCallback):
    """Notes what a callback sees of a trial at its start and its end."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.ended = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seen.append(
            (state.is_hyper_param_search, state.trial_name, state.trial_params, args.learning_rate, args.output_dir)
        )

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.ended += 1


def test_callbacks_see_the_trial(tmp_path: Path) -> None:
    """In the state and in the arguments; pruned trials end with on_train_end, too."""
    watching = Watching()
    trainer = searcher(tmp_path, parts={"callbacks": [watching]})
    pruner = optuna.pruners.ThresholdPruner(upper=0.0)
    with pytest.raises(RunStateError, match=r"No trial of the search was complete.*trial 0: pruned at step 2"):
        trainer.hyperparameter_search(
            space, n_trials=2, backend="optuna", hp_name=lambda trial: f"try_{trial.number}", pruner=pruner
        )
    assert watching.ended == 2
    for number, (searches_, name, params, rate, folder) in enumerate(watching.seen):
        assert (searches_, name) == (True, f"try_{number}")
        assert params["rate"] == rate
        assert folder == os.path.join(str(tmp_path), f"try_{number}")
    trainer.train()
    assert watching.seen[-1] == (False, None, None, 0.01, str(tmp_path))


def test_each_trial_is_a_run_of_its_own_for_trackers(tmp_path: Path) -> None:
    """With the name of the trial, its parameters, and the group of the search; a pruned one is not a failure."""
    logger = RecordingLogger()
    trainer = searcher(tmp_path, parts={"loggers": [logger]}, run_name="tuning")
    trainer.hyperparameter_search(space, n_trials=3, backend="random")
    assert len({each.run for each in logger.runs}) == 3
    assert [each.trial for each in logger.runs] == ["run-0", "run-1", "run-2"]
    assert {each.group for each in logger.runs} == {"tuning"}
    assert all(each.trial_parameters["rate"] == each.configuration["learning_rate"] for each in logger.runs)


def test_model_init_may_draw_too(tmp_path: Path) -> None:
    """What it draws, such as the width of a layer, is part of the trial, and the best model is built with it."""

    class Wide(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1))

        def forward(self, x: Any, labels: Any = None) -> Any:
            logits = self.layers(x)
            return {"loss": nn.functional.mse_loss(logits, labels), "logits": logits}

    def model_init(trial: Any) -> Any:
        return Wide(4 if trial is None else trial.suggest_int("width", 2, 9))

    trainer = searcher(tmp_path, parts={"model_init": model_init})
    best = trainer.hyperparameter_search(space, n_trials=4, backend="optuna")
    record = record_of(tmp_path)
    chosen = record.trials[int(best.run_id)]
    assert chosen.drawn.keys() == {"rate", "batch", "width"}
    assert best.hyperparameters.keys() == {"learning_rate", "per_device_train_batch_size"}
    loaded = trainer.load_best_trial()
    assert loaded[:3] == best[:3]
    assert trainer.model.layers[0].out_features == chosen.drawn["width"]
    assert trainer.evaluate()["eval_loss"] == pytest.approx(best.objective, rel=1e-6)


def test_nested_names(tmp_path: Path) -> None:
    """An entry of a dictionary is a parameter, which can be put back into the arguments."""

    def nested(trial: Any) -> dict[str, Any]:
        return {"lr_scheduler_kwargs.num_cycles": trial.suggest_int("cycles", 1, 3)}

    trainer = searcher(tmp_path, lr_scheduler_type="cosine_with_restarts")
    best = trainer.hyperparameter_search(nested, n_trials=2, backend="random")
    assert trainer.args.lr_scheduler_kwargs is None
    changed = with_hyperparameters(trainer.args, best.hyperparameters)
    assert changed.lr_scheduler_kwargs == {"num_cycles": best.hyperparameters["lr_scheduler_kwargs.num_cycles"]}


def test_a_trial_is_what_a_run_with_its_arguments_is(tmp_path: Path) -> None:
    """Bitwise, whatever came before it."""
    trainer = searcher(tmp_path / "search")
    best = trainer.hyperparameter_search(space, n_trials=3, backend="random")
    alone = searcher(tmp_path / "alone", **record_of(tmp_path / "search").trials[2].parameters)
    alone.train()
    assert same_weights(weights(trainer), weights(alone))
    assert best.run_id in {"0", "1", "2"}


def test_early_stopping_starts_anew_in_each_trial(tmp_path: Path) -> None:
    """Its patience is not used up by an earlier trial."""
    callback = hexloop.EarlyStoppingCallback(2)
    trainer = searcher(
        tmp_path,
        parts={"callbacks": [callback]},
        metric_for_best_model="loss",
        load_best_model_at_end=True,
        learning_rate=0.0,
    )
    trainer.hyperparameter_search({"seed": [1, 2, 3]}, n_trials=3, backend="grid")
    assert [len(read_reports(tmp_path, number)) for number in range(3)] == [3, 3, 3]
    assert all(each.state is TrialState.COMPLETE for each in record_of(tmp_path).trials.values())


def test_overridden_hooks_are_called(tmp_path: Path) -> None:
    """`_hp_search_setup` before each trial, `_report_to_hp_search` after each evaluation; they may call super."""
    calls: list[Any] = []

    class Overriding(Trainer):
        def _hp_search_setup(self, trial: Any) -> None:
            super()._hp_search_setup(trial)
            calls.append(("setup", trial.number, self.args.learning_rate))

        def _report_to_hp_search(self, trial: Any, step: int, metrics: dict[str, float]) -> None:
            calls.append(("report", trial.number, step))
            super()._report_to_hp_search(trial, step, metrics)

    trainer = searcher(tmp_path, Overriding)
    trainer.hyperparameter_search(space, n_trials=2, backend="random")
    rates = [each.parameters["learning_rate"] for each in record_of(tmp_path).trials.values()]
    assert calls == [
        each
        for number in range(2)
        for each in [("setup", number, rates[number]), *(("report", number, step) for step in (2, 4, 6, 8))]
    ]


def test_an_overridden_evaluate_is_reported(tmp_path: Path) -> None:
    """Its metrics are the objective."""

    class Evaluating(Trainer):
        def evaluate(self, *given: Any, **named: Any) -> dict[str, float]:
            return {**super().evaluate(*given, **named), "eval_loss": 42.0}

    best = searcher(tmp_path, Evaluating).hyperparameter_search(space, n_trials=2, backend="random")
    assert best.objective == 42.0


def test_trials_in_a_storage_that_was_passed(tmp_path: Path) -> None:
    """Each trial has a folder in it; the best one can be resumed from, and the record is in the output folder."""
    storage = MemoryStorage()
    trainer = searcher(tmp_path, parts={"storage": storage})
    trainer.hyperparameter_search(space, n_trials=2, backend="random")
    assert {"run-0", "run-1"} <= {each.name for each in storage.list("")}
    assert {each.name for each in storage.list("run-1")} >= {"checkpoint-8"}
    assert [each.checkpoint for each in record_of(tmp_path).trials.values()] == ["run-0/checkpoint-8"] * 1 + [
        "run-1/checkpoint-8"
    ]


# Failures


def test_a_trial_that_fails_counts_as_failed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The search goes on, and says why; so it does after running out of memory."""
    raised = [ValueError("a bad batch"), None, torch.OutOfMemoryError("out of memory"), None]

    class Failing(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            error = raised[int(os.path.basename(args.output_dir).removeprefix("run-"))]
            if state.global_step == 3 and error is not None:
                raise error

    trainer = searcher(tmp_path, parts={"callbacks": [Failing()]})
    with caplog.at_level(logging.WARNING, "hexloop"):
        best = trainer.hyperparameter_search(space, n_trials=4, backend="random")
    trials = [*record_of(tmp_path).trials.values()]
    assert [each.state for each in trials] == [TrialState.FAILED, TrialState.COMPLETE] * 2
    assert [each.reason for each in trials] == [
        "ValueError: a bad batch", None, "OutOfMemoryError: out of memory", None
    ]  # fmt: skip
    assert best.run_id in {"1", "3"}
    assert "Trial 0 failed, and the search continues: ValueError: a bad batch" in caplog.text


def test_a_model_that_cannot_be_built_counts_as_failed(tmp_path: Path) -> None:
    """And the next trial builds another one."""

    def model_init(trial: Any) -> Any:
        if trial is not None and trial.number == 1:
            raise MemoryError("too large")
        return net()

    trainer = searcher(tmp_path, parts={"model_init": model_init})
    trainer.hyperparameter_search(space, n_trials=3, backend="random")
    assert [each.state.value for each in record_of(tmp_path).trials.values() if each.state] == [
        "complete", "failed", "complete"
    ]  # fmt: skip


def test_only_the_errors_that_are_caught(tmp_path: Path) -> None:
    """With `catch`, and with `reproduce` by default none; the search can be resumed."""

    class Failing(TrainerCallback):
        fails = True

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if self.fails:
                raise ZeroDivisionError("no")

    failing = Failing()
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"catch": (ValueError,)}, {}),
        ({}, {"reproduce": "transformers"}),
    ]
    for given, named in cases:
        folder = tmp_path / str(len(named))
        trainer = searcher(folder, parts={"callbacks": [failing]}, **named)
        with pytest.raises(ZeroDivisionError):
            trainer.hyperparameter_search(space, n_trials=2, backend="random", **given)
        assert trainer.hp_search_backend is None
        assert [each.state for each in record_of(folder).trials.values()] == [None]
    failing.fails = False
    trainer.hyperparameter_search(space, n_trials=2, backend="random", resume=True, objective="last")
    assert len(outcomes(tmp_path / "1")) == 2


def test_a_trial_that_diverges_counts_as_failed(tmp_path: Path) -> None:
    """It ends at the evaluation at which its loss or its objective is not a number."""

    def objective(metrics: dict[str, float]) -> float:
        return math.nan if metrics["epoch"] > 0.9 else metrics["eval_loss"]

    trainer = searcher(tmp_path)
    trainer.hyperparameter_search({"learning_rate": [0.01, 1e30]}, n_trials=2, backend="grid", direction="minimize")
    first, second = record_of(tmp_path).trials.values()
    assert (first.state, second.state) == (TrialState.COMPLETE, TrialState.FAILED)
    assert str(second.reason).startswith("it diverged: ")
    assert len(read_reports(tmp_path, 1)) == 1
    with pytest.raises(RunStateError, match=r"trial 0: it diverged: the objective is NaN at step [48]"):
        searcher(tmp_path / "nan").hyperparameter_search(space, objective, n_trials=1, backend="random")


# Resuming


@pytest.mark.parametrize("ends", ["diverged", "pruned"])
def test_what_was_decided_before_a_kill_holds(ends: str, tmp_path: Path, scripted: Callable[..., Any]) -> None:
    """A process that is killed between an evaluation that ends a trial and its end does not train it further."""
    scripted([{"learning_rate": 1e30 if ends == "diverged" else 0.01}], lambda trial, step, values: ends == "pruned")

    def search(**given: Any) -> None:
        with pytest.raises(RunStateError, match=f"trial 0: .*{ends}.* at step 2"):
            searcher(tmp_path).hyperparameter_search(
                space, lambda metrics: 1.0, n_trials=1, backend="scripted", direction="minimize", **given
            )

    search()
    record = tmp_path / "search.jsonl"
    *before, end = record.read_text().splitlines(keepends=True)
    assert json.loads(end)["kind"] == "ended"
    record.write_text("".join(before))
    search(resume=True)
    (trial,) = record_of(tmp_path).trials.values()
    assert trial.state is (TrialState.FAILED if ends == "diverged" else TrialState.PRUNED)
    assert len(read_reports(tmp_path, 0)) == 1


class Killed(TrainerCallback):
    """Ends the program, as it were, after so many steps."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.one_in(3)
@pytest.mark.parametrize("backend", ["optuna", "random", "grid"])
def test_a_killed_search_resumes(backend: str, tmp_path: Path) -> None:
    """At the trial that it was in, from its newest checkpoint, with the same proposals, values and best trial."""
    given: Any = {"learning_rate": [0.001, 0.01, 0.1], "seed": [1, 2, 3]} if backend == "grid" else space
    undisturbed = searcher(tmp_path / "a").hyperparameter_search(given, n_trials=9, backend=backend)
    kills, moments = 0, random.Random(backend)
    while True:
        trainer = searcher(tmp_path / "b", parts={"callbacks": [Killed(moments.randrange(1, 30))]})
        try:
            best = trainer.hyperparameter_search(given, n_trials=9, backend=backend, resume="auto")
            break
        except KeyboardInterrupt:
            kills += 1
    assert kills >= 2
    assert outcomes(tmp_path / "b") == outcomes(tmp_path / "a")
    assert best[:3] == undisturbed[:3]


def test_a_trial_resumes_from_its_newest_checkpoint(tmp_path: Path) -> None:
    """It does not repeat the steps before it, nor report evaluations twice."""
    trainer = searcher(tmp_path, parts={"callbacks": [Killed(8 + 5)]})
    with pytest.raises(KeyboardInterrupt):
        trainer.hyperparameter_search(space, n_trials=2, backend="random")
    counting = Killed(1000)
    searcher(tmp_path, parts={"callbacks": [counting]}).hyperparameter_search(
        space, n_trials=2, backend="random", resume=True
    )
    assert 1000 - counting.left == 4  # from checkpoint-4 on
    assert len(read_reports(tmp_path, 1)) == 4


def test_a_requested_stop_ends_the_search(tmp_path: Path) -> None:
    """It can be resumed, and returns the best trial so far."""

    class Stopping(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if args.output_dir.endswith("run-1") and state.global_step == 3:
                trainer.request_stop("enough", save=True)

    trainer = searcher(tmp_path, parts={"callbacks": [Stopping()]})
    best = trainer.hyperparameter_search(space, n_trials=3, backend="random")
    assert best.run_id == "0"
    assert [each.state for each in record_of(tmp_path).trials.values()] == [TrialState.COMPLETE, None]
    searcher(tmp_path).hyperparameter_search(space, n_trials=3, backend="random", resume=True)
    assert [each.state for each in record_of(tmp_path).trials.values()] == [TrialState.COMPLETE] * 3


def test_a_finished_search_is_returned(tmp_path: Path) -> None:
    """With resume="auto" nothing is trained again; with more trials, these are run."""
    best = searcher(tmp_path).hyperparameter_search(space, n_trials=2, backend="optuna")
    watching = Watching()
    trainer = searcher(tmp_path, parts={"callbacks": [watching]})
    assert trainer.hyperparameter_search(space, n_trials=2, backend="optuna", resume="auto")[:3] == best[:3]
    assert watching.seen == []
    trainer.hyperparameter_search(space, n_trials=3, backend="optuna", resume=True)
    assert len(watching.seen) == 1
    whole = searcher(tmp_path / "whole")
    whole.hyperparameter_search(space, n_trials=3, backend="optuna")
    assert outcomes(tmp_path) == outcomes(tmp_path / "whole")


def test_another_search_is_not_resumed(tmp_path: Path) -> None:
    """One that is not there, one with other settings, and one whose space has changed."""
    with pytest.raises(MissingCheckpointError, match="found no search"):
        searcher(tmp_path).hyperparameter_search(space, n_trials=2, backend="random", resume=True)
    with pytest.raises(KeyboardInterrupt):
        searcher(tmp_path, parts={"callbacks": [Killed(3)]}).hyperparameter_search(space, n_trials=2, backend="random")
    with pytest.raises(CheckpointError, match="backend was 'random', and is 'optuna' now"):
        searcher(tmp_path).hyperparameter_search(space, n_trials=2, backend="optuna", resume=True)
    with pytest.raises(CheckpointError, match=r"hp_space now returns .* for trial 0"):
        searcher(tmp_path).hyperparameter_search(
            lambda trial: {"seed": trial.suggest_int("seed", 1, 9)}, n_trials=2, backend="random", resume=True
        )
    searcher(tmp_path).hyperparameter_search(space, n_trials=1, backend="optuna", resume=False)
    assert record_of(tmp_path).definition.backend == "optuna"
    assert (tmp_path / ".hexloop" / "searches" / "1" / "search.jsonl").exists()


def test_a_study_in_a_storage_is_continued(tmp_path: Path) -> None:
    """`load_if_exists`: the trials of the study come first, and the new ones have the next numbers."""
    options = {"storage": f"sqlite:///{tmp_path}/study.db", "study_name": "one", "load_if_exists": True}
    searcher(tmp_path / "a").hyperparameter_search(space, n_trials=2, backend="optuna", **options)
    best = searcher(tmp_path / "b").hyperparameter_search(space, n_trials=2, backend="optuna", **options)
    assert len(best.run_summary.trials) == 4
    assert {*os.listdir(tmp_path / "b")} > {"run-2", "run-3"}


# Checkpoints


def checkpoints(folder: Path) -> list[str]:
    return sorted(str(each.relative_to(folder)) for each in folder.glob("run-*/checkpoint-*"))


def test_the_checkpoint_of_the_objective_outlives_rotation(tmp_path: Path) -> None:
    """It is the one at the best evaluation, also if later ones exceed the limit. That of the best trial is marked."""

    def objective(metrics: dict[str, float]) -> float:
        return abs(metrics["epoch"] - 1.0)  # the best evaluation is that at step 4 of 8

    trainer = searcher(tmp_path)
    best = trainer.hyperparameter_search({"seed": [1, 2]}, objective, n_trials=2, backend="grid")
    assert (best.run_id, best.objective) == ("0", 0.0)
    assert checkpoints(tmp_path) == [
        "run-0/checkpoint-4", "run-0/checkpoint-8", "run-1/checkpoint-4", "run-1/checkpoint-8"
    ]  # fmt: skip
    assert [*tmp_path.glob("run-*/checkpoint-*/protected")] == [tmp_path / "run-0/checkpoint-4/protected"]
    assert [each.checkpoint for each in record_of(tmp_path).trials.values()] == [
        "run-0/checkpoint-4", "run-1/checkpoint-4"
    ]  # fmt: skip
    trainer.load_best_trial()
    loaded = weights(trainer)
    once_more = searcher(tmp_path / "alone", seed=1, max_steps=4, lr_scheduler_type="linear")
    assert loaded.keys() == weights(once_more).keys()


def test_checkpoints_of_the_best_trials_alone(tmp_path: Path) -> None:
    """`keep_trials` bounds the space that trials take; a file of the user's protects a checkpoint all the same."""
    trainer = searcher(tmp_path)

    def objective(metrics: dict[str, float]) -> float:
        return abs(float(trainer.args.seed) - 3.0)

    trainer.hyperparameter_search({"seed": [1, 2, 3, 4, 5]}, objective, n_trials=5, backend="grid", keep_trials=2)
    assert checkpoints(tmp_path) == ["run-1/checkpoint-8", "run-2/checkpoint-2", "run-2/checkpoint-8"] or checkpoints(
        tmp_path
    ) == ["run-1/checkpoint-2", "run-1/checkpoint-8", "run-2/checkpoint-2", "run-2/checkpoint-8"]
    best = trainer.load_best_trial()
    assert best.hyperparameters == {"seed": 3}


def test_there_is_nothing_to_load(tmp_path: Path) -> None:
    """Without a search, and without a checkpoint; the message says what to do."""
    trainer = searcher(tmp_path, save_strategy="no")
    with pytest.raises(RunStateError, match="There is no search"):
        trainer.load_best_trial()
    trainer.hyperparameter_search(space, n_trials=1, backend="random")
    with pytest.raises(RunStateError, match="has no checkpoint; search with another save_strategy"):
        trainer.load_best_trial()


# What is refused


@pytest.mark.parametrize(
    ("parts", "given", "error", "message"),
    [
        ({"model_init": None, "model": net()}, {}, RuntimeError, "not possible without model_init"),
        ({}, {"direction": "down"}, ConfigurationError, "direction='down'"),
        ({}, {"direction": []}, ConfigurationError, r"direction=\[\]"),
        ({}, {"n_trials": 0}, ConfigurationError, "n_trials=0"),
        ({}, {"n_trials": None}, ConfigurationError, "has no end"),
        ({}, {"n_jobs": 4}, ConfigurationError, "run one at a time"),
        ({}, {"timeout": -1}, ConfigurationError, "timeout=-1"),
        ({}, {"keep_trials": 0}, ConfigurationError, "keep_trials=0"),
        ({}, {"objective": "worst"}, ConfigurationError, "objective='worst'"),
        ({}, {"resume": "yes"}, ConfigurationError, "resume='yes'"),
        ({}, {"hp_space": 3}, ConfigurationError, "hp_space=3"),
        ({}, {"hp_space": {"seed": 3}}, ConfigurationError, "'seed' wrong"),
        ({}, {"hp_name": "x"}, ConfigurationError, "hp_name='x'"),
        ({}, {"hp_name": lambda trial: "../x"}, ConfigurationError, "cannot be the name of a folder"),
        ({}, {"backend": "optima"}, ValueError, "did you mean 'optuna'"),
        ({}, {"backend": "sigopt"}, RuntimeError, "service has ended"),
        ({}, {"backend": 3}, ConfigurationError, "backend=3"),
        ({}, {"unknown": 1}, ConfigurationError, "no option 'unknown'"),
        ({}, {"hp_space": lambda trial: {"learning_rat": 1.0}}, ConfigurationError, "did you mean learning_rate"),
        ({}, {"hp_space": lambda trial: {"seed": "x"}}, ConfigurationError, "seed='x'"),
        ({}, {"hp_space": lambda trial: {"seed": object()}}, ConfigurationError, "cannot be recorded"),
        ({}, {"hp_space": lambda trial: 7}, ConfigurationError, "hp_space returned 7"),
        ({}, {"compute_objective": lambda metrics: "good"}, ConfigurationError, "compute_objective returned 'good'"),
        ({}, {"compute_objective": lambda metrics: [1.0, 2.0]}, ConfigurationError, "returned 2 numbers"),
    ],
)
def test_wrong_calls(
    parts: dict[str, Any], given: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    """Each is one clear message, before anything is trained but what an objective needs."""
    watching = Watching()
    trainer = searcher(tmp_path, parts={"callbacks": [watching], **parts})
    call = {"hp_space": space, "n_trials": 2, "backend": "optuna", **given}
    with pytest.raises(error, match=message):
        trainer.hyperparameter_search(**call)
    assert len(watching.seen) == ("compute_objective" in given)
    assert trainer.hp_search_backend is None
    assert not [*tmp_path.glob("run-*/checkpoint-*")]


def test_every_problem_of_a_call_is_reported(tmp_path: Path) -> None:
    """At once."""
    with pytest.raises(ConfigurationError) as raised:
        searcher(tmp_path).hyperparameter_search(space, n_trials=-1, direction="up", backend="nothing", timeout="now")
    assert len(raised.value.problems) == 4


def test_a_package_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what to install; without any, random and grid search still work."""
    monkeypatch.setattr(searches, "_is_installed", lambda row: row.module is None)
    trainer = searcher(tmp_path)
    with pytest.raises(RuntimeError, match=r"the package optuna is not installed; run `pip install '?optuna"):
        trainer.hyperparameter_search(space, backend="optuna")
    with pytest.raises(RuntimeError, match=r"No hyperparameter search backend is installed: for optuna, run"):
        trainer.hyperparameter_search(space)
    assert trainer.hyperparameter_search(space, n_trials=1, backend="random").run_id == "0"


def test_an_optimizer_of_one_model_is_refused(tmp_path: Path) -> None:
    """Each trial makes its own."""
    trainer = searcher(tmp_path)
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1)
    with pytest.raises(RuntimeError, match="belongs to one model"):
        trainer.hyperparameter_search(space, backend="random")


def test_no_search_in_a_live_run(tmp_path: Path) -> None:
    """Nor within a search."""

    class Nested(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            trainer.hyperparameter_search(space, n_trials=1, backend="random")

    trainer = searcher(tmp_path, parts={"callbacks": [Nested()]})
    with pytest.raises(RunStateError, match="live already"):
        trainer.train()
    with pytest.raises(RunStateError, match=r"No trial of the search was complete.*live already"):
        trainer.hyperparameter_search(space, n_trials=1, backend="random")


def test_a_time_limit(tmp_path: Path, scripted: Callable[..., list[ScriptedSearch]]) -> None:
    """No trial starts after it; the trial that runs is run to its end."""
    made, clock = scripted([{"seed": each} for each in range(1, 60)]), ManualClock()

    class Slow(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            clock.sleep(1.0)

    trainer = searcher(tmp_path, parts={"callbacks": [Slow()], "clock": clock})
    trainer.hyperparameter_search(n_trials=50, backend="scripted", timeout=17)
    assert [*made[0].told] == [0, 1, 2]  # the third one starts after 16 seconds
    assert [each.seconds for each in record_of(tmp_path).trials.values()] == [8.0, 8.0, 8.0]


def test_what_the_backend_is_told(tmp_path: Path, scripted: Callable[..., list[ScriptedSearch]]) -> None:
    """Every evaluation, and how each trial ended, once."""
    made = scripted([{"seed": 1}, {"seed": 2}], lambda number, step, values: number == 1 and step == 4)
    searcher(tmp_path).hyperparameter_search(n_trials=2, backend="scripted")
    (search,) = made
    assert [(number, step) for number, step, _ in search.reports] == [(0, 2), (0, 4), (0, 6), (0, 8), (1, 2), (1, 4)]
    assert {number: state for number, (state, _) in search.told.items()} == {
        0: TrialState.COMPLETE,
        1: TrialState.PRUNED,
    }
    assert search.closed
    assert not (tmp_path / "run-1" / "checkpoint-4").exists()


# Names of transformers


def test_default_objective_and_spaces_match_transformers() -> None:
    """The same values for the same metrics, and the same ranges."""
    transformers = pytest.importorskip("transformers")
    utils = transformers.trainer_utils
    for metrics in (
        {"eval_loss": 1.5, "epoch": 2.0, "eval_runtime": 3.0, "eval_samples_per_second": 4.0},
        {"eval_loss": 1.5, "eval_accuracy": 0.5, "eval_f1": 0.25, "epoch": 1.0},
    ):
        assert default_compute_objective(metrics) == utils.default_compute_objective(metrics)
    trials = [optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1)).ask() for _ in range(2)]
    ours, theirs = hexloop.default_hp_space_optuna(trials[0]), utils.default_hp_space_optuna(trials[1])
    assert ours == theirs
    assert trials[0].distributions == trials[1].distributions
    assert hp_params(trials[0]) == transformers.integrations.hp_params(trials[1])
    assert hp_params({"a": 1}) == {"a": 1}
    with pytest.raises(RuntimeError, match="Unknown type for trial"):
        hp_params(3)
    assert default_hp_space_wandb(None)["parameters"].keys() == ours.keys()


def test_best_run_has_the_fields_of_transformers() -> None:
    """In the same order."""
    utils = pytest.importorskip("transformers.trainer_utils")
    assert BestRun._fields == utils.BestRun._fields
    assert BestRun("1", 2.0, {}) == utils.BestRun("1", 2.0, {})


def test_the_default_backend_and_space(tmp_path: Path) -> None:
    """optuna, and the ranges of transformers."""
    trainer = searcher(tmp_path, max_steps=2)
    trainer.hyperparameter_search(n_trials=1)
    (trial,) = record_of(tmp_path).trials.values()
    assert [*trial.parameters] == ["learning_rate", "num_train_epochs", "seed", "per_device_train_batch_size"]
    assert record_of(tmp_path).definition.backend == "optuna"
