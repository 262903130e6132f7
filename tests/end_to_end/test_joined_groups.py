"""Groups that callbacks add, and parameters that they unfreeze, are trained from the next step on, and resume."""

from __future__ import annotations

import json
import logging
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import SGD, AdamW

import hexloop
from hexloop import CheckpointError
from hexloop.domain.errors import RunStateError
from tests.end_to_end.small.models import net, rows
from tests.end_to_end.small.trainers import history, same_weights, small_trainer, weights
from tests.warm_python import warm_python

ROOT = Path(__file__).parents[2]
STEPS, CHANGED_AT = 8, 3


def frozen() -> Any:
    """Return the small model with a frozen first layer."""
    model: Any = net()
    model.layers[0].requires_grad_(False)
    return model


class Thaw(hexloop.TrainerCallback):
    """Unfreezes the first layer after a step."""

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **named: Any) -> None:
        if state.global_step == CHANGED_AT:
            model.layers[0].requires_grad_(True)


class AddAtStart(hexloop.TrainerCallback):
    """Adds a group when the run starts, also when it resumes."""

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **named: Any
    ) -> None:
        model.layers[0].requires_grad_(True)
        optimizer.add_param_group({"params": model.layers[0].parameters(), "lr": 0.05, "weight_decay": 0.2})


class AddLater(hexloop.TrainerCallback):
    """Adds a group at the start of a step, and another one later."""

    def on_step_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **named: Any
    ) -> None:
        if state.global_step in (CHANGED_AT, CHANGED_AT + 2):
            parameter = model.layers[0].weight if state.global_step == CHANGED_AT else model.layers[0].bias
            optimizer.add_param_group({"params": [parameter.requires_grad_(True)], "lr": 0.05})


class Refreeze(hexloop.TrainerCallback):
    """Unfreezes a layer for two steps."""

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **named: Any) -> None:
        model.layers[0].requires_grad_(CHANGED_AT <= state.global_step < CHANGED_AT + 2)


CALLBACKS = {each.__name__: each for each in (Thaw, AddAtStart, AddLater, Refreeze)}

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "plateau": {
        "lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps", "eval_steps": 1,
        "lr_scheduler_kwargs": {"patience": 0, "mode": "max"},
    },
    "greedy": {"lr_scheduler_type": "greedy", "eval_strategy": "steps", "eval_steps": 1},
    "muon": {"optim": "muon"},
    "rules": {
        "param_groups": [{"params": "layers.0", "learning_rate": 0.03}, {"params": "*.bias", "except": "layers.0"}]
    },
    "several": {"param_groups": [{"params": "layers.3", "optimizer": "sgd"}]},
    "in the foreground": {"save_async": False, "fp16": True},
}  # fmt: skip


def trainer_of(folder: Path, callback: str, settings: str, **given: Any) -> Any:
    parts = {"model": frozen(), "callbacks": [CALLBACKS[callback]()], "eval_dataset": rows(4, 1)}
    usual = {"max_steps": STEPS, "save_strategy": "steps", "save_steps": 1, "weight_decay": 0.1}
    return small_trainer(folder, parts=parts, **{**usual, **SETTINGS[settings], **given})


@pytest.mark.one_in(4)
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("callback", CALLBACKS)
def test_what_joined_is_trained_and_resumes_bitwise(callback: str, settings: str, tmp_path: Path) -> None:
    """From a checkpoint before the change, at it and after it."""
    whole = trainer_of(tmp_path / "whole", callback, settings)
    before = weights(whole)
    whole.train()
    after = weights(whole)
    assert not torch.equal(before["layers.0.weight"], after["layers.0.weight"])
    for step in (CHANGED_AT - 1, CHANGED_AT, CHANGED_AT + 2, STEPS - 1):
        rest = trainer_of(tmp_path / f"rest-{step}", callback, settings, save_steps=STEPS)
        rest.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{step}"))
        assert same_weights(after, weights(rest)), step
        assert history(whole) == history(rest)
        assert [len(group["params"]) for group in rest.optimizer.param_groups] == [
            len(group["params"]) for group in whole.optimizer.param_groups
        ]


PROGRAM = """
import json, sys
from pathlib import Path
import torch
from tests.end_to_end.test_joined_groups import trainer_of
torch.set_num_threads(1)
folder, callback, resume = sys.argv[1:]
trainer = trainer_of(Path(folder), callback, "plain")
trainer.train(resume_from_checkpoint=resume or None)
print(json.dumps({name: each.tolist() for name, each in trainer.model.state_dict().items()}))
"""


@pytest.mark.one_in(100)
@pytest.mark.parametrize("callback", ["Thaw", "AddAtStart", "AddLater"])
def test_a_fresh_process_has_the_groups(callback: str, tmp_path: Path) -> None:
    def train(folder: str, resume: str = "") -> Any:
        command = [warm_python(), "-c", PROGRAM, str(tmp_path / folder), callback, resume]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=120)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    whole = train("whole")
    assert train("rest", str(tmp_path / "whole" / "checkpoint-6")) == whole


def test_what_is_unfrozen_trains_as_by_hand(tmp_path: Path, caplog: Any) -> None:
    """With the decay, the schedule and the moments of a parameter that begins at that step; with one line of log."""
    with caplog.at_level(logging.INFO, "hexloop"):
        trainer = trainer_of(tmp_path, "Thaw", "plain", optim="adamw_torch", max_grad_norm=0, save_strategy="no",
                             train_sampling_strategy="sequential")  # fmt: skip
        trainer.train()
    model = frozen()
    first, last = model.layers[0], model.layers[3]
    optimizer = AdamW(
        [{"params": [last.weight], "weight_decay": 0.1}, {"params": [last.bias], "weight_decay": 0.0}], lr=0.01
    )
    data = rows(16)
    for step in range(STEPS):
        if step == CHANGED_AT:
            model.requires_grad_(True)
            optimizer.add_param_group({"params": [first.weight], "weight_decay": 0.1})
            optimizer.add_param_group({"params": [first.bias], "weight_decay": 0.0})
        batch = [data[(4 * step + number) % 16] for number in range(4)]
        model(**{key: torch.stack([row[key] for row in batch]) for key in ("x", "labels")})["loss"].backward()
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * ((STEPS - step) / STEPS)
        optimizer.step()
        optimizer.zero_grad()
    for name, weight in model.named_parameters():
        torch.testing.assert_close(trainer.model.get_parameter(name), weight, rtol=0, atol=1e-7)
    said = [each.getMessage() for each in caplog.records if "joined the optimizer" in each.getMessage()]
    assert said == [
        f"layers.0.{name} joined the optimizer, with a learning rate of 0.01 at the peak."
        for name in ("weight", "bias")
    ]


def test_what_a_rule_freezes_has_its_options_later(tmp_path: Path) -> None:
    """Rates and others of the rule count from when a callback unfreezes the parameters."""
    rules = [{"params": "layers.0", "frozen": True, "learning_rate": 0.02, "weight_decay": 0.3}]
    parts = {"model": net(), "callbacks": [Thaw()]}
    trainer = small_trainer(tmp_path, parts=parts, param_groups=rules, max_steps=STEPS)
    trainer.train()
    joined = trainer.optimizer.param_groups[2:]
    assert [(group["initial_lr"], group["weight_decay"], len(group["params"])) for group in joined] == [(0.02, 0.3, 2)]


# What cannot join

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a guard that returns": ({"on_nonfinite": "skip"}, "would return to a state without it"),
    "a recorded step": (
        {"capture_step": True, "torch_compile": True, "torch_compile_backend": "eager"},
        "capture_step",
    ),
    "transformers": ({"reproduce": "transformers"}, "transformers has no schedule for it"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_group_that_cannot_join_is_refused_with_the_way_out(case: str, tmp_path: Path) -> None:
    given, said = REFUSED[case]
    with pytest.raises(RunStateError, match="Override create_optimizer") as caught:
        trainer_of(tmp_path, "AddLater", "plain", **given).train()
    assert said in str(caught.value)


def test_a_schedule_of_the_user_has_the_groups_of_the_start(tmp_path: Path) -> None:
    model = frozen()
    optimizer = SGD(model.layers[3].parameters(), 0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    parts = {"model": model, "callbacks": [AddLater()], "optimizers": (optimizer, schedule)}
    with pytest.raises(RunStateError, match="the schedule, or the optimizer, was made for the groups at the start"):
        small_trainer(tmp_path, parts=parts, max_steps=STEPS).train()


def test_an_optimizer_of_the_user_takes_groups(tmp_path: Path) -> None:
    """With a schedule of the arguments; but what is unfrozen beside it stays as it is, with a warning."""

    def make(folder: str, callback: Any) -> Any:
        model = frozen()
        parts = {"model": model, "callbacks": [callback], "optimizers": (SGD(model.layers[3].parameters(), 0.1), None)}
        return small_trainer(tmp_path / folder, parts=parts, max_steps=STEPS, save_strategy="steps", save_steps=5)

    whole, rest = make("whole", AddLater()), make("rest", AddLater())
    whole.train()
    assert [group["initial_lr"] for group in whole.optimizer.param_groups] == [0.1, 0.05, 0.05]
    rest.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-5"))
    assert same_weights(weights(whole), weights(rest))
    left = make("left", Thaw())
    left.train()
    assert torch.equal(weights(left)["layers.0.weight"], net().state_dict()["layers.0.weight"])


class AddNew(hexloop.TrainerCallback):
    """Gives the model a layer that it did not have."""

    def on_step_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **named: Any
    ) -> None:
        if state.global_step == 1:
            model.more = torch.nn.Linear(2, 2)
            optimizer.add_param_group({"params": list(model.more.parameters())})


def test_parameters_that_the_model_did_not_have_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunStateError, match="the model did not have when the run started"):
        small_trainer(tmp_path, parts={"callbacks": [AddNew()]}, max_steps=4).train()


# Checkpoints of anyone


def tampered(tmp_path: Path, change: Any) -> str:
    """Return a checkpoint whose run state is another one, with a manifest of it."""
    from tests.resealing import reseal

    trainer_of(tmp_path / "whole", "Thaw", "plain", save_steps=6).train()
    folder = tmp_path / "whole" / "checkpoint-6"
    path = folder / "run_state.json"
    document = json.loads(path.read_text())
    change(document["run_state"])
    path.write_text(json.dumps(document))
    reseal(folder)
    return str(folder)


CHANGES: dict[str, Any] = {
    "unknown": lambda state: state["joined_groups"][0].update(params=["layers.9.weight"]),
    "twice": lambda state: state["joined_groups"].append(state["joined_groups"][0]),
    "negative": lambda state: state["joined_groups"][0].update(learning_rate=1e300),
    "option": lambda state: state["joined_groups"][0]["options"].update(betas="all"),
    "no list": lambda state: state.update(joined_groups={"a": 1}),
    "flags": lambda state: state["trainable"].update({"layers.9.bias": True}),
    "no flag": lambda state: state["trainable"].update({"layers.0.bias": "yes"}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_invalid_groups_in_a_checkpoint_are_one_error(change: str, tmp_path: Path) -> None:
    where = tampered(tmp_path, CHANGES[change])
    rest = trainer_of(tmp_path / "rest", "Thaw", "plain")
    with pytest.raises(CheckpointError):
        rest.train(resume_from_checkpoint=where)
