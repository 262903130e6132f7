"""Averages of weights in runs: what is evaluated, saved and left in the model, and how training continues."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import hexloop
from hexloop import ConfigurationError, Trainer, TrainerCallback, TrainingArguments
from hexloop.adapters.storage.local import LocalStorage
from hexloop.app.testing.resume_exactness import assert_resume_exact
from hexloop.domain.checkpoints.reading import verify
from hexloop.domain.errors import CheckpointError
from tests.end_to_end.small.adapters import KINDS, adapted, tiny_llama, token_rows
from tests.end_to_end.small.models import Net, net, rows
from tests.end_to_end.small.trainers import history, same_weights, small_trainer, weights

schedulefree = pytest.importorskip("schedulefree")

of_peft = pytest.mark.filterwarnings(
    "ignore::FutureWarning",
    "ignore::DeprecationWarning",
    "ignore::UserWarning:peft",
    "ignore:The following:RuntimeWarning",
)
"""PEFT reads names of transformers that are deprecated."""

SCHEDULE_FREE = ("schedule_free_adamw", "schedule_free_radam", "schedule_free_sgd")

KINDS_OF_AVERAGES: dict[str, dict[str, Any]] = {
    **{name: {"optim": name, "lr_scheduler_type": "constant", "warmup_steps": 3} for name in SCHEDULE_FREE},
    "moving": {"ema_decay": 0.8},
    "moving, from a step, now and then": {"ema_decay": 0.8, "ema_start_step": 3, "ema_update_every": 2},
    "moving, beside": {"ema_decay": 0.8, "ema_weights": "beside"},
}
kinds = pytest.mark.parametrize("kind", KINDS_OF_AVERAGES)
INSTEAD = [kind for kind in KINDS_OF_AVERAGES if not kind.endswith("beside")]
MOVING = [kind for kind in KINDS_OF_AVERAGES if kind.startswith("moving")]

SAVED: dict[str, Any] = {"max_steps": 12, "save_strategy": "steps", "save_steps": 4}


def trainer_of(folder: Path, kind: str, parts: dict[str, Any] | None = None, **given: Any) -> Any:
    return small_trainer(
        folder,
        parts={"train_dataset": rows(64), "eval_dataset": rows(8, seed=1), **(parts or {})},
        **{**SAVED, **KINDS_OF_AVERAGES[kind], **given},
    )


class Following(TrainerCallback):
    """Keeps copies of the trained weights after each step, and the weights in the model in each prediction step."""

    trainer: Any

    def __init__(self) -> None:
        self.trained: list[dict[str, Tensor]] = []
        self.predicted: dict[int, dict[str, Tensor]] = {}

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **rest: Any) -> None:
        self.trained.append({name: each.detach().clone() for name, each in model.state_dict().items()})

    def on_prediction_step(self, args: Any, state: Any, control: Any, model: Any = None, **rest: Any) -> None:
        self.predicted[state.global_step] = {name: each.detach().clone() for name, each in model.state_dict().items()}


def followed(folder: Path, kind: str, **given: Any) -> tuple[Any, Following]:
    following = Following()
    trainer = trainer_of(folder, kind, {"callbacks": [following]}, **given)
    trainer.train()
    return trainer, following


def files_of(folder: Path, step: int, name: str = "model.safetensors") -> dict[str, Tensor]:
    return load_file(folder / f"checkpoint-{step}" / name)


# Training is not disturbed


@kinds
def test_evaluations_and_saves_leave_training_as_it_was(kind: str, tmp_path: Path) -> None:
    """Bit-identical weights after every step, losses and rates, with an evaluation and a save after every step."""
    one, its = followed(tmp_path / "1", kind, save_strategy="no")
    other, others = followed(tmp_path / "2", kind, save_steps=1, eval_strategy="steps", eval_steps=1)
    assert all(map(same_weights, its.trained, others.trained))
    assert len(its.trained) == len(others.trained) == 12
    losses = [[entry for entry in history(each) if "loss" in entry] for each in (one, other)]
    assert losses[0] == losses[1]
    assert same_weights(weights(one), weights(other))


@pytest.mark.parametrize("kind", INSTEAD)
def test_the_averages_are_evaluated_saved_and_left_in_the_model(kind: str, tmp_path: Path) -> None:
    """The same tensors, and others than those that are trained; the checkpoint holds these as well."""
    trainer, following = followed(tmp_path, kind, eval_strategy="steps", eval_steps=4)
    for step in (4, 8, 12):
        saved, trained = files_of(tmp_path, step), following.trained[step - 1]
        assert same_weights(saved, following.predicted[step])
        assert step == 4 or not same_weights(saved, trained)  # the first steps of RAdam change nothing
        beside = files_of(tmp_path, step, "averages.safetensors")
        assert same_weights({name.removeprefix("training."): each for name, each in beside.items()}, trained)
    assert same_weights(files_of(tmp_path, 12), weights(trainer))


@pytest.mark.parametrize("save_async", [True, False])
def test_the_moving_average_is_the_formula(save_async: bool, tmp_path: Path) -> None:
    """From the trained weights after each step by hand, in double precision; saved in the background or not."""
    initial = {name: each.detach().double() for name, each in net().state_dict().items()}
    _, following = followed(tmp_path, "moving", save_async=save_async)
    expected = initial
    for number, trained in enumerate(following.trained, 1):
        expected = {name: 0.8 * each + 0.2 * trained[name].double() for name, each in expected.items()}
        if number % 4 == 0:
            saved = {name: each.double() for name, each in files_of(tmp_path, number).items()}
            torch.testing.assert_close(saved, expected, rtol=1e-6, atol=1e-6)


def test_averages_begin_at_a_ratio_of_the_run(tmp_path: Path) -> None:
    """Until then the trained weights are evaluated and saved."""
    _, following = followed(tmp_path, "moving", ema_start_step=0.5, eval_strategy="steps", eval_steps=2)
    assert same_weights(files_of(tmp_path, 4), following.trained[3])
    assert same_weights(following.predicted[6], following.trained[5])
    expected = {name: 0.8 * each + 0.2 * following.trained[6][name] for name, each in following.trained[5].items()}
    expected = {name: 0.8 * each + 0.2 * following.trained[7][name] for name, each in expected.items()}
    torch.testing.assert_close(files_of(tmp_path, 8), expected)


def test_both_are_evaluated_and_saved_beside_each_other(tmp_path: Path) -> None:
    """Under two prefixes, and in two folders; the model keeps the trained weights."""
    trainer, following = followed(tmp_path, "moving, beside", eval_strategy="steps", eval_steps=4)
    alone, _ = followed(tmp_path / "alone", "moving", eval_strategy="steps", eval_steps=4)
    plain = small_trainer(
        tmp_path / "plain", parts={"train_dataset": rows(64), "eval_dataset": rows(8, seed=1)}, **SAVED,
        eval_strategy="steps", eval_steps=4,
    )  # fmt: skip
    plain.train()

    def series(trainer: Any, name: str) -> list[float]:
        return [entry[name] for entry in trainer.state.log_history if name in entry]

    assert series(trainer, "eval_ema_loss") == series(alone, "eval_loss")
    assert series(trainer, "eval_loss") == series(plain, "eval_loss")
    assert same_weights(files_of(tmp_path, 8), following.trained[7])
    assert same_weights(files_of(tmp_path, 8, "ema/model.safetensors"), files_of(tmp_path / "alone", 8))
    assert same_weights(weights(trainer), weights(plain))
    assert {"eval_loss", "eval_ema_loss"} <= trainer.evaluate().keys()
    trainer.save_model(str(tmp_path / "saved"))
    assert same_weights(load_file(tmp_path / "saved/model.safetensors"), weights(plain))
    assert same_weights(load_file(tmp_path / "saved/ema/model.safetensors"), weights(alone))


def test_the_files_of_transformers_load_the_averages(tmp_path: Path) -> None:
    """`from_pretrained` of a checkpoint, of the folder of averages beside it, and of a saved model."""
    from transformers import LlamaForCausalLM

    def train(folder: Path, **given: Any) -> Any:
        parts = {"model": tiny_llama(tie_word_embeddings=True), "train_dataset": token_rows(32)}
        trainer = small_trainer(folder, parts=parts, max_steps=4, save_strategy="steps", save_steps=4, **given)
        trainer.train()
        return trainer

    instead = train(tmp_path / "1", ema_decay=0.5)
    beside = train(tmp_path / "2", ema_decay=0.5, ema_weights="beside")
    beside.save_model(str(tmp_path / "saved"))
    for folder in ("1/checkpoint-4", "2/checkpoint-4/ema", "saved/ema"):
        loaded = LlamaForCausalLM.from_pretrained(tmp_path / folder)
        assert same_weights(dict(loaded.state_dict()), dict(instead.model.state_dict())), folder
    for folder in ("2/checkpoint-4", "saved"):
        loaded = LlamaForCausalLM.from_pretrained(tmp_path / folder)
        assert same_weights(dict(loaded.state_dict()), dict(beside.model.state_dict())), folder


# Resuming


def _thirty_steps(kind: str) -> Callable[[str], Trainer]:
    def job(folder: str) -> Trainer:
        trainer: Trainer = trainer_of(
            Path(folder), kind, {"train_dataset": rows(64)}, max_steps=30, save_steps=10, eval_strategy="steps",
            eval_steps=10,
        )  # fmt: skip
        return trainer

    return job


JOBS = {kind: _thirty_steps(kind) for kind in KINDS_OF_AVERAGES}


@kinds
def test_a_run_resumes_exactly(kind: str, tmp_path: Path) -> None:
    """30 steps, saved at 10: bit-identical weights and logs, and the same averages in the last checkpoint."""
    whole = JOBS[kind](str(tmp_path / "whole"))
    whole.train()
    shutil.copytree(tmp_path / "whole/checkpoint-10", tmp_path / "part/checkpoint-10")
    resumed = JOBS[kind](str(tmp_path / "part"))
    resumed.train(resume_from_checkpoint=True)
    assert same_weights(weights(whole), weights(resumed))
    assert history(whole)[:-1] == history(resumed)[:-1]
    for name in sorted(path.relative_to(tmp_path / "whole").as_posix() for path in tmp_path.glob("whole/**/*.saf*")):
        if name.startswith("checkpoint-30"):
            assert same_weights(load_file(tmp_path / "whole" / name), load_file(tmp_path / "part" / name)), name


def schedule_free_adamw(folder: str) -> Trainer:
    """A run that is killed and resumed in fresh processes."""
    return JOBS["schedule_free_adamw"](folder)


def schedule_free_radam(folder: str) -> Trainer:
    return JOBS["schedule_free_radam"](folder)


def schedule_free_sgd(folder: str) -> Trainer:
    return JOBS["schedule_free_sgd"](folder)


def moving(folder: str) -> Trainer:
    return JOBS["moving"](folder)


@pytest.mark.matrix
@pytest.mark.parametrize("job", [schedule_free_adamw, schedule_free_radam, schedule_free_sgd, moving])
def test_a_run_resumes_exactly_in_a_fresh_process(job: Any) -> None:
    """With whatever a process has that a resumed one does not."""
    assert_resume_exact(job, stops=[10])


@pytest.mark.parametrize("kind", ["schedule_free_adamw", "moving", "moving, beside"])
@pytest.mark.parametrize("given", [{"gradient_accumulation_steps": 2}, {"bf16": True}, {"save_async": False}], ids=str)
def test_other_settings_resume_exactly(kind: str, given: dict[str, Any], tmp_path: Path) -> None:
    """Accumulation, half precision, and saves that training waits for."""
    whole = trainer_of(tmp_path / "whole", kind, **given)
    whole.train()
    shutil.copytree(tmp_path / "whole/checkpoint-4", tmp_path / "part/checkpoint-4")
    resumed = trainer_of(tmp_path / "part", kind, **given)
    resumed.train(resume_from_checkpoint=True)
    assert same_weights(weights(whole), weights(resumed))


@pytest.mark.parametrize("kind", ["schedule_free_adamw", "moving", "moving, beside"])
def test_weights_in_half_precision_resume_exactly(kind: str, tmp_path: Path) -> None:
    """Averages in float32 of weights in bfloat16 are saved as they are."""

    def make(folder: Path) -> Any:
        return trainer_of(folder, kind, {"model": net().to(torch.bfloat16), "data_collator": in_bfloat16})

    whole = make(tmp_path / "whole")
    whole.train()
    shutil.copytree(tmp_path / "whole/checkpoint-4", tmp_path / "part/checkpoint-4")
    resumed = make(tmp_path / "part")
    resumed.train(resume_from_checkpoint=True)
    assert same_weights(weights(whole), weights(resumed))
    for name in ("model.safetensors", "averages.safetensors"):
        assert same_weights(files_of(tmp_path / "whole", 12, name), files_of(tmp_path / "part", 12, name))


def in_bfloat16(samples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([each[name] for each in samples]).to(torch.bfloat16) for name in samples[0]}


class StopInEvaluation(TrainerCallback):
    """Stops the run, with a save, at a prediction step."""

    trainer: Any

    def on_prediction_step(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if state.global_step == 6:
            self.trainer.request_stop(save=True)


@kinds
def test_a_save_in_the_middle_of_an_evaluation_is_of_the_trained_weights(kind: str, tmp_path: Path) -> None:
    """A run that was stopped in an evaluation continues as one that was not."""
    given: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 3, "save_steps": 100}
    whole = trainer_of(tmp_path / "whole", kind, **given)
    whole.train()
    stopping = StopInEvaluation()
    stopped = trainer_of(tmp_path / "part", kind, {"callbacks": [stopping]}, **given)
    stopping.trainer = stopped
    stopped.train()
    assert stopped.outcome.stopped
    assert (tmp_path / "part/checkpoint-6").exists()
    resumed = trainer_of(tmp_path / "part", kind, **given)
    resumed.train(resume_from_checkpoint=True)
    assert same_weights(weights(whole), weights(resumed))


def test_a_run_that_returns_to_an_earlier_step_returns_to_its_averages(tmp_path: Path) -> None:
    """A window whose loss is not finite is left out, of the averages as well."""

    def train(folder: Path, data: list[Any]) -> Any:
        trainer = trainer_of(
            folder, "moving", {"train_dataset": data}, on_nonfinite="skip", max_steps=8, logging_steps=4
        )
        trainer.train()
        return trainer

    broken = rows(64)
    broken[5] = {"x": torch.full((4,), float("nan")), "labels": broken[5]["labels"]}
    trainer = train(tmp_path, broken)
    assert trainer.state.global_step == 8
    assert all(bool(torch.isfinite(each).all()) for each in weights(trainer).values())


# The best weights


def best_of(folder: Path, kind: str, **given: Any) -> tuple[Any, int]:
    choosing = {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 4, "greater_is_better": True}
    trainer = trainer_of(folder, kind, **{**choosing, **given})
    trainer.train()
    return trainer, trainer.state.best_global_step


@pytest.mark.parametrize("kind", INSTEAD)
def test_the_best_weights_are_those_that_were_evaluated(kind: str, tmp_path: Path) -> None:
    """The averages of the best step; evaluated again, they have the best metric."""
    trainer, step = best_of(tmp_path, kind)
    assert step == 4  # the worst, in truth: the loss is to be high
    assert same_weights(weights(trainer), files_of(tmp_path, step))
    assert trainer.evaluate()["eval_loss"] == trainer.state.best_metric


@pytest.mark.parametrize(("metric", "file"), [("loss", "model.safetensors"), ("ema_loss", "ema/model.safetensors")])
def test_the_best_of_both(metric: str, file: str, tmp_path: Path) -> None:
    """The metric decides which weights the run ends with."""
    trainer, step = best_of(tmp_path, "moving, beside", metric_for_best_model=metric)
    assert step == 4
    assert same_weights(weights(trainer), files_of(tmp_path, step, file))
    assert trainer.evaluate()["eval_loss"] == trainer.state.best_metric


def test_training_continues_from_the_averages(tmp_path: Path) -> None:
    """A second run starts with the weights that the first one ended with."""
    trainer, following = followed(tmp_path, "schedule_free_adamw")
    ended = weights(trainer)
    trainer.args.max_steps = 1
    trainer.args.learning_rate = 0.0
    trainer.train()
    assert same_weights(following.trained[-1], ended)


# Overrides, other optimizers, adapters


class OwnSave(Trainer):
    """Saves the model by itself."""

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        assert output_dir is not None
        Path(output_dir).mkdir(exist_ok=True)
        save_file(self.model.state_dict(), Path(output_dir, "own.safetensors"))


class OwnEvaluation(Trainer):
    """Evaluates by itself."""

    seen: dict[str, Tensor]

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        self.seen = weights(self)
        return {"eval_loss": 1.0}


@pytest.mark.parametrize("kind", ["schedule_free_adamw", "moving"])
def test_overridden_methods_see_the_averages(kind: str, tmp_path: Path) -> None:
    """Those that save and those that evaluate; and the run resumes as ever."""
    parts = {"train_dataset": rows(64), "eval_dataset": rows(8, seed=1)}
    given = {**SAVED, **KINDS_OF_AVERAGES[kind]}
    saving = small_trainer(tmp_path / "1", OwnSave, parts, **given)
    saving.train()
    assert same_weights(files_of(tmp_path / "1", 12, "own.safetensors"), weights(saving))
    assert same_weights(files_of(tmp_path / "1", 12, "hexloop-model.safetensors"), weights(saving))
    evaluating = small_trainer(
        tmp_path / "2", OwnEvaluation, {**parts, "model": net()}, **given, eval_strategy="steps", eval_steps=12
    )
    evaluating.train()
    assert same_weights(evaluating.seen, weights(evaluating))


class Doubling(torch.optim.SGD):
    """An optimizer with modes of its own: the weights that are meant to be used are twice those that are trained."""

    mode = "train"

    @torch.no_grad()
    def eval(self) -> None:
        self._scale("eval", 2.0)

    @torch.no_grad()
    def train(self) -> None:
        self._scale("train", 0.5)

    def _scale(self, mode: str, factor: float) -> None:
        if self.mode != mode:
            self.mode = mode
            for group in self.param_groups:
                torch._foreach_mul_(group["params"], factor)

    def step(self, closure: Any = None) -> Any:
        assert self.mode == "train"
        return super().step(closure)


class Factory:
    """Makes such an optimizer."""

    def __call__(self, model: nn.Module, **options: Any) -> Doubling:
        return Doubling(model.parameters(), **options)


@pytest.mark.parametrize("way", ["class", "factory", "instance"])
def test_any_optimizer_with_modes(way: str, tmp_path: Path) -> None:
    """By class, factory or instance."""
    model, following = net(), Following()
    parts: dict[str, Any] = {"model": model, "train_dataset": rows(64), "callbacks": [following]}
    if way == "instance":
        parts["optimizers"] = (Doubling(model.parameters(), lr=0.1), None)
    else:
        parts["optimizer_cls_and_kwargs"] = (Doubling if way == "class" else Factory, {"lr": 0.1})
    trainer = small_trainer(tmp_path, parts=parts, **SAVED)
    trainer.train()
    for step in (4, 8):
        doubled = {name: 2 * each for name, each in following.trained[step - 1].items()}
        assert same_weights(files_of(tmp_path, step), doubled)
    assert same_weights(weights(trainer), {name: 2 * each for name, each in following.trained[-1].items()})


def test_the_optimizer_of_the_package_by_hand(tmp_path: Path) -> None:
    """The same weights and averages as the class in a loop of its own, to 1e-6."""
    trainer, following = followed(tmp_path, "schedule_free_adamw", max_grad_norm=0.0, dataloader_drop_last=True)
    model = net()
    decayed = [each for name, each in model.named_parameters() if "bias" not in name]
    others = [each for name, each in model.named_parameters() if "bias" in name]
    groups = [{"params": decayed, "weight_decay": 0.0}, {"params": others, "weight_decay": 0.0}]
    optimizer = schedulefree.AdamWScheduleFree(groups, lr=0.01, warmup_steps=3)
    optimizer.train()
    for number, batch in enumerate(trainer.get_train_dataloader()):
        if number == 12:
            break
        model(**batch)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.testing.assert_close(dict(model.state_dict()), following.trained[number], rtol=0, atol=1e-6)
    optimizer.eval()
    torch.testing.assert_close(dict(model.state_dict()), weights(trainer), rtol=0, atol=1e-6)


@of_peft
@pytest.mark.parametrize("kind", ["LoRA", "AdaLoRA", "prompt tuning"])
def test_adapters_are_averaged(kind: str, tmp_path: Path) -> None:
    """PEFT loads the averages of the adapters from a checkpoint, and the run resumes exactly."""
    peft = pytest.importorskip("peft")
    given: dict[str, Any] = {"max_steps": 6, "save_strategy": "steps", "save_steps": 3, "learning_rate": 0.05}

    def make(folder: Path) -> Any:
        parts = {"model": adapted(KINDS[kind], tiny_llama()), "train_dataset": token_rows(32)}
        return small_trainer(folder, parts=parts, **given, ema_decay=0.5)

    whole = make(tmp_path / "whole")
    whole.train()
    loaded = peft.PeftModel.from_pretrained(tiny_llama(), tmp_path / "whole/checkpoint-6")
    own = peft.get_peft_model_state_dict(whole.model)
    assert same_weights(peft.get_peft_model_state_dict(loaded), own)
    assert not (tmp_path / "whole/checkpoint-6/model.safetensors").exists()
    shutil.copytree(tmp_path / "whole/checkpoint-3", tmp_path / "part/checkpoint-3")
    resumed = make(tmp_path / "part")
    resumed.train(resume_from_checkpoint=True)
    assert same_weights(peft.get_peft_model_state_dict(resumed.model), own)


@of_peft
def test_adapters_cannot_be_saved_beside(tmp_path: Path) -> None:
    """With what to do."""
    pytest.importorskip("peft")
    parts = {"model": adapted(KINDS["LoRA"], tiny_llama()), "train_dataset": token_rows(32)}
    trainer = small_trainer(tmp_path, parts=parts, ema_decay=0.5, ema_weights="beside")
    with pytest.raises(ConfigurationError, match="set ema_weights='instead', or save_full_model=True"):
        trainer.train()


@of_peft
def test_a_whole_model_with_adapters_is_saved_beside(tmp_path: Path) -> None:
    """Its averages are a whole model as well, and the run resumes exactly."""
    pytest.importorskip("peft")
    given: dict[str, Any] = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "learning_rate": 0.05}

    def make(folder: Path, averages: str) -> Any:
        parts = {"model": adapted(KINDS["LoRA"], tiny_llama()), "train_dataset": token_rows(32)}
        return small_trainer(folder, parts=parts, **given, ema_decay=0.5, ema_weights=averages, save_full_model=True)

    beside, instead = make(tmp_path / "beside", "beside"), make(tmp_path / "instead", "instead")
    beside.train()
    instead.train()
    averages = files_of(tmp_path / "beside", 4, "ema/model.safetensors")
    assert same_weights(averages, files_of(tmp_path / "instead", 4))
    assert not list(tmp_path.glob("beside/*/ema/adapter_model.safetensors"))
    shutil.copytree(tmp_path / "beside/checkpoint-2", tmp_path / "part/checkpoint-2")
    resumed = make(tmp_path / "part", "beside")
    resumed.train(resume_from_checkpoint=True)
    assert same_weights(weights(resumed), weights(beside))
    assert same_weights(averages, files_of(tmp_path / "part", 4, "ema/model.safetensors"))


# What does not fit


def test_two_averages_are_refused(tmp_path: Path) -> None:
    """A moving average of an optimizer that averages."""
    trainer = trainer_of(tmp_path, "schedule_free_adamw", ema_decay=0.9)
    with pytest.raises(ConfigurationError, match="which averages the weights itself"):
        trainer.train()


@pytest.mark.parametrize(
    ("then", "now", "problem"),
    [
        ("moving", None, "written with ema_decay and ema_weights='instead', and this run has no ema_decay"),
        (None, "moving", "written with no ema_decay, and this run has ema_decay and ema_weights='instead'"),
        ("moving", "moving, beside", "written with ema_decay and ema_weights='instead', and this run has"),
    ],
)
def test_a_run_with_other_averages_does_not_resume(then: Any, now: Any, problem: str, tmp_path: Path) -> None:
    """Unless that is accepted by name."""

    def make(kind: str | None) -> Any:
        given = {} if kind is None else KINDS_OF_AVERAGES[kind]
        return small_trainer(tmp_path, parts={"train_dataset": rows(64)}, **SAVED, **given)

    make(then).train()
    shutil.rmtree(tmp_path / "checkpoint-12")
    with pytest.raises(CheckpointError, match=problem):
        make(now).train(resume_from_checkpoint=True)
    trainer = make(now)
    trainer.args.resume_despite = ["averages"]
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 12


@pytest.mark.parametrize(("schedule", "warns"), [("linear", True), ("constant", False)])
def test_a_schedule_is_warned_of(schedule: str, warns: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A schedule-free optimizer is meant for a constant rate."""
    with caplog.at_level(logging.WARNING, "hexloop"):
        trainer_of(tmp_path, "schedule_free_adamw", lr_scheduler_type=schedule, max_steps=1).train()
    assert any("set lr_scheduler_type='constant'" in record.getMessage() for record in caplog.records) is warns


def test_weights_alone_can_be_resumed(tmp_path: Path) -> None:
    """With `save_only_model` a checkpoint has the averages, and the run continues from them."""
    trainer_of(tmp_path, "moving", save_only_model=True).train()
    assert not list(tmp_path.glob("*/averages.safetensors"))
    shutil.rmtree(tmp_path / "checkpoint-12")
    following = Following()
    trainer = trainer_of(tmp_path, "moving", {"callbacks": [following]}, save_only_model=True)
    trainer.train(resume_from_checkpoint=True)
    assert len(following.trained) == 4


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """Return the folder of a run with averages whose checkpoint of step 8 has lost a file."""
    trainer_of(tmp_path, "moving").train()
    shutil.rmtree(tmp_path / "checkpoint-12")
    (tmp_path / "checkpoint-8/averages.safetensors").unlink()
    return tmp_path


def test_a_checkpoint_without_its_averages_is_damaged(killed: Path) -> None:
    """The run resumes from the one before it."""
    verify(LocalStorage(str(killed)), "checkpoint-4")
    trainer = trainer_of(killed, "moving")
    with pytest.warns(UserWarning, match="checkpoint-8"):
        trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 12


# transformers


def test_an_export_has_the_trained_weights(tmp_path: Path) -> None:
    """Transformers continues with what it loads from the files of the model."""
    _, following = followed(tmp_path, "schedule_free_adamw")
    exported = hexloop.export_checkpoint(tmp_path / "checkpoint-4", tmp_path / "exported")
    assert same_weights(load_file(Path(exported, "model.safetensors")), following.trained[3])


def test_a_command_line_of_averages() -> None:
    """The arguments are options of the command line."""
    from hexloop import HfArgumentParser

    given = ["--output_dir", "out", "--ema_decay", "0.99", "--ema_start_step", "0.1", "--ema_weights", "beside"]
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(given)
    assert (args.ema_decay, args.ema_start_step, args.ema_weights) == (0.99, 0.1, "beside")


def test_an_unused_average_costs_nothing(tmp_path: Path) -> None:
    """Without averages, nothing is called between two steps."""
    trainer = small_trainer(tmp_path, parts={"train_dataset": rows(16)}, max_steps=2)
    for _ in trainer.stream():
        if trainer._session is not None:
            assert trainer._session.learner.standard.before_clearing is None
    assert isinstance(trainer.model, Net)


@pytest.mark.parametrize("evaluates", [True, False])
def test_reproduced_saves_are_of_the_last_mode(evaluates: bool, tmp_path: Path) -> None:
    """As in transformers: averages right after an evaluation, and trained weights otherwise; both resume."""
    evaluation = {"eval_strategy": "steps", "eval_steps": 4} if evaluates else {}
    given: dict[str, Any] = {"reproduce": "transformers", **evaluation}
    whole, following = followed(tmp_path / "whole", "schedule_free_adamw", **given)
    assert same_weights(files_of(tmp_path / "whole", 8), following.trained[7]) is not evaluates
    shutil.copytree(tmp_path / "whole/checkpoint-8", tmp_path / "part/checkpoint-8")
    resumed = trainer_of(tmp_path / "part", "schedule_free_adamw", **given)
    resumed.train(resume_from_checkpoint=True)
    assert same_weights(weights(whole), weights(resumed))
