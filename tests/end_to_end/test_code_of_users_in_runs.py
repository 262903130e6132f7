"""Effects of user code on the model and on batches during a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from hexloop import Trainer, TrainerCallback, default_data_collator
from hexloop.adapters.engines.single.engine import SingleProcess
from tests.end_to_end.small.models import net, rows
from tests.end_to_end.small.trainers import history, same_weights, small_trainer, weights

# The mode of the model


class OwnEvaluation(Trainer):
    """Overrides evaluate, which leaves the model in evaluation mode."""

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        self.model.eval()
        with torch.no_grad():
            loss = sum(float(self.model(**row)["loss"]) for row in self.eval_dataset)
        return {"eval_loss": loss}


class OwnStep(OwnEvaluation):
    """Overrides training_step, too."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        loss: Tensor = self.compute_loss(model, inputs)
        self.accelerator.backward(loss)
        return loss.detach()


class Sampling(TrainerCallback):
    """Puts the model into evaluation mode after every log, as a callback that samples text does."""

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        kwargs["model"].eval()


class Modes(TrainerCallback):
    """Records whether each module is in training mode before an update."""

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
    """User code that leaves the model in evaluation mode affects no step, with or without a wrapper."""
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
    """Return the weights of a run without such code."""
    trainer = small_trainer(folder, parts={"model": net(0.5)})
    trainer.train()
    return weights(trainer)


def test_a_module_in_evaluation_mode_stays_in_it(tmp_path: Path) -> None:
    """A callback may keep part of the model in evaluation mode, also across evaluations."""
    seen: list[bool] = []

    class Resting(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            kwargs["model"].layers[2].eval()

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seen.append(kwargs["model"].layers[2].training)

    parts = {"model": net(0.5), "eval_dataset": rows(4), "callbacks": [Resting()]}
    small_trainer(tmp_path, parts=parts, eval_strategy="steps", eval_steps=1).train()

    assert seen == [False] * 4


# Parameters that are frozen


class Unfreezing(TrainerCallback):
    """Unfreezes the first layer in the second epoch, and records the norm of its gradient in each update."""

    def __init__(self) -> None:
        self.norms: list[float] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        kwargs["model"].layers[0].requires_grad_(state.global_step >= 4)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.epoch >= 1:
            kwargs["model"].layers[0].requires_grad_(True)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        found = [parameter.grad for parameter in kwargs["model"].parameters() if parameter.grad is not None]
        self.norms.append(float(torch.nn.utils.get_total_norm(found)))


def unfreezing(folder: Path) -> tuple[Any, Unfreezing]:
    """Return a Trainer whose optimizer has every parameter, and whose first layer is frozen at the start."""
    model, callback = net(), Unfreezing()
    model.layers[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    parts = {"model": model, "callbacks": [callback], "optimizers": (optimizer, None)}
    given: dict[str, Any] = {"num_train_epochs": 3, "max_grad_norm": 0.5, "save_strategy": "epoch"}
    return small_trainer(folder, parts=parts, **given), callback


def test_a_layer_unfrozen_during_a_run_is_clipped_and_cleared(tmp_path: Path) -> None:
    """All gradients together are clipped to the norm, and none remains after a step."""
    trainer, callback = unfreezing(tmp_path)
    trainer.train()

    assert callback.norms == pytest.approx([0.5] * 12)
    assert all(parameter.grad is None for parameter in trainer.model.parameters())


def test_a_run_that_unfreezes_a_layer_resumes_exactly(tmp_path: Path) -> None:
    """From before and from after it is unfrozen."""
    whole, _ = unfreezing(tmp_path / "whole")
    whole.train()
    for step in (4, 8):
        resumed, _ = unfreezing(tmp_path / "resumed")
        resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{step}"))
        assert same_weights(weights(resumed), weights(whole))


# The batches


class Several(nn.Module):
    """Three labels per row, so that the numbers of rows and labels differ."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.line = nn.Linear(4, 3)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.line(x)
        return {"logits": logits} if labels is None else {"loss": mse_loss(logits, labels), "logits": logits}


class Kept(Trainer):
    """Reads the same batch objects in each epoch and each evaluation."""

    def get_train_dataloader(self) -> Any:
        return self.train_dataset

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        return self.eval_dataset


def emptied(model: Any, inputs: Any) -> tuple[Tensor, Any]:
    """Return the loss and the outputs after removing everything from `inputs`."""
    labels, x = inputs.pop("labels"), inputs.pop("x")
    outputs = model(x)
    return mse_loss(outputs["logits"], labels), outputs


class EmptyingLoss(Kept):
    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        loss, outputs = emptied(model, inputs)
        return (loss, outputs) if return_outputs else loss


class EmptyingStep(Kept):
    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        loss = emptied(model, inputs)[0] / 2
        self.accelerator.backward(loss)
        return loss.detach()


class EmptyingPreparation(Kept):
    def _prepare_inputs(self, inputs: Any) -> Any:
        return {name: super(EmptyingPreparation, self)._prepare_inputs(inputs.pop(name)) for name in ("x", "labels")}


class EmptyingAfterPreparation(Kept):
    def prediction_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad():
            labels = inputs["labels"]
            loss, outputs = emptied(model, inputs)
        return loss, outputs["logits"], labels


def ready(seeds: range) -> list[dict[str, Tensor]]:
    """Batches of four rows with three labels each."""
    batches = [default_data_collator(rows(4, seed)) for seed in seeds]
    return [{"x": batch["x"], "labels": batch["labels"].repeat(1, 3)} for batch in batches]


@pytest.mark.parametrize("kind", [EmptyingLoss, EmptyingStep, EmptyingPreparation, EmptyingAfterPreparation])
def test_an_override_may_empty_its_batch(tmp_path: Path, kind: type[Trainer]) -> None:
    """Losses, gradients, counts, evaluations and the next epoch equal those of an override that keeps it."""
    trained = []
    for each in (kind, Kept):
        parts = {"model": Several(), "train_dataset": ready(range(4)), "eval_dataset": ready(range(5, 7))}
        given: dict[str, Any] = {"gradient_accumulation_steps": 2, "num_train_epochs": 2, "eval_strategy": "epoch"}
        trainer = small_trainer(tmp_path, each, parts, **given)
        output = trainer.train()
        assert output.metrics["train_samples_per_second"] > 0
        trained.append(trainer)

    assert history(trained[0]) == history(trained[1])
    assert same_weights(weights(trained[0]), weights(trained[1]))


class EmptyingOwn(Trainer):
    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:  # type: ignore[override]
        loss, outputs = emptied(model, inputs)
        return (loss, outputs) if return_outputs else loss


def test_a_run_whose_override_empties_batches_resumes_at_its_position(tmp_path: Path) -> None:
    """No sample is trained on twice."""
    given: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2}
    whole = small_trainer(tmp_path, EmptyingOwn, **given)
    whole.train()
    resumed = small_trainer(tmp_path, EmptyingOwn, **given)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))

    assert same_weights(weights(resumed), weights(whole))
