"""Features of the Trainer besides training work in two processes as in one, under every engine."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from hexloop import EarlyStoppingCallback, TrainerCallback
from hexloop.adapters.journal import read
from tests.engines.several.training import Trained, Training, distance, ended, fresh, run

LAYERS = {"transformer_layer_cls_to_wrap": ["Linear"]}
ENGINES: dict[str, Training] = {
    "ddp": Training(2),
    "fsdp1": Training(
        2, engine="FullyShardedDataParallel", arguments={"fsdp": "full_shard", "fsdp_config": {"version": 1, **LAYERS}}
    ),
    "fsdp2": Training(
        2, engine="FSDPReader", arguments={"fsdp": "full_shard", "fsdp_config": {"version": 2, **LAYERS}}
    ),
    "zero2": Training(2, engine="DeepSpeedEngine", arguments={"deepspeed": {"zero_optimization": {"stage": 2}}}),
    "zero3": Training(2, engine="DeepSpeedEngine", arguments={"deepspeed": {"zero_optimization": {"stage": 3}}}),
}
HAS_DEEPSPEED = importlib.util.find_spec("deepspeed") is not None
UNALIKE = ("_runtime", "_per_second", "epoch", "total_flos")
"""Logged values that depend on the clock, or that count batches and so differ between process counts."""

MICRO_STEPS = ("on_substep_end", "on_prediction_step", "on_init_end")
"""Events of every batch of a process, or from before a callback can be added."""


class Patience(EarlyStoppingCallback):
    """Two evaluations without improvement: the first is the best, and the third stops the run."""

    def __init__(self) -> None:
        super().__init__(early_stopping_patience=2)


class Tracing(TrainerCallback):
    """Records which events each process receives, and when."""

    def __init__(self) -> None:
        self.trace: list[tuple[str, int]] = []

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if not name.startswith("on_") or name in MICRO_STEPS:
            return found

        def hear(args: Any, state: Any, control: Any, **rest: Any) -> Any:
            self.trace.append((name, state.global_step))
            if name == "on_train_end":
                reported = {"trace": self.trace, "best": [state.best_metric, state.best_global_step]}
                Path(args.output_dir, f"rank-{os.environ['RANK']}.json").write_text(json.dumps(reported))
            return found(args, state, control, **rest)

        return hear


class Sampling(TrainerCallback):
    """Leaves the model in evaluation mode after every log, and checks that updates run in training mode."""

    trainer: Any

    def on_log(self, *args: Any, **kwargs: Any) -> None:
        self.trainer.model.eval()

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        for model in (self.trainer.model, self.trainer.model_wrapped):
            assert all(module.training for module in model.modules())


def with_arguments(training: Training, **arguments: Any) -> Training:
    return evolve(training, arguments={**training.arguments, **arguments})


def in_one_process(training: Training) -> Training:
    """Return the result of one process without an engine."""
    engines = ("fsdp", "fsdp_config", "deepspeed")
    kept = {name: value for name, value in training.arguments.items() if name not in engines}
    return training.of(1, arguments=kept)


def choosing(engine: str) -> Training:
    """Run with evaluation, the best weights, early stopping and memory metrics."""
    training = with_arguments(
        ENGINES[engine],
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=2,
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        greater_is_better=True,
        skip_memory_metrics=False,
        journal="steps",
    )
    return evolve(training, callbacks=(Patience, Tracing))


def comparable(trained: Trained) -> list[dict[str, float]]:
    """Return the logged values that depend neither on the clock, memory, nor the number of batches."""
    return [
        {name: value for name, value in entry.items() if not name.endswith(UNALIKE) and "_mem_" not in name}
        for entry in trained.history
    ]


def heard(folder: Path, rank: int) -> dict[str, Any]:
    reported: dict[str, Any] = json.loads((folder / f"rank-{rank}.json").read_text())
    return reported


def noted(folder: Path) -> list[tuple[Any, ...]]:
    """Return the journal's entries in order, without those of saves and of the machine, which run in the background."""
    notes = read(folder / ".hexloop/journal.jsonl")
    return [(note["kind"], note.get("step")) for note in notes if note["kind"] not in ("save", "information")]


def noted_losses(folder: Path) -> list[float]:
    """Return the loss of every step, from the journal."""
    notes: list[Any] = [note["losses"] for note in read(folder / ".hexloop/journal.jsonl") if note["kind"] == "losses"]
    return [loss for losses in notes for loss in losses]


engines = pytest.mark.parametrize(
    "engine",
    [
        pytest.param(name, marks=pytest.mark.skipif("zero" in name and not HAS_DEEPSPEED, reason="needs deepspeed"))
        for name in ENGINES
    ],
)


@pytest.mark.matrix
@engines
def test_features_besides_training_match_one_process(engine: str, tmp_path: Path) -> None:
    """Evaluation, metrics, best weights, early stopping, memory metrics, callbacks, and the journal."""
    one = run(in_one_process(choosing(engine)), fresh(tmp_path / "one"))
    both = run(choosing(engine), fresh(tmp_path / "both"))
    assert [entry.keys() for entry in both.history] == [entry.keys() for entry in one.history]
    for expected, found in zip(comparable(one), comparable(both), strict=True):
        assert found == pytest.approx(expected, rel=1e-5)
    assert any("train_mem_cpu_alloc_delta" in entry for entry in both.history)
    assert distance(one.weights, both.weights) < 1e-5
    alone = heard(tmp_path / "one", 0)
    for rank in (0, 1):
        reported = heard(tmp_path / "both", rank)
        assert reported["trace"] == alone["trace"]
        assert reported["best"] == pytest.approx(alone["best"], rel=1e-5)
    assert alone["best"][1] == 2
    assert ["on_train_end", 6] in alone["trace"]
    assert noted(tmp_path / "both") == noted(tmp_path / "one")
    assert noted_losses(tmp_path / "both") == pytest.approx(noted_losses(tmp_path / "one"), rel=1e-5)
    assert len(noted_losses(tmp_path / "both")) == 6
    kept = [sorted(each.name for each in (tmp_path / name).glob("checkpoint-*")) for name in ("one", "both")]
    assert kept[0] == kept[1] == ["checkpoint-2", "checkpoint-6"]


@pytest.mark.matrix
@engines
def test_noise_resumes_exactly(engine: str, tmp_path: Path) -> None:
    """NEFTune noise and dropout affect training and resume bitwise in the middle of an epoch."""
    quiet = with_arguments(ENGINES[engine], save_strategy="steps", save_steps=4, num_train_epochs=2)
    noisy = evolve(with_arguments(quiet, neftune_noise_alpha=5.0), dropout=0.1)
    whole = run(noisy, fresh(tmp_path / "whole"))
    resumed = run(noisy.of(2, resume=str(tmp_path / "whole" / "checkpoint-4")), fresh(tmp_path / "resumed"))
    assert resumed.logged == whole.logged
    assert distance(resumed.weights, whole.weights) == 0.0
    without = run(evolve(noisy, arguments=quiet.arguments), fresh(tmp_path / "without"))
    assert without.logged[0]["loss"] != pytest.approx(whole.logged[0]["loss"], rel=1e-4)


@pytest.mark.matrix
@engines
def test_every_step_runs_in_training_mode(engine: str, tmp_path: Path) -> None:
    """A callback that leaves the model in evaluation mode has no effect on updates, whichever module it changes."""
    run(with_arguments(evolve(ENGINES[engine], callbacks=(Sampling,)), max_steps=3), fresh(tmp_path))


@pytest.mark.matrix
@engines
def test_auto_find_batch_size_is_refused(engine: str, tmp_path: Path) -> None:
    """Every process refuses before the rendezvous."""
    for said in ended(with_arguments(ENGINES[engine], auto_find_batch_size=True), fresh(tmp_path)):
        assert "You chose auto_find_batch_size=True" in said
