"""What code of a user's does to the model and to the batches in a run, and what of it training notices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hexloop import Trainer, TrainerCallback
from hexloop.adapters.parallelism.single import SingleProcess
from tests.end_to_end.small.models import net, rows
from tests.end_to_end.small.trainers import same_weights, small_trainer, weights

# The mode of the model


class OwnEvaluation(Trainer):
    """Evaluates by a loop of its own, and leaves the model as that left it."""

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        self.model.eval()
        with torch.no_grad():
            loss = sum(float(self.model(**row)["loss"]) for row in self.eval_dataset)
        return {"eval_loss": loss}


class OwnStep(OwnEvaluation):
    """Takes its steps itself, too."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        loss: Tensor = self.compute_loss(model, inputs)
        self.accelerator.backward(loss)
        return loss.detach()


class Sampling(TrainerCallback):
    """Lets the model answer after every log, as a callback that samples text does."""

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        kwargs["model"].eval()


class Modes(TrainerCallback):
    """Whether each module is in training mode before an update."""

    def __init__(self) -> None:
        self.seen: list[set[bool]] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seen.append({module.training for module in kwargs["model"].modules()})


class Wrapped(nn.Module):
    """Holds the model, as an engine's wrapper does, with a mode of its own."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, **inputs: Any) -> Any:
        return self.module(**inputs)


class Wrapping(SingleProcess):
    """Trains the wrapped model."""

    def prepare(self, model: Any, make_optimizer: Any) -> tuple[Any, Any]:
        return super().prepare(Wrapped(model), make_optimizer)


@pytest.mark.parametrize(
    ("kind", "callbacks"), [(Trainer, [Sampling]), (OwnEvaluation, []), (OwnStep, []), (OwnStep, [Sampling])]
)
@pytest.mark.parametrize("way", ["plain", "wrapped", "compiled"])
def test_every_step_is_taken_in_training_mode(
    tmp_path: Path, kind: type[Trainer], callbacks: list[type[TrainerCallback]], way: str
) -> None:
    """Code of the user's that leaves the model in evaluation mode changes no step, whatever wraps the model."""
    modes = Modes()
    parts = {"model": net(0.5), "eval_dataset": rows(4), "callbacks": [modes, *(each() for each in callbacks)]}
    given: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 1}
    if way == "wrapped":
        parts["parallelism"] = Wrapping()
    elif way == "compiled":
        given |= {"torch_compile": True, "torch_compile_backend": "eager"}
    trainer = small_trainer(tmp_path, kind, parts, **given)
    trainer.train()

    assert modes.seen == [{True}] * 4
    assert same_weights(weights(trainer), plain_weights(tmp_path))


def plain_weights(folder: Path) -> dict[str, Tensor]:
    """Those of a run in which the model is let alone."""
    trainer = small_trainer(folder, parts={"model": net(0.5)})
    trainer.train()
    return weights(trainer)


def test_a_module_that_was_put_to_rest_stays_so(tmp_path: Path) -> None:
    """A callback may keep a part of the model in evaluation mode, through evaluations, too."""
    seen: list[bool] = []

    class Resting(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            kwargs["model"].layers[2].eval()

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seen.append(kwargs["model"].layers[2].training)

    parts = {"model": net(0.5), "eval_dataset": rows(4), "callbacks": [Resting()]}
    small_trainer(tmp_path, parts=parts, eval_strategy="steps", eval_steps=1).train()

    assert seen == [False] * 4
