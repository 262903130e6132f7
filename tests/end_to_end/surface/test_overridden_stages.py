"""The stages of `train` that a subclass overrides: called when transformers calls them, with its arguments."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import transformers
from torch.optim.lr_scheduler import LambdaLR

import hexloop
from hexloop import Trainer, TrainerCallback
from hexloop.domain.errors import ConfigurationError, RunStateError
from tests.end_to_end.small.models import net, rows
from tests.end_to_end.small.trainers import DEFAULTS, history, same_weights, small_trainer, weights

EVALUATED: dict[str, Any] = {
    "save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2,
    "load_best_model_at_end": True, "num_train_epochs": 2, "gradient_accumulation_steps": 2,
}  # fmt: skip

PREPARING = (
    "create_optimizer", "create_scheduler", "_get_output_dir", "_init_training_state", "_load_callback_state",
    "_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_rng_state", "_load_scaler",
    "_prepare_for_training", "_set_signature_columns_if_needed",
)  # fmt: skip
"""The methods before the first step, which hexloop calls in the order in which it constructs a run."""

IN_ORDER = (
    "_clip_grad_norm", "_determine_best_metric", "_evaluate", "_finalize_training", "_finish_current_push",
    "_get_dataloader", "_get_eval_sampler", "_get_grad_norm", "_get_learning_rate", "_get_num_items_in_batch",
    "_get_train_sampler", "_hp_search_setup", "_inner_training_loop", "_load_best_model", "_maybe_log_save_evaluate",
    "_move_model_to_device", "_prepare_input", "_prepare_inputs", "_report_to_hp_search", "_run_epoch", "_save",
    "_save_checkpoint", "_save_optimizer_and_scheduler", "_save_rng_state", "_save_scaler", "_track_num_input_tokens",
    "_validate_args", "compute_loss", "create_accelerator_and_postprocess", "evaluate", "evaluation_loop",
    "get_batch_samples", "get_eval_dataloader", "get_train_dataloader", "log", "prediction_step", "save_model",
    "store_flos", "training_step",
)  # fmt: skip
"""The methods that are called in the order of transformers, from the constructor to the end of `train`."""

Call = tuple[str, dict[str, Any]]


def noting(base: type[Any]) -> tuple[type[Any], list[Call]]:
    """Return a subclass that overrides every method by one that calls it, and the calls with their keywords."""
    calls: list[Call] = []

    def overriding(name: str) -> Any:
        def call(self: Any, *args: Any, **named: Any) -> Any:
            calls.append((name, named))
            return getattr(super(kind, self), name)(*args, **named)

        return call

    kind = type("Noting", (base,), {name: overriding(name) for name in (*PREPARING, *IN_ORDER, "_wrap_model")})
    return kind, calls


def run_of(library: ModuleType, folder: Path, resume: str | None = None) -> list[Call]:
    kind, calls = noting(library.Trainer)
    args = library.TrainingArguments(output_dir=str(folder), **{**DEFAULTS, **EVALUATED})
    trainer = kind(model=net(), args=args, train_dataset=rows(20), eval_dataset=rows(6))
    trainer.train(resume_from_checkpoint=resume)
    return calls


@pytest.mark.parametrize("resumes", [False, True])
def test_methods_are_called_when_transformers_calls_them(tmp_path: Path, resumes: bool) -> None:
    """Side by side, each overridden by one that calls it: in the same order, and as often."""
    found: dict[str, list[str]] = {}
    for library in (transformers, hexloop):
        folder = tmp_path / library.__name__
        calls = run_of(library, folder)
        if resumes:
            calls = run_of(library, folder, str(folder / "checkpoint-2"))
        found[library.__name__] = [name for name, _ in calls]
    theirs, ours = found["transformers"], found["hexloop"]

    assert [name for name in ours if name in IN_ORDER] == [name for name in theirs if name in IN_ORDER]
    for name in PREPARING:
        assert (name in ours) == (name in theirs)
    assert ours.count("_wrap_model") == theirs.count("_wrap_model")


@pytest.mark.parametrize("resumes", [False, True])
def test_an_epoch_receives_the_arguments_of_transformers(tmp_path: Path, resumes: bool) -> None:
    """Its number, the sizes of an epoch, and where a resumed run starts."""
    found = []
    for library in (transformers, hexloop):
        folder = tmp_path / library.__name__
        calls = run_of(library, folder)
        if resumes:
            calls = run_of(library, folder, str(folder / "checkpoint-2"))
        found.append([named for name, named in calls if name == "_run_epoch"])
    theirs, ours = found
    numbers = (
        "epoch", "steps_in_epoch", "num_update_steps_per_epoch", "trial", "ignore_keys_for_eval", "epochs_trained",
        "steps_trained_in_current_epoch",
    )  # fmt: skip

    assert [each.keys() for each in ours] == [each.keys() for each in theirs]
    assert [[each[name] for name in numbers] for each in ours] == [[each[name] for name in numbers] for each in theirs]
    assert {each["resume_from_checkpoint"] for each in ours} == {
        str(tmp_path / "hexloop" / "checkpoint-2") if resumes else None
    }


# Epochs and the end


@pytest.mark.parametrize("name", ["_run_epoch", "_finalize_training"])
def test_a_stage_that_does_not_happen_is_an_error(tmp_path: Path, name: str) -> None:
    """An override must call the standard method; without it, nothing would be trained or reported."""
    trainer = small_trainer(tmp_path, type("Skipping", (Trainer,), {name: lambda self, *_, **__: None}))

    with pytest.raises(RunStateError, match=rf"{name} returned without calling super\(\)"):
        trainer.train()
    assert not trainer.is_in_train


@pytest.mark.parametrize("name", ["_run_epoch", "_finalize_training"])
def test_a_stage_happens_once(tmp_path: Path, name: str) -> None:
    """A second call within the override, and a call from elsewhere, are errors."""

    class Twice(Trainer):
        def _run_epoch(self, *args: Any, **named: Any) -> None:
            for _ in range(2 if name == "_run_epoch" else 1):
                super()._run_epoch(*args, **named)

        def _finalize_training(self, trial: Any, num_train_samples: float, start_time: float) -> Any:
            for _ in range(2 if name == "_finalize_training" else 1):
                output = super()._finalize_training(trial, num_train_samples, start_time)
            return output

    with pytest.raises(RunStateError, match=f"{name} belongs to one moment of a run"):
        small_trainer(tmp_path, Twice).train()
    with pytest.raises(RunStateError, match=f"{name} needs a live run"):
        getattr(small_trainer(tmp_path), name)(*[None] * 3)


def test_an_epoch_may_be_surrounded(tmp_path: Path) -> None:
    """What an override does before and after an epoch takes effect there, and the state is that of the moment."""
    seen: list[Any] = []

    class Surrounding(Trainer):
        def _run_epoch(self, *args: Any, **named: Any) -> None:
            seen.append((self.state.epoch, len(list(Path(str(self.args.output_dir)).glob("checkpoint-*")))))
            super()._run_epoch(*args, **named)
            seen.append((self.state.epoch, len(list(Path(str(self.args.output_dir)).glob("checkpoint-*")))))

    trainer = small_trainer(tmp_path, Surrounding, num_train_epochs=2, save_strategy="epoch")
    trainer.train()

    assert seen == [(0, 0), (1, 1), (1, 1), (2, 2)]


def test_train_returns_what_the_end_returns(tmp_path: Path) -> None:
    """The standard result is passed through; another value replaces it. `stream` ends with the same event."""

    class Adding(Trainer):
        def _finalize_training(self, trial: Any, num_train_samples: float, start_time: float) -> Any:
            assert num_train_samples == 32
            output = super()._finalize_training(trial, num_train_samples, start_time)
            return output._replace(metrics={**output.metrics, "extra": 1.0})

    trainer = small_trainer(tmp_path, Adding, num_train_epochs=2)
    output = trainer.train()
    *_, last = small_trainer(tmp_path, Adding, num_train_epochs=2).stream()

    assert (output.global_step, output.metrics["extra"]) == (8, 1.0)
    assert output.training_loss == trainer.state.log_history[-1]["train_loss"] == last.metrics["train_loss"]
    assert trainer.outcome.step == last.step == 8


def test_a_run_in_an_overridden_epoch_pauses_and_stops(tmp_path: Path) -> None:
    """Requests take effect within the epoch, as without the override."""

    class Surrounding(Trainer):
        def _run_epoch(self, *args: Any, **named: Any) -> None:
            super()._run_epoch(*args, **named)

    class Pausing(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 1:
                trainer.pause()
                threading.Timer(0.05, trainer.resume).start()
            if state.global_step == 3:
                trainer.request_stop("enough", save=True)

    trainer = small_trainer(tmp_path, Surrounding, {"callbacks": [Pausing()]})
    trainer.train()

    assert (trainer.state.global_step, trainer.outcome.stopped, trainer.outcome.checkpoint) == (3, True, "checkpoint-3")


def test_an_error_in_an_overridden_epoch_releases_the_run(tmp_path: Path) -> None:
    """The error is the user's own, and the Trainer can train again."""

    class Failing(Trainer):
        fails = True

        def _run_epoch(self, *args: Any, **named: Any) -> None:
            super()._run_epoch(*args, **named)
            if self.fails:
                raise ValueError("my own")

    trainer = small_trainer(tmp_path, Failing)
    with pytest.raises(ValueError, match="my own"):
        trainer.train()
    trainer.fails = False

    assert trainer.train().global_step == 4


# The whole run, and its preparation


class Looping(Trainer):
    """Overrides the loop, and keeps what it received."""

    received: Any = None

    def _inner_training_loop(
        self,
        batch_size: int | None = None,
        args: Any = None,
        resume_from_checkpoint: Any = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:
        self.received = batch_size, args, resume_from_checkpoint, trial, ignore_keys_for_eval
        return super()._inner_training_loop(batch_size, args, resume_from_checkpoint, trial, ignore_keys_for_eval)


def test_an_overridden_inner_loop_is_train(tmp_path: Path) -> None:
    """It receives the folder of the checkpoint that a run resumes from, which is exact."""
    given: dict[str, Any] = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 3}
    whole = small_trainer(tmp_path, Looping, **given)
    whole.train(trial={"lr": 1}, ignore_keys_for_eval=["logits"])
    again = small_trainer(tmp_path, Looping, **given)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    newest = small_trainer(tmp_path, Looping, **{**given, "num_train_epochs": 3})
    newest.train(resume_from_checkpoint=True)

    assert whole.received == (4, whole.args, None, {"lr": 1}, ["logits"])
    assert again.received[2] == str(tmp_path / "checkpoint-3")
    assert newest.received[2] == str(tmp_path / "checkpoint-8")
    assert same_weights(weights(again), weights(whole))
    assert newest.state.global_step == 12


def test_what_an_inner_loop_cannot_change_is_refused(tmp_path: Path) -> None:
    """Other arguments, another batch size, and a stream, which would leave the override out."""

    class Changing(Trainer):
        given: tuple[Any, Any] = None, None

        def _inner_training_loop(self, *_: Any, **__: Any) -> Any:
            return super()._inner_training_loop(*self.given)

    trainer = small_trainer(tmp_path, Changing)
    with pytest.raises(ConfigurationError, match=r"stream\(\) does not call it"):
        trainer.stream()
    for given, problem in (((2, None), "batch_size=2"), ((None, small_trainer(tmp_path).args), "other arguments")):
        trainer.given = given
        with pytest.raises(ConfigurationError, match=problem):
            trainer.train()


def test_an_overridden_preparation_is_used(tmp_path: Path) -> None:
    """The steps of the schedule that it passes on count, and so does the model that it returns."""
    prepared: list[Any] = []

    class Preparing(Trainer):
        def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any) -> Any:
            prepared.append((max_steps, resume_from_checkpoint))
            return super()._prepare_for_training(2 * max_steps, train_dataloader, resume_from_checkpoint)

    trainer = small_trainer(tmp_path, Preparing)
    trainer.train()
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry]

    assert prepared == [(4, None)]
    assert rates == pytest.approx([0.01 * (1 - step / 8) for step in range(4)])


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (lambda standard: (standard[0], list(standard[1])), "returned another loader"),
        (None, "has not set optimizer"),
    ],
)
def test_a_preparation_that_cannot_be_used_is_refused(tmp_path: Path, result: Any, problem: str) -> None:
    """Another loader, because its length is known by then; and a run without an optimizer."""

    class Preparing(Trainer):
        def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any) -> Any:
            if result is None:
                return self.model, train_dataloader
            return result(super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint))

    with pytest.raises(ConfigurationError, match=problem):
        small_trainer(tmp_path, Preparing).train()


def test_an_overridden_initial_state_may_change_the_state(tmp_path: Path) -> None:
    """It is that of the run; another position is refused."""

    class Initializing(Trainer):
        moves = 0

        def _init_training_state(self, *args: Any) -> tuple[int, int]:
            epochs, batches = super()._init_training_state(*args)
            self.state.save_steps = 1
            return epochs + self.moves, batches

    trainer = small_trainer(tmp_path, Initializing, save_strategy="steps", save_steps=100)
    trainer.train()
    trainer.moves = 1

    assert len(list(tmp_path.glob("checkpoint-*"))) == 4
    with pytest.raises(ConfigurationError, match=r"_init_training_state returned \(1, 0\)"):
        trainer.train()


# Logging, evaluating and saving


class OwnBoundary(Trainer):
    """Logs, evaluates and saves by itself, with the internal names that transformers has for it."""

    def _maybe_log_save_evaluate(
        self, tr_loss: Any, grad_norm: Any, model: Any, trial: Any, epoch: Any, ignore_keys_for_eval: Any, *_: Any
    ) -> None:
        if self.control.should_log and self.state.global_step > self._globalstep_last_logged:
            total = tr_loss.item()
            tr_loss -= tr_loss
            steps = self.state.global_step - self._globalstep_last_logged
            self._total_loss_scalar += total
            self._globalstep_last_logged = self.state.global_step
            self.store_flos()
            rate = self.get_learning_rates()[0]
            self.log({"loss": total / steps, "grad_norm": float(grad_norm), "learning_rate": rate})
        if self.control.should_evaluate:
            metrics = self._evaluate(trial, ignore_keys_for_eval)
            self.control.should_save = self._determine_best_metric(metrics=metrics, trial=trial)
        if self.control.should_save:
            self._save_checkpoint(model, trial)
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)


@pytest.mark.parametrize("max_steps", [-1, 4])
def test_a_boundary_receives_the_number_of_its_epoch(tmp_path: Path, max_steps: int) -> None:
    """After each optimizer step and each epoch, as in transformers."""
    found: list[list[tuple[int, int]]] = []
    for library in (transformers, hexloop):
        seen: list[tuple[int, int]] = []

        def note(self: Any, *values: Any, seen: list[tuple[int, int]] = seen, **named: Any) -> None:
            seen.append((self.state.global_step, values[4]))

        kind = type("Noting", (library.Trainer,), {"_maybe_log_save_evaluate": note})
        given: dict[str, Any] = {**DEFAULTS, "num_train_epochs": 2, "max_steps": max_steps, "save_strategy": "no"}
        args = library.TrainingArguments(output_dir=str(tmp_path / library.__name__), **given)
        kind(model=net(), args=args, train_dataset=rows(12)).train()
        found.append(seen)
    assert found[0] == found[1]
    assert {epoch for _, epoch in found[0]} == {0, 1}


class Saves(TrainerCallback):
    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.steps.append(state.global_step)


OWN: dict[str, Any] = {
    "logging_steps": 3, "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "best", "num_train_epochs": 2,
    "metric_for_best_model": "loss", "load_best_model_at_end": True, "gradient_accumulation_steps": 2, "max_steps": 12,
}  # fmt: skip


def losses(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_a_boundary_of_the_users_own_is_that_of_the_standard_one(tmp_path: Path) -> None:
    """Losses are the means since the last log, `train_loss` that of the run; saves are announced once, and complete."""
    heard, heard_too = Saves(), Saves()
    parts = {"eval_dataset": rows(6)}
    own = small_trainer(tmp_path / "own", OwnBoundary, {**parts, "callbacks": [heard]}, **OWN)
    plain = small_trainer(tmp_path / "plain", Trainer, {**parts, "callbacks": [heard_too]}, **OWN)
    results = [own.train(), plain.train()]

    assert losses(own) == pytest.approx(losses(plain))
    assert results[0].training_loss == pytest.approx(results[1].training_loss)
    assert heard.steps == heard_too.steps
    assert own.state.best_metric == plain.state.best_metric
    assert same_weights(weights(own), weights(plain))
    assert [path.name for path in sorted((tmp_path / "own").glob("checkpoint-*"))] == [
        path.name for path in sorted((tmp_path / "plain").glob("checkpoint-*"))
    ]


def test_a_boundary_of_the_users_own_resumes_between_two_logs(tmp_path: Path) -> None:
    """The sum of the losses since the last log is that of the checkpoint."""
    given = {**OWN, "load_best_model_at_end": False}
    whole = small_trainer(tmp_path, OwnBoundary, {"eval_dataset": rows(6)}, **given)
    whole.train()
    assert (tmp_path / "checkpoint-2").exists()
    again = small_trainer(tmp_path, OwnBoundary, {"eval_dataset": rows(6)}, **given)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))

    assert losses(again) == pytest.approx(losses(whole))
    assert same_weights(weights(again), weights(whole))


def test_an_overridden_best_metric_decides(tmp_path: Path) -> None:
    """Which evaluation is the best, and with `save_strategy="best"`, what is saved. It may be called without a run."""

    class OnlyThird(Trainer):
        asked: int = 0

        def _determine_best_metric(self, metrics: dict[str, float], trial: Any = None) -> bool:
            assert metrics["eval_loss"]
            self.asked += 1
            return self.asked == 3

    trainer = small_trainer(
        tmp_path, OnlyThird, {"eval_dataset": rows(6)}, eval_strategy="steps", eval_steps=1, save_strategy="best",
        metric_for_best_model="loss",
    )  # fmt: skip
    trainer.train()
    outside = small_trainer(tmp_path, metric_for_best_model="score", greater_is_better=True)

    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-3"]
    assert [outside._determine_best_metric({"eval_score": score}) for score in (1.0, 0.5, 2.0)] == [True, False, True]
    assert outside.state.best_metric == 2.0


def test_a_metric_that_was_not_measured_only_matters_for_the_best_model(tmp_path: Path) -> None:
    """Without a best model to save or load, the run warns and ends."""
    given: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "f1"}
    trainer = small_trainer(tmp_path, parts={"eval_dataset": rows(4)}, **given)

    with pytest.warns(UserWarning, match=r"metric_for_best_model='f1' was not found"):
        trainer.train()
    assert trainer.state.global_step == 4
    assert trainer.state.best_metric is None


def test_an_overridden_evaluation_steps_the_schedule_itself(tmp_path: Path) -> None:
    """As in transformers, `_evaluate` passes the metrics to a schedule that follows one, and nothing else does."""
    skipped: list[bool] = []

    class Evaluating(Trainer):
        def _evaluate(self, trial: Any, ignore_keys_for_eval: Any, skip_scheduler: bool = False) -> Any:
            skipped.append(skip_scheduler)
            metrics = self.evaluate(ignore_keys=ignore_keys_for_eval)
            if not skip_scheduler:
                self.lr_scheduler.step(metrics["eval_loss"])
            return metrics

    class Calling(Trainer):
        def _evaluate(self, trial: Any, ignore_keys_for_eval: Any, skip_scheduler: bool = False) -> Any:
            return super()._evaluate(trial, ignore_keys_for_eval, skip_scheduler)

    rates = []
    for kind in (Trainer, Evaluating, Calling):
        trainer = small_trainer(
            tmp_path, kind, {"eval_dataset": rows(6)}, eval_strategy="steps", eval_steps=1, eval_on_start=True,
            num_train_epochs=3, lr_scheduler_type="reduce_lr_on_plateau", lr_scheduler_kwargs={"patience": 0},
            learning_rate=1.0, metric_for_best_model="loss",
        )  # fmt: skip
        trainer.train()
        rates.append([entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry])

    assert rates[0] == rates[1] == rates[2]
    assert len(set(rates[0])) > 1
    assert skipped == [True] + [False] * 12


def test_overridden_counting_replaces_the_count_of_tokens(tmp_path: Path) -> None:
    """It sees each micro-batch after its backward pass, and its counts are saved."""

    class Counting(Trainer):
        def _track_num_input_tokens(self, inputs: Any) -> None:
            assert self.model.layers[0].weight.grad is not None
            self.state.num_input_tokens_seen += len(inputs["x"])

    trainer = small_trainer(tmp_path, Counting, gradient_accumulation_steps=2)
    trainer.train()

    assert trainer.state.num_input_tokens_seen == 16


# Names that belong to stages


def test_an_overridden_schedule_may_say_that_the_run_made_it(tmp_path: Path) -> None:
    """`_created_lr_scheduler = True`, as overrides of `create_scheduler` assign it: the next run makes a new one."""

    class Own(Trainer):
        made = 0

        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            if self.lr_scheduler is None:
                self.made += 1
                self.lr_scheduler = LambdaLR(self.optimizer, lambda step: 0.5)
                self._created_lr_scheduler = True
            return self.lr_scheduler

    trainer = small_trainer(tmp_path, Own)
    trainer.train()
    assert trainer._created_lr_scheduler
    trainer.train()

    assert trainer.made == 2
    trainer._created_lr_scheduler = False
    assert trainer.lr_scheduler is not None
    assert not trainer._created_lr_scheduler


def test_a_trial_reaches_every_method_that_receives_one(tmp_path: Path) -> None:
    """`model_init`, the folder, the search's own methods and the stages; without a trial they receive None."""
    received: dict[str, Any] = {}

    class Searching(Trainer):
        def _hp_search_setup(self, trial: Any) -> None:
            received["setup"] = trial
            super()._hp_search_setup(trial)
            self.args.learning_rate = trial["lr"]

        def _get_output_dir(self, trial: Any = None) -> str:
            return str(tmp_path / f"lr-{trial['lr']}")

        def _report_to_hp_search(self, trial: Any, step: int, metrics: dict[str, float]) -> None:
            received[f"report {step}"] = trial, metrics["eval_loss"] > 0

        def _save_checkpoint(self, model: Any, trial: Any) -> None:  # type: ignore[override]
            received["save"] = trial
            super()._save_checkpoint(model, trial)

    trainer = small_trainer(
        tmp_path, Searching, {"model": None, "model_init": lambda trial: net(), "eval_dataset": rows(6)},
        eval_strategy="epoch", save_strategy="epoch", logging_steps=1,
    )  # fmt: skip
    trial = {"lr": 0.25}
    trainer.train(trial=trial)

    assert received == {"setup": trial, "report 4": (trial, True), "save": trial}
    assert (tmp_path / "lr-0.25" / "checkpoint-4").exists()
    assert trainer.state.log_history[0]["learning_rate"] == 0.25


def test_overridden_batch_sizes_are_noticed(tmp_path: Path) -> None:
    """`auto_find_batch_size` passes each size that it tries."""
    sizes: list[int] = []

    class Noting(Trainer):
        def _update_auto_batch_size(self, batch_size: int) -> None:
            sizes.append(batch_size)
            super()._update_auto_batch_size(batch_size)

        def compute_loss(self, model: Any, inputs: Any, *args: Any, **named: Any) -> Any:
            if len(inputs["x"]) > 3:
                raise torch.OutOfMemoryError("room for three")
            return super().compute_loss(model, inputs, *args, **named)

    trainer = small_trainer(tmp_path, Noting, auto_find_batch_size=True)
    trainer.train()

    assert sizes == [4, 3]
    assert trainer.state.train_batch_size == 3


def test_stages_change_nothing_if_they_call_the_standard_ones(tmp_path: Path) -> None:
    """Weights and logs of a run with all of them overridden are those of a plain run."""
    kind, _ = noting(Trainer)
    parts = {"eval_dataset": rows(6)}
    overridden = small_trainer(tmp_path / "overridden", kind, parts, **EVALUATED)
    plain = small_trainer(tmp_path / "plain", parts=parts, **EVALUATED)
    results = [overridden.train(), plain.train()]

    assert same_weights(weights(overridden), weights(plain))
    assert history(overridden) == history(plain)
    assert results[0].training_loss == results[1].training_loss


# Parameters


def test_a_boundary_may_have_parameters_of_its_own_or_of_earlier_releases(tmp_path: Path) -> None:
    """Values come by name if the names are those of transformers, else in its order, the learning rate by name."""
    seen: dict[str, Any] = {}

    class OwnNames(Trainer):
        def _maybe_log_save_evaluate(  # type: ignore[override]
            self, loss: Any, norm: Any, module: Any, trial: Any, progress: Any, ignored: Any, began: Any, **rest: Any
        ) -> None:
            seen["own"] = float(loss) > 0, float(norm) > 0, module, progress, ignored, began > 0, set(rest)

    class WithoutNorm(Trainer):
        def _maybe_log_save_evaluate(  # type: ignore[override]
            self, tr_loss: Any, model: Any, trial: Any, epoch: Any, ignore_keys_for_eval: Any
        ) -> None:
            seen["earlier"] = float(tr_loss) > 0, model, epoch

    class Keywords(Trainer):
        def _maybe_log_save_evaluate(self, **named: Any) -> None:  # type: ignore[override]
            seen["keywords"] = set(named)

    for kind in (OwnNames, WithoutNorm, Keywords):
        trainer = small_trainer(tmp_path, kind, max_steps=1)
        trainer.train(ignore_keys_for_eval=["logits"])
        seen["model"] = trainer.model_wrapped

        if kind is OwnNames:
            assert seen["own"] == (True, True, seen["model"], 0, ["logits"], True, {"learning_rate"})
    assert seen["earlier"][::2] == (True, 0)
    assert seen["keywords"] == {
        "tr_loss", "grad_norm", "model", "trial", "epoch", "ignore_keys_for_eval", "start_time", "learning_rate"
    }  # fmt: skip


def test_batches_of_a_step_are_passed_by_position(tmp_path: Path) -> None:
    """Under any names, with and without the device; the last step of an epoch has what is left."""
    asked: list[int] = []

    class OwnNames(Trainer):
        def get_batch_samples(self, source: Any, number: int, place: Any) -> Any:  # type: ignore[override]
            assert place == torch.device("cpu")
            asked.append(number)
            return super().get_batch_samples(source, number, place)

    class WithoutDevice(Trainer):
        def get_batch_samples(self, source: Any, number: int) -> Any:  # type: ignore[override]
            asked.append(number)
            return super().get_batch_samples(source, number, self.args.device)

    for kind in (OwnNames, WithoutDevice):
        asked.clear()
        trainer = small_trainer(
            tmp_path, kind, {"train_dataset": rows(20)}, gradient_accumulation_steps=2, num_train_epochs=2
        )
        trainer.train()
        assert asked == [2, 2, 1] * 2


def test_a_parallel_mode_is_that_of_transformers(tmp_path: Path) -> None:
    """Functions of transformers compare it with their own."""
    mode = small_trainer(tmp_path).args.parallel_mode
    theirs = transformers.training_args.ParallelMode

    assert mode == theirs.NOT_PARALLEL
    assert mode != theirs.DISTRIBUTED
    assert mode in {theirs.NOT_PARALLEL.value: 1, hexloop.ParallelMode.NOT_PARALLEL: 2}


class Closing(list[Any]):
    """A loader that notes when a pass ends."""

    ended = 0

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from super().__iter__()
        finally:
            self.ended += 1


@pytest.mark.parametrize("overrides", [False, True])
def test_an_epoch_that_fails_ends_the_pass_over_the_data(tmp_path: Path, overrides: bool) -> None:
    """The loader's generator is closed when the error propagates, whether or not _run_epoch is overridden."""
    batches = Closing([{name: each[name][None] for name in each} for each in rows(4)])

    class Own(Trainer):
        def get_train_dataloader(self) -> Any:
            return batches

        if overrides:

            def _run_epoch(self, *args: Any, **named: Any) -> None:
                super()._run_epoch(*args, **named)

    class Failing(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            raise ZeroDivisionError

    trainer = small_trainer(tmp_path, Own, parts={"callbacks": [Failing()]})
    with pytest.raises(ZeroDivisionError) as caught:
        trainer.train()
    assert caught.value.__traceback__ is not None  # whose frames keep an open generator alive
    assert batches.ended == 1
