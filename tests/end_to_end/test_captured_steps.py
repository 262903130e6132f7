"""`capture_step`: recorded steps train as others do, follow every change, and are refused where they could not."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from hexloop import Trainer, TrainerCallback
from hexloop.adapters.trainable.torch.capture import MOST_KINDS
from hexloop.domain.errors import ConfigurationError
from tests.end_to_end.small.models import net, rows
from tests.end_to_end.small.recording import RecordingCpu
from tests.end_to_end.small.trainers import history, same_weights, small_trainer, weights

FUSED: dict[str, Any] = {"optim": "adamw_torch_fused"}


def trained(folder: Path, captured: bool, resume: str | None = None, **given: Any) -> Any:
    """Return the Trainer of a run of 20 steps, or with other arguments; `dropout` and the Trainer's parts are given."""
    parts: dict[str, Any] = {
        name: given.pop(name)
        for name in ("callbacks", "train_dataset", "eval_dataset", "compute_loss_func")
        if name in given
    }
    chosen: dict[str, Any] = {"num_train_epochs": 5, "max_grad_norm": 0.5, **FUSED, **given}
    model = net(chosen.pop("dropout", 0.0))
    device = RecordingCpu() if captured else None
    trainer = small_trainer(folder, parts={"model": model, "device": device, **parts}, capture_step=captured, **chosen)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def both(folder: Path, **given: Any) -> tuple[Any, Any]:
    """Return the Trainers of the same run with and without captured steps. Callbacks are given as a function."""
    make = given.pop("callbacks", list)
    return trained(folder / "captured", True, callbacks=make(), **given), trained(
        folder / "plain", False, callbacks=make(), **given
    )


def assert_same(captured: Any, plain: Any) -> None:
    assert history(captured) == history(plain)
    assert same_weights(weights(captured), weights(plain))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"dropout": 0.3},
        {"gradient_accumulation_steps": 2},
        {"bf16": True, "dropout": 0.1},
        {"optim": "sgd", "optim_args": "fused=True,momentum=0.9", "max_grad_norm": 0.0},
        {"train_dataset": rows(15), "num_train_epochs": 8},
    ],
    ids=str,
)
def test_it_trains_as_without(given: dict[str, Any], tmp_path: Path) -> None:
    """Losses, norms, learning rates and weights are bit-identical, and most steps were replayed."""
    captured, plain = both(tmp_path, **given)
    assert_same(captured, plain)
    device = captured.adapters.device
    assert device.replayed > 3 * device.recorded > 0


def test_each_part_of_a_step_is_recorded_once(tmp_path: Path) -> None:
    """After the steps that run as usual, a step is three replays: the pass, clipping, and the update."""
    captured = trained(tmp_path, True)
    device = captured.adapters.device
    assert device.recorded == 3
    assert device.replayed == 3 * captured.state.global_step - RUN_AS_USUAL


RUN_AS_USUAL = 2 * 3 + 3 - 1
"""Parts of a run that are not replayed: two steps, until the optimizer has its state, and one that is seen first; the
next step replays its pass, whose gradients the update then sees first."""


class Changing(TrainerCallback):
    """Changes something of the model or the optimizer after the tenth step."""

    def __init__(self, what: str) -> None:
        self.what = what

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if state.global_step != 10:
            return
        model, optimizer = given["model"], given["optimizer"]
        if self.what == "weight decay":
            for group in optimizer.param_groups:
                group["weight_decay"] = 0.5
        elif self.what == "memory":
            for parameter in model.parameters():
                parameter.data = parameter.data.clone()
        elif self.what == "optimizer state":
            optimizer.load_state_dict(optimizer.state_dict())
        elif self.what == "frozen":
            next(model.parameters()).requires_grad_(False)
        elif self.what == "mode":
            model.layers[2].eval()
        elif self.what == "values":
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(0.5)


class Halving(TrainerCallback):
    """Replaces the gradients of some steps by half of them, in place or as other tensors."""

    def __init__(self, in_place: bool) -> None:
        self.in_place = in_place

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if state.global_step % 3 == 0:
            for parameter in given["model"].parameters():
                if self.in_place:
                    parameter.grad.mul_(0.5)
                else:
                    parameter.grad = parameter.grad * 0.5


@pytest.mark.parametrize("what", ["weight decay", "memory", "optimizer state", "values", "frozen", "mode"])
def test_changes_by_callbacks_are_followed(what: str, tmp_path: Path) -> None:
    """Memory, options and modes that a recording has fixed are looked at in every step."""
    assert_same(*both(tmp_path, callbacks=lambda: [Changing(what)], dropout=0.2))


def test_evaluations_between_steps_change_nothing(tmp_path: Path) -> None:
    """The modes that an evaluation leaves are restored before a step is replayed."""
    given: dict[str, Any] = {"eval_dataset": rows(8, seed=1), "eval_strategy": "steps", "eval_steps": 3, "dropout": 0.2}
    captured, plain = both(tmp_path, **given)
    assert_same(captured, plain)
    assert captured.adapters.device.recorded == 3


@pytest.mark.parametrize("in_place", [True, False])
def test_gradients_that_callbacks_change_are_used(in_place: bool, tmp_path: Path) -> None:
    """`on_pre_optimizer_step` is called between clipping and the update, with the gradients of this step."""
    assert_same(*both(tmp_path, callbacks=lambda: [Halving(in_place)]))


def read_by_host(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """A loss that depends on a number that Python reads."""
    error = mse_loss(outputs["logits"], labels)
    return error if error.item() < 1e9 else 2 * error


def test_what_cannot_be_recorded_runs_as_usual(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The result is the same, and one warning says why."""
    with caplog.at_level(logging.WARNING, "hexloop"):
        captured, plain = both(tmp_path, compute_loss_func=read_by_host)
    assert_same(captured, plain)
    assert sum("cannot be recorded, and runs as usual" in each.message for each in caplog.records) == 1


class Wide(nn.Module):
    """Takes rows of any width."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor, labels: Tensor) -> Any:
        return {"loss": ((x * self.scale).mean(dim=1) - labels).square().mean()}


def test_the_number_of_kinds_is_bounded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Batches of further shapes run as usual, after one warning that says what to do."""
    torch.manual_seed(0)
    widths = range(1, MOST_KINDS + 9)
    data = [{"x": torch.randn(width), "labels": torch.tensor(1.0)} for width in widths]
    found = []
    for captured in (True, False):
        with torch.random.fork_rng(), caplog.at_level(logging.WARNING, "hexloop"):
            trainer = small_trainer(
                tmp_path / str(captured),
                parts={"model": Wide(), "train_dataset": data, "device": RecordingCpu() if captured else None},
                capture_step=captured,
                per_device_train_batch_size=1,
                num_train_epochs=3,
                **FUSED,
            )
            trainer.train()
        found.append(trainer)
    assert_same(*found)
    assert sum("pad_to_multiple_of" in each.message for each in caplog.records) == 1
    assert found[0].adapters.device.recorded <= 3 * MOST_KINDS


@pytest.mark.parametrize("resumed_with", [True, False], ids=["captured", "plain"])
def test_a_checkpoint_resumes_with_and_without(resumed_with: bool, tmp_path: Path) -> None:
    """A run that is resumed at step 7 ends as one that was not; the optimizer's options are saved as numbers."""
    given: dict[str, Any] = {"dropout": 0.2, "save_strategy": "steps", "save_steps": 7}
    whole = trained(tmp_path / "whole", True, **given)
    resumed = trained(tmp_path / "whole", resumed_with, resume=str(tmp_path / "whole" / "checkpoint-7"), **given)
    assert same_weights(weights(whole), weights(resumed))
    assert history(whole)[:-1] == history(resumed)[:-1]
    assert all(isinstance(group["lr"], float) for group in whole.optimizer.param_groups)


# Compiled clipping and updates


class Recompilations(TrainerCallback):
    """Counts the graphs that torch.compile has made by the end of each step."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.counts.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])


@pytest.mark.matrix
@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_torch_fused", "sgd"])
def test_clipping_and_update_are_compiled(optim: str, tmp_path: Path) -> None:
    """Without a device that records, they are compiled with the model, and not again when the learning rate changes."""
    runs = []
    counts = Recompilations()
    for captured in (True, False):
        torch.compiler.reset()
        torch._dynamo.utils.counters.clear()
        trainer = small_trainer(
            tmp_path / str(captured),
            parts={"callbacks": [counts] if captured else []},
            capture_step=captured,
            torch_compile=True,
            torch_compile_backend="aot_eager",
            num_train_epochs=3,
            optim=optim,
        )
        trainer.train()
        runs.append(trainer)
        if captured:
            graphs_with = counts.counts[-1]
    assert counts.counts[2] == counts.counts[-1]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] < graphs_with
    for one, other in zip(weights(runs[0]).values(), weights(runs[1]).values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


# What is refused


class OwnLoss(Trainer):
    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        outputs = model(**inputs)
        return (outputs["loss"], outputs) if return_outputs else outputs["loss"]


REFUSED: dict[str, tuple[type[Trainer], dict[str, Any], str]] = {
    "a CPU without torch_compile": (Trainer, {}, "capture_step=True on the device cpu"),
    "fp16": (Trainer, {"fp16": True, "torch_compile": True}, "capture_step=True with the precision fp16"),
    "compute_loss": (OwnLoss, {"torch_compile": True}, "capture_step=True cannot be used with compute_loss overridden"),
    "a mode": (
        Trainer,
        {"torch_compile": True, "torch_compile_mode": "reduce-overhead"},
        "choose 'max-autotune-no-cudagraphs'",
    ),
    "reproduce": (Trainer, {"torch_compile": True, "reproduce": "transformers"}, "leave one of them out"),
    "an optimizer": (Trainer, {"torch_compile": True, "optim": "adafactor"}, "the optimizer Adafactor"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused_before_the_first_step(case: str, tmp_path: Path) -> None:
    """Each message says what to do instead."""
    kind, given, message = REFUSED[case]
    model = net()
    before = weights(small_trainer(tmp_path, parts={"model": model}))
    with pytest.raises(ConfigurationError, match=message):
        small_trainer(tmp_path, kind, parts={"model": model}, capture_step=True, **given).train()
    assert same_weights(before, {name: each.detach().clone() for name, each in model.state_dict().items()})


def test_averages_follow_captured_steps(tmp_path: Path) -> None:
    """They are updated after each step, recorded or not, and evaluations replace the weights in the same memory."""
    evaluated = {"eval_dataset": rows(8, seed=1), "eval_strategy": "steps", "eval_steps": 5}
    captured, plain = both(tmp_path, ema_decay=0.9, **evaluated)
    assert_same(captured, plain)
    device = captured.adapters.device
    assert device.replayed > 3 * device.recorded > 0
