"""An evaluation during training leaves training bitwise unchanged."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import transformers
from torch.utils.data import DataLoader

import hexloop
from hexloop import Trainer, TrainerCallback
from hexloop.domain.events import EvaluationBegan, PredictionStepEnded, StepEnded
from tests.end_to_end.small.models import Net, Noisy, net, rows
from tests.end_to_end.small.trainers import DEFAULTS, same_weights, small_trainer, weights

EVALUATING = {"eval_strategy": "steps", "eval_steps": 1, "eval_on_start": True}


def drawing(found: Any) -> dict[str, float]:
    """Return metrics that draw from all generators, like a bootstrap."""
    return {"drawn": float(torch.rand(()) + np.random.rand() + random.random())}


def trained(
    folder: Path, evaluates: bool, kind: type[Trainer] = Trainer, parts: dict[str, Any] | None = None, **given: Any
) -> dict[str, Any]:
    """Return weights, losses and random states after two epochs of noisy, shuffled samples with dropout."""
    chosen = {
        "model": net(dropout=0.3),
        "train_dataset": Noisy(14),
        "eval_dataset": Noisy(6),
        "compute_metrics": drawing,
        **(parts or {}),
    }
    arguments = {"num_train_epochs": 2, **(EVALUATING if evaluates else {}), **given}
    trainer = small_trainer(folder, kind=kind, parts=chosen, **arguments)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    evaluations = sum("eval_loss" in entry for entry in trainer.state.log_history)
    assert evaluations == (9 if evaluates else 0)
    return {
        "weights": weights(trainer),
        "losses": losses,
        "streams": (torch.rand(1), np.random.rand(), random.random()),
    }


def assert_unchanged(folder: Path, **given: Any) -> None:
    """Training with evaluations equals training without them."""
    with_them, without = (trained(folder / str(evaluates), evaluates, **given) for evaluates in (True, False))
    assert with_them["losses"] == without["losses"]
    assert same_weights(with_them["weights"], without["weights"])
    assert with_them["streams"] == without["streams"]


class WithOwnEvaluation(Trainer):
    """Overrides the evaluation methods."""

    def evaluate(self, *given: Any, **further: Any) -> dict[str, float]:
        drawing(None)
        return super().evaluate(*given, **further)

    def evaluation_loop(self, *given: Any, **further: Any) -> Any:
        drawing(None)
        return super().evaluation_loop(*given, **further)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        return DataLoader(self.eval_dataset, batch_size=3, shuffle=True, collate_fn=self.data_collator)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", [Trainer, WithOwnEvaluation])
@pytest.mark.parametrize("workers", [0, 2])
def test_evaluation_leaves_training_untouched(kind: type[Trainer], workers: int, tmp_path: Path) -> None:
    """With shuffling, dropout, and augmentation by three libraries in both datasets and in the metrics."""
    given = {"dataloader_num_workers": workers}
    if workers:
        given |= {"max_steps": 8, "num_train_epochs": 1}
    assert_unchanged(tmp_path, kind=kind, **given)


@pytest.mark.matrix
@pytest.mark.parametrize(
    "given",
    [
        {"batch_eval_metrics": True},
        {"keyed_data_randomness": True},
        {"gradient_accumulation_steps": 2, "max_steps": 8},
        {"bf16": True},
        {"eval_accumulation_steps": 1, "include_for_metrics": ["loss"]},
        {"dataloader_persistent_workers": True, "dataloader_num_workers": 1},
    ],
    ids=str,
)
def test_evaluation_leaves_training_untouched_with_every_argument(given: dict[str, Any], tmp_path: Path) -> None:
    """The same with arguments that change evaluation or training."""

    def compute(found: Any, compute_result: bool = True) -> dict[str, float]:
        return drawing(found)

    assert_unchanged(tmp_path, parts={"compute_metrics": compute}, **given)


class Calls(TrainerCallback):
    """Evaluates and predicts in on_step_end."""

    def __init__(self) -> None:
        self.trainer: Any = None
        self.active = True

    def on_step_end(self, *_: Any, **__: Any) -> None:
        if self.active:
            self.trainer.evaluate()
            self.trainer.predict(Noisy(3))
            self.trainer.evaluation_loop(self.trainer.get_test_dataloader(Noisy(3)), "Prediction")


def test_an_evaluation_called_by_a_callback_leaves_training_untouched(tmp_path: Path) -> None:
    """The same for `evaluate`, `predict` and `evaluation_loop`, called directly."""
    found = []
    for active in (True, False):
        calls = Calls()
        calls.active = active
        parts = {"model": net(0.3), "train_dataset": Noisy(14), "eval_dataset": Noisy(6), "callbacks": [calls]}
        calls.trainer = small_trainer(tmp_path / str(active), parts=parts)
        calls.trainer.train()
        found.append(weights(calls.trainer))
    assert same_weights(*found)


def test_a_save_during_an_evaluation_contains_the_random_states_of_training(tmp_path: Path) -> None:
    """A save requested between two batches of an evaluation that draws numbers resumes exactly."""

    def make(name: str = "", **given: Any) -> Any:
        parts = {"model": net(0.3), "train_dataset": Noisy(14), "eval_dataset": Noisy(9), "compute_metrics": drawing}
        arguments = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 100, **given}
        return small_trainer(tmp_path / name, parts=parts, **arguments)

    trainer = make()
    batches = 0
    for event in trainer.stream():
        if type(event) is PredictionStepEnded:
            batches += 1
            if batches == 2:
                trainer.request_stop(save=True)
    assert trainer.state.global_step == 2
    resumed = make()
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    whole = make("whole", eval_strategy="no", save_strategy="no")
    whole.train()

    assert same_weights(weights(resumed), weights(whole))


def test_interleaved_evaluations_leave_both_runs_untouched(tmp_path: Path) -> None:
    """Two interleaved runs, also within their evaluations, one of them closed there, equal separate runs."""

    def make(name: str, seed: int, **given: Any) -> Any:
        parts = {"model": net(0.3), "train_dataset": Noisy(14), "eval_dataset": Noisy(6), "compute_metrics": drawing}
        return small_trainer(tmp_path / name, parts=parts, seed=seed, **given)

    alone = make("alone", 1)
    alone.train()
    one, other = make("one", 1, **EVALUATING), make("other", 2, **EVALUATING)
    ones, others = one.stream(), other.stream()
    evaluations = 0
    for _ in ones:
        event = next(others, None)
        evaluations += type(event) is EvaluationBegan
        if type(event) is PredictionStepEnded and evaluations == 3:
            next(ones)
            others.close()

    assert evaluations == 3
    assert same_weights(weights(one), weights(alone))


def test_modules_return_to_their_modes(tmp_path: Path) -> None:
    """A module in evaluation mode during training, and one in training mode otherwise, keep their modes."""

    class Resting(Net):
        def train(self, mode: bool = True) -> Any:
            super().train(mode)
            self.layers[2].training = not mode
            return self

    model = net(0.3, kind=Resting)
    trainer = small_trainer(tmp_path, parts={"model": model, "eval_dataset": rows(4)})
    stream = trainer.stream()
    for event in stream:
        if type(event) is StepEnded and event.step == 1:
            model.layers[0].training = False
            trainer.evaluate()
            assert not model.training
            trainer.evaluate()
        elif type(event) is StepEnded:
            assert [module.training for module in model.layers] == [False, True, False, True]
            break
    stream.close()


class Modes:
    """Records the model's mode in each call of a callback."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, bool]] = []

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        logs = kwargs["logs"]
        kind = "loss" if "loss" in logs else "eval" if "eval_loss" in logs else "end"
        self.seen.append((f"log {kind}", kwargs["model"].training))

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seen.append(("evaluate", kwargs["model"].training))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seen.append(("update", kwargs["model"].training))


@pytest.mark.parametrize("library", [hexloop, transformers], ids=["hexloop", "transformers"])
def test_logs_after_an_evaluation_are_written_in_evaluation_mode(tmp_path: Path, library: Any) -> None:
    """`Trainer.log`, on_log and on_evaluate find transformers' mode, until the next update."""

    class Logging(library.Trainer):  # type: ignore[misc]
        logged: ClassVar[list[bool]] = []

        def log(self, logs: dict[str, float], *rest: Any) -> None:
            self.logged.append(self.model.training)
            super().log(logs, *rest)

    modes: Any = type("Modes", (Modes, library.TrainerCallback), {})()
    given: dict[str, Any] = {**DEFAULTS, "logging_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "max_steps": 2}
    arguments = library.TrainingArguments(output_dir=str(tmp_path), **given)
    trainer = Logging(model=net(0.3), args=arguments, train_dataset=rows(8), eval_dataset=rows(4), callbacks=[modes])
    trainer.train()

    step = [("update", True), ("log loss", True), ("log eval", False), ("evaluate", False)]
    assert modes.seen == [*step, *step, ("log end", False)]
    assert Logging.logged == [True, False, True, False, False]
    assert not trainer.model.training


def test_a_model_evaluated_outside_a_run_stays_in_evaluation_mode(tmp_path: Path) -> None:
    """As in transformers, the model is in evaluation mode after `evaluate` or `predict`."""
    for method in ("evaluate", "predict"):
        trainer = small_trainer(tmp_path, parts={"model": net(0.3).train()})
        getattr(trainer, method)(rows(4))
        assert not trainer.model.training


def test_random_states_outside_a_run_continue(tmp_path: Path) -> None:
    """Outside a run, two predictions with dropout differ, because no run restores the random state."""

    class Sampling(Trainer):
        def prediction_step(self, model: Any, inputs: Any, *given: Any, **further: Any) -> Any:
            model.train()
            return super().prediction_step(model, inputs, *given, **further)

    trainer = small_trainer(tmp_path, kind=Sampling, parts={"model": net(0.5)})
    first, second = (trainer.predict(rows(8)).predictions for _ in range(2))

    assert not np.array_equal(first, second)


def test_a_failed_evaluation_restores_random_states_and_modes(tmp_path: Path) -> None:
    """An evaluation error that the caller catches does not change the run."""

    def broken(found: Any) -> dict[str, float]:
        drawing(found)
        raise ArithmeticError("no metric")

    found = []
    for asks in (True, False):
        parts = {"model": net(0.3), "train_dataset": Noisy(14), "eval_dataset": Noisy(6), "compute_metrics": broken}
        trainer = small_trainer(tmp_path / str(asks), parts=parts)
        for event in trainer.stream():
            if asks and type(event) is StepEnded:
                with pytest.raises(ArithmeticError):
                    trainer.evaluate()
        found.append(weights(trainer))
    assert same_weights(*found)
