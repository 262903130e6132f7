"""A class may replace the constructor and `train` without calling them, as trl's PPOTrainer does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from hexloop import CallbackHandler, Trainer, TrainerCallback, TrainerControl, TrainerState
from tests.end_to_end.small.models import net, rows
from tests.end_to_end.small.trainers import arguments, small_trainer


class Noting(TrainerCallback):
    def __init__(self) -> None:
        self.logs: list[dict[str, Any]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.logs.append(dict(logs))


class OwnLoop(Trainer):
    """Sets a few attributes, and trains by a loop of its own."""

    def __init__(self, model: Any, args: Any) -> None:
        self.args, self.model = args, model
        self.optimizer, self.lr_scheduler = None, None
        self.create_optimizer_and_scheduler(num_training_steps=4)
        self.callback_handler = CallbackHandler([], self.model, None, self.optimizer, self.lr_scheduler)
        self.add_callback(Noting)
        self.control = TrainerControl()
        self.state = TrainerState(is_world_process_zero=self.is_world_process_zero())
        self.is_deepspeed_enabled = self.is_fsdp_enabled = False
        self.deepspeed = "assigned"

    def train(self) -> None:  # type: ignore[override]
        for row in rows(4):
            outputs = self.model(**{name: value[None] for name, value in row.items()})
            self.accelerator.backward(outputs["loss"])
            self.optimizer.step()
            self.lr_scheduler.step()
            self.optimizer.zero_grad()
            self.state.global_step += 1
            self.log({"loss": outputs["loss"].item()})
        self._save_checkpoint(self.model, trial=None)


def test_a_class_with_its_own_constructor_and_loop(tmp_path: Path) -> None:
    """What it does not set has the constructor's values; it trains, logs, evaluates, and writes models and states."""
    trainer = OwnLoop(net(), arguments(tmp_path))
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    trainer.train()
    assert any((one != other).any() for one, other in zip(before, trainer.model.parameters(), strict=True))
    noting: Any = trainer.callback_handler.callbacks[0]
    assert len(noting.logs) == len(trainer.state.log_history) == 4
    assert trainer.deepspeed == "assigned"
    assert trainer.compute_metrics is None
    assert (
        trainer.evaluate(rows(4))["eval_loss"]
        == small_trainer(tmp_path, parts={"model": trainer.model}).evaluate(rows(4))["eval_loss"]
    )

    saved = load_file(tmp_path / "checkpoint-4" / "model.safetensors")
    assert all(torch.equal(saved[name], tensor) for name, tensor in trainer.model.state_dict().items())
    state = json.loads((tmp_path / "checkpoint-4" / "trainer_state.json").read_text(encoding="utf-8"))
    assert state["global_step"] == len(state["log_history"]) == 4


def test_without_arguments_there_are_no_such_attributes() -> None:
    """Before a constructor has set the arguments, a class sees what it has set itself."""
    trainer = Trainer.__new__(Trainer)
    assert not any(hasattr(trainer, name) for name in ("adapters", "model", "state", "_dispatcher"))


class WithAnswers(Trainer):
    """Assigns attributes that depend on the model."""

    def __init__(self, model: Any, args: Any) -> None:
        self.args, self.model = args, model
        self.model_accepts_loss_kwargs, self.place_model_on_device = True, False


def test_attributes_that_depend_on_the_model_stay_as_they_were_assigned(tmp_path: Path) -> None:
    """The first look at one that is not assigned changes no other."""
    trainer = WithAnswers(net(), arguments(tmp_path))
    assert not trainer.can_return_loss
    assert trainer.model_accepts_loss_kwargs
    assert not trainer.place_model_on_device
