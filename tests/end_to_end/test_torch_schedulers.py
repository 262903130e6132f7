"""`trainer.lr_scheduler` is a scheduler of torch: what scripts written for transformers read, change, step and save."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import transformers.trainer_pt_utils
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau
from transformers import SchedulerType, get_scheduler, optimization

import hexloop
from hexloop import ConfigurationError, Trainer, TrainerCallback
from hexloop.adapters.scheduler.torch import GreedyLR, run_schedules
from tests.end_to_end.small.models import net, rows
from tests.end_to_end.small.trainers import history, same_weights, small_trainer, weights

OPTIONS: dict[str, dict[str, Any]] = {
    "cosine_with_min_lr": {"min_lr_rate": 0.1},
    "cosine_warmup_with_min_lr": {"min_lr_rate": 0.1},
    "warmup_stable_decay": {"num_decay_steps": 3},
    "reduce_lr_on_plateau": {"patience": 0, "factor": 0.5, "threshold": 0.5},
    "greedy": {"patience": 0, "factor": 0.7, "min_lr": 1e-5, "threshold": 0.1},
}
NAMES = [member.value for member in SchedulerType]
EVALUATED: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "loss"}


def trainer_for(name: str, folder: Path, kind: type[Trainer] = Trainer, **given: Any) -> Any:
    """Return a Trainer with this schedule over eight steps, evaluated after each if the schedule follows a metric."""
    callbacks = given.pop("callbacks", [])
    arguments: dict[str, Any] = {"max_steps": 8, "warmup_steps": 2, "num_train_epochs": 2, "lr_scheduler_type": name}
    arguments |= {"lr_scheduler_kwargs": OPTIONS.get(name, {}), **(EVALUATED if name in PLATEAU else {})}
    return small_trainer(
        folder, kind, {"eval_dataset": rows(6, seed=1), "callbacks": callbacks}, **{**arguments, **given}
    )


PLATEAU = ["reduce_lr_on_plateau", "greedy"]


def plain(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state dict without the functions of the step, which have no attributes to save."""
    assert not any(state.get("lr_lambdas", ()))
    return {name: value for name, value in state.items() if name != "lr_lambdas"}


class Watching(TrainerCallback):
    """Keeps the state dict and the rates after each step and each evaluation."""

    def __init__(self) -> None:
        self.states: list[dict[str, Any]] = []
        self.rates: list[list[float]] = []
        self.measured: list[float] = []

    def look(self, scheduler: Any, optimizer: Any) -> None:
        self.states.append(deepcopy(plain(scheduler.state_dict())))
        self.rates.append([group["lr"] for group in optimizer.param_groups])
        assert scheduler.get_last_lr() == self.rates[-1]
        assert scheduler.optimizer is optimizer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.look(kwargs["lr_scheduler"], kwargs["optimizer"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self.measured:
            self.look(kwargs["lr_scheduler"], kwargs["optimizer"])

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.measured.append(kwargs["metrics"]["eval_loss"])


@pytest.mark.parametrize("name", NAMES)
def test_its_class_and_attributes(name: str, tmp_path: Path) -> None:
    """Class, state dict and attributes are those of the scheduler that transformers' Trainer makes."""
    made = []
    for library in (hexloop, transformers):
        args = library.TrainingArguments(
            str(tmp_path), lr_scheduler_type=name, lr_scheduler_kwargs=OPTIONS.get(name, {}), warmup_steps=2,
            use_cpu=True, report_to="none", eval_strategy="epoch", metric_for_best_model="loss",
        )  # fmt: skip
        trainer: Any = library.Trainer(model=net(), args=args, eval_dataset=rows(2))
        trainer.create_optimizer_and_scheduler(num_training_steps=8)
        made.append(trainer)
    ours, theirs = (trainer.lr_scheduler for trainer in made)
    assert type(ours) is type(theirs)
    assert isinstance(
        ours, optimization.GreedyLR if name == "greedy" else ReduceLROnPlateau if name in PLATEAU else LambdaLR
    )
    assert vars(ours).keys() == vars(theirs).keys()
    assert plain(ours.state_dict()) == plain(theirs.state_dict())
    assert len(ours.get_last_lr()) == 2
    assert made[0].create_scheduler(num_training_steps=3) is ours


@pytest.mark.parametrize("name", [name for name in NAMES if name not in PLATEAU])
def test_it_is_up_to_date_at_every_step(name: str, tmp_path: Path) -> None:
    """Between steps it is bit-identical to transformers' scheduler that was stepped as often."""
    watching = Watching()
    trainer = trainer_for(name, tmp_path, callbacks=[watching])
    trainer.train()
    optimizer = small_trainer(tmp_path).create_optimizer()
    theirs: Any = get_scheduler(name, optimizer, 2, 8, OPTIONS.get(name, {}))
    for state, rates in zip(watching.states, watching.rates, strict=True):
        assert state == plain(theirs.state_dict())
        assert rates == theirs.get_last_lr()
        optimizer.step()
        theirs.step()
    assert len(watching.states) == 9
    assert trainer.lr_scheduler.last_epoch == 8


@pytest.mark.parametrize("name", PLATEAU)
def test_it_follows_the_evaluations(name: str, tmp_path: Path) -> None:
    """After a run it is bit-identical to transformers' scheduler that was given the same metrics."""
    watching = Watching()
    trainer = trainer_for(name, tmp_path, callbacks=[watching])
    trainer.train()
    theirs: Any = get_scheduler(
        name, small_trainer(tmp_path).create_optimizer(), scheduler_specific_kwargs=OPTIONS[name]
    )
    for metric in watching.measured:
        theirs.step(metric)
    assert len(watching.measured) == 8
    assert len({rate for entry in trainer.state.log_history if (rate := entry.get("learning_rate"))}) > 2
    assert trainer.lr_scheduler.state_dict() == theirs.state_dict()
    assert trainer.get_learning_rates() == theirs.get_last_lr()


@pytest.mark.parametrize("name", ["linear", "cosine_with_restarts", *PLATEAU])
def test_a_state_dict_can_be_loaded(name: str, tmp_path: Path) -> None:
    """Through JSON; the scheduler that loads it continues as torch's does."""
    trainer = trainer_for(name, tmp_path)
    trainer.train()
    saved = json.loads(json.dumps(trainer.lr_scheduler.state_dict()))
    again = trainer_for(name, tmp_path)
    again.create_optimizer_and_scheduler(num_training_steps=8)
    again.lr_scheduler.load_state_dict(deepcopy(saved))
    assert again.lr_scheduler.state_dict() == saved
    for group, rate in zip(again.optimizer.param_groups, saved["_last_lr"], strict=True):
        group["lr"] = rate  # part of the optimizer's state, in torch
    for scheduler in (again.lr_scheduler, trainer.lr_scheduler):
        scheduler.step(*([9.0] if name in PLATEAU else []))
    assert again.lr_scheduler.last_epoch == trainer.lr_scheduler.last_epoch == 9
    assert again.lr_scheduler.get_last_lr() == trainer.lr_scheduler.get_last_lr()


def by_hand(library: Any, folder: Path) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Train with the Trainer's optimizer and scheduler in a loop of one's own."""
    args = library.TrainingArguments(
        str(folder), learning_rate=0.05, weight_decay=0.1, warmup_steps=2, use_cpu=True, report_to="none"
    )
    model = net()
    trainer = library.Trainer(model=model, args=args)
    trainer.create_optimizer_and_scheduler(num_training_steps=6)
    rates = []
    for row in rows(6):
        model(row["x"][None], row["labels"][None])["loss"].backward()
        trainer.optimizer.step()
        rates += trainer.lr_scheduler.get_last_lr()
        trainer.lr_scheduler.step()
        trainer.optimizer.zero_grad()
    return rates, {name: each.detach() for name, each in model.named_parameters()}


@pytest.mark.filterwarnings("error")
def test_a_script_drives_optimizer_and_scheduler_itself(tmp_path: Path) -> None:
    """Rates and weights are bit-identical to transformers', and torch does not warn."""
    (our_rates, ours), (their_rates, theirs) = by_hand(hexloop, tmp_path), by_hand(transformers, tmp_path)
    assert our_rates == their_rates
    assert same_weights(ours, theirs)


class Hurrying(TrainerCallback):
    """Steps the scheduler once more at the end of step 3."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 3:
            kwargs["lr_scheduler"].step()


def test_a_step_of_a_callback_counts(tmp_path: Path) -> None:
    """The schedule is one step ahead from then on, also in a run that resumes."""
    whole = trainer_for("linear", tmp_path / "whole", callbacks=[Hurrying()], save_strategy="steps", save_steps=4)
    whole.train()
    used = [entry["learning_rate"] for entry in whole.state.log_history if "loss" in entry]
    linear = get_scheduler("linear", torch.optim.SGD(net().parameters(), lr=0.01), 2, 8)
    assert used == [0.01 * linear.lr_lambdas[0](step) for step in (0, 1, 2, 4, 5, 6, 7, 8)]
    rest = trainer_for("linear", tmp_path / "rest", callbacks=[Hurrying()])
    rest.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-4"))
    assert same_weights(weights(whole), weights(rest))
    assert history(whole) == history(rest)
    assert rest.lr_scheduler.last_epoch == 9


class Changing(TrainerCallback):
    """Changes the functions, the base rates and the step of the scheduler."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        scheduler = kwargs["lr_scheduler"]
        if state.global_step == 1:
            scheduler.lr_lambdas = [lambda step: 0.5, lambda step: 0.25]
        elif state.global_step == 2:
            scheduler.base_lrs = [4.0, 8.0]
        elif state.global_step == 3:
            scheduler.step = self.step(scheduler, kwargs["optimizer"])

    def step(self, scheduler: Any, optimizer: Any) -> Any:
        def step() -> None:
            optimizer.param_groups[0]["lr"] = 7.0
            scheduler._last_lr = [7.0, 2.0]

        return step


def test_what_a_callback_changes_takes_effect(tmp_path: Path) -> None:
    """From the next step on, as with torch's own step."""
    trainer = trainer_for("constant", tmp_path, callbacks=[Changing()], max_steps=5)
    trainer.train()
    used = [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry]
    assert used == [0.01, 0.01, 0.005, 2.0, 7.0]
    assert trainer.get_learning_rates() == [7.0, 2.0]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", [*PLATEAU, "cosine"])
def test_a_run_resumes_exactly(name: str, tmp_path: Path) -> None:
    """With the scheduler's whole state, the count of metrics included."""
    whole = trainer_for(name, tmp_path / "whole", save_strategy="steps", save_steps=1)
    whole.train()
    for step in (1, 5):
        rest = trainer_for(name, tmp_path / f"from {step}")
        rest.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{step}"))
        assert same_weights(weights(whole), weights(rest))
        assert history(whole) == history(rest)
        assert rest.lr_scheduler.state_dict() == whole.lr_scheduler.state_dict()


def test_greedy_without_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own GreedyLR resumes a run that was trained with transformers', and the other way round."""
    own, theirs = GreedyLR, run_schedules.greedy_class
    whole = trainer_for("greedy", tmp_path / "whole", save_strategy="steps", save_steps=3)
    whole.train()
    for number, first in enumerate((theirs, lambda: own)):
        monkeypatch.setattr(run_schedules, "greedy_class", first)
        begun = trainer_for("greedy", tmp_path / f"begun {number}", save_strategy="steps", save_steps=3)
        begun.train()
        monkeypatch.setattr(run_schedules, "greedy_class", theirs if number else lambda: own)
        rest = trainer_for("greedy", tmp_path / f"rest {number}")
        rest.train(resume_from_checkpoint=str(tmp_path / f"begun {number}" / "checkpoint-3"))
        assert isinstance(rest.lr_scheduler, own) == (number == 0)
        assert history(rest) == history(begun) == history(whole)
        assert same_weights(weights(whole), weights(rest))


def test_a_scheduler_without_its_optimizer(tmp_path: Path) -> None:
    """`optimizers=(None, scheduler)`: the run makes the optimizer and steps the scheduler, as in transformers."""
    seen = []
    for library in (hexloop, transformers):
        model = net()
        scheduler = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(model.parameters(), lr=0.5), 2, 0.1)
        scheduler.optimizer.step()
        args = library.TrainingArguments(
            str(tmp_path / library.__name__), max_steps=4, learning_rate=0.25, use_cpu=True, report_to="none",
            save_strategy="no", disable_tqdm=True, per_device_train_batch_size=4,
        )  # fmt: skip
        trainer = library.Trainer(model=model, args=args, train_dataset=rows(16), optimizers=(None, scheduler))
        trainer.train()
        assert trainer.lr_scheduler is scheduler
        assert scheduler.last_epoch == 4
        seen.append((scheduler.get_last_lr(), trainer.get_learning_rates()))
    assert seen[0] == seen[1] == ([pytest.approx(0.005)], [0.25, 0.25])


class Wrapped(Trainer):
    """Changes what the standard method makes."""

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        scheduler = super().create_scheduler(num_training_steps, optimizer)
        first, *_ = scheduler.lr_lambdas
        scheduler.lr_lambdas = [first, lambda step: 0.5 * first(step)]
        return scheduler


def test_an_override_may_change_what_the_standard_method_makes(tmp_path: Path) -> None:
    """The run drives it as its own."""
    trainer = trainer_for("constant_with_warmup", tmp_path, Wrapped)
    trainer.train()
    assert trainer.get_learning_rates() == [0.01, 0.005]
    assert trainer.lr_scheduler.get_last_lr() == [0.01, 0.005]


def test_rates_that_are_tensors_stay_tensors(tmp_path: Path) -> None:
    """As with torch's own step: the tensor is filled, so a captured graph sees the new rate."""
    model = net()
    rate = torch.tensor(0.5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, capturable=False, foreach=False)
    trainer = small_trainer(tmp_path, parts={"model": model, "optimizers": (optimizer, None)}, max_steps=4)
    trainer.train()
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == 0.0
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry]
    assert rates == [0.5, 0.375, 0.25, 0.125]


class OneGroup(Trainer):
    """Makes one group, as earlier versions did, and a scheduler of its own."""

    groups = 1

    def create_optimizer(self, model: Any = None) -> Any:
        if self.groups == 1:
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01, weight_decay=0.0, fused=True)
        return super().create_optimizer(model)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        made = self.optimizer if optimizer is None else optimizer
        constant, falling = (
            torch.optim.lr_scheduler.ConstantLR(made, 0.5),
            torch.optim.lr_scheduler.LambdaLR(made, lambda step: 0.8**step),
        )
        self.lr_scheduler = torch.optim.lr_scheduler.SequentialLR(made, [constant, falling], [2])
        return self.lr_scheduler


class TwoGroups(OneGroup):
    """The same with the standard optimizer."""

    groups = 2


def test_a_scheduler_of_one_group_resumes_with_two(tmp_path: Path) -> None:
    """A checkpoint of a version that made one group loads into the user's scheduler, bit-identically."""
    whole = trainer_for("linear", tmp_path / "whole", OneGroup, save_strategy="steps", save_steps=3)
    whole.train()
    for step in (3, 6):
        rest = trainer_for("linear", tmp_path / f"rest {step}", TwoGroups)
        rest.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{step}"))
        assert len(rest.get_learning_rates()) == 2
        assert same_weights(weights(whole), weights(rest))
        assert history(whole) == history(rest)


def test_an_optimizer_that_steps_in_the_backward_pass_is_refused(tmp_path: Path) -> None:
    """The schedule would not reach the optimizers inside it."""
    model = net()
    inside = {each: torch.optim.SGD([each], lr=0.1) for each in model.parameters()}
    kind: Any = transformers.trainer_pt_utils.LayerWiseDummyOptimizer
    parts = {"model": model, "optimizers": (kind(optimizer_dict=inside, lr=0.1), None)}
    with pytest.raises(ConfigurationError, match=r"backward pass.*optim='adafactor'"):
        small_trainer(tmp_path, parts=parts).train()


class NoTorchOptimizer:
    """Has the methods of an optimizer, and is none."""

    def __init__(self, model: nn.Module) -> None:
        self.param_groups = [{"params": list(model.parameters()), "lr": 0.1}]
        self.state: dict[Any, Any] = {}


@pytest.mark.parametrize("name", ["linear", "reduce_lr_on_plateau"])
def test_an_optimizer_that_is_not_of_torch_is_refused(name: str, tmp_path: Path) -> None:
    """The error says which class to derive from, or what to pass."""
    trainer = trainer_for(name, tmp_path)
    trainer.optimizer = NoTorchOptimizer(trainer.model)
    with pytest.raises(ConfigurationError, match=r"NoTorchOptimizer, which is not a torch\.optim\.Optimizer.*pass"):
        trainer.create_scheduler(num_training_steps=4)
