"""The optimizer has transformers' two parameter groups, and steps them at once while their options are equal."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim import SGD, Adagrad, Adam, AdamW, NAdam, Optimizer, RMSprop

import hexloop
from hexloop import CheckpointError
from hexloop.adapters.trainable.torch.decay_groups import decayed_names
from hexloop.adapters.trainable.torch.optimizers import build_optimizer
from tests.end_to_end.small.models import Net, net, rows
from tests.end_to_end.small.trainers import history, same_weights, small_trainer, weights


class NoBias(Net):
    """Has no parameter that is not decayed."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__(dropout)
        self.layers = nn.Sequential(nn.Linear(4, 8, bias=False), nn.Tanh(), nn.Linear(8, 1, bias=False))


class OnlyBias(Net):
    """Trains no parameter that is decayed, as in BitFit."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__(dropout)
        for name, parameter in self.named_parameters():
            parameter.requires_grad = "bias" in name


KINDS = {"both": (Net, [2, 2]), "decayed": (NoBias, [2, 0]), "not decayed": (OnlyBias, [0, 2])}


FURTHER = [pytest.param(name, marks=pytest.mark.matrix) for name in ("sgd", "adagrad", "rmsprop", "adafactor")]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_torch_fused", *FURTHER])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_two_groups_always(kind: str, decay: float, optim: str, tmp_path: Path) -> None:
    """Also where one is empty or nothing is decayed; the run's weights are bit-identical to transformers'."""
    made, sizes = KINDS[kind]
    seen: list[Any] = []
    for library in (hexloop, transformers):
        args = library.TrainingArguments(
            str(tmp_path / library.__name__), weight_decay=decay, optim=optim, max_steps=4, learning_rate=0.05,
            per_device_train_batch_size=4, use_cpu=True, report_to="none", save_strategy="no", disable_tqdm=True,
            train_sampling_strategy="sequential", max_grad_norm=0,
        )  # fmt: skip
        trainer = library.Trainer(model=net(kind=made), args=args, train_dataset=rows(16))
        trainer.train()
        groups = trainer.optimizer.param_groups
        seen.append([[len(group["params"]), group["weight_decay"]] for group in groups])
        seen.append(trainer.get_learning_rates())
        seen.append({name: each.tolist() for name, each in trainer.model.state_dict().items()})
        bias = next(each for name, each in trainer.model.named_parameters() if each.requires_grad)
        assert any(trainer.get_optimizer_group(bias) is group for group in groups)
    assert seen[0] == [[sizes[0], decay], [sizes[1], 0.0]]
    assert len(seen[1]) == 2
    assert seen[:3] == seen[3:]


# One call of the kernel


class Deep(nn.Module):
    """(batch, 6) -> (batch, 6), with weights, biases and norms."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 6), nn.Linear(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layers(x)
        return result


def deep() -> Deep:
    with torch.random.fork_rng():
        torch.manual_seed(4)
        return Deep()


def optimizers(kind: type[Optimizer], **options: Any) -> tuple[Any, Any]:
    """Return hexloop's optimizer of a model, and a plain one with the same groups of another."""
    first, second = deep(), deep()
    names = decayed_names(second)
    groups: Any = [
        {"params": [each for name, each in second.named_parameters() if name in names], "weight_decay": 0.0},
        {"params": [each for name, each in second.named_parameters() if name not in names], "weight_decay": 0.0},
    ]
    return (first, build_optimizer(first, kind, options, decayed_names(first), 0.0)), (second, kind(groups, **options))


def step(model: nn.Module, optimizer: Any, number: int) -> None:
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(number))
    optimizer.zero_grad()
    loss: Any = mse_loss(model(x), x.roll(1))
    loss.backward()
    optimizer.step()


def kernels(action: Callable[[], Any], name: str) -> int:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        action()
    return sum(event.count for event in profile.key_averages() if event.key == name)


VARIANTS: list[tuple[type[Optimizer], dict[str, Any]]] = [
    (AdamW, {"lr": 0.1, "fused": True}),
    (AdamW, {"lr": 0.1, "foreach": True, "amsgrad": True}),
    (AdamW, {"lr": 0.1, "foreach": False}),
    (Adam, {"lr": 0.1, "fused": True}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    (SGD, {"lr": 0.1, "fused": True}),
    (Adagrad, {"lr": 0.1, "lr_decay": 0.1}),
    (RMSprop, {"lr": 0.1, "momentum": 0.5, "centered": True}),
    (NAdam, {"lr": 0.1}),
]


@pytest.mark.parametrize(("kind", "options"), VARIANTS)
def test_a_joint_step_is_bit_identical(kind: type[Optimizer], options: dict[str, Any]) -> None:
    """To a step of each group, also after a group's rate or decay was changed and was set back."""
    (model, ours), (other, plain) = optimizers(kind, **options)
    assert type(ours) is kind
    for number in range(12):
        for optimizer in (ours, plain):
            optimizer.param_groups[1]["lr"] = 0.3 if 3 <= number < 6 else 0.1
            optimizer.param_groups[0]["weight_decay"] = 0.2 if 6 <= number < 9 else 0.0
        step(model, ours, number)
        step(other, plain, number)
        assert same_weights(model.state_dict(), other.state_dict())
    assert repr(ours.state_dict()) == repr(plain.state_dict())


def test_equal_groups_take_one_call() -> None:
    """And groups with other options, or a third group, one each."""
    (model, ours), (other, plain) = optimizers(AdamW, lr=0.1, fused=True)
    name = "aten::_fused_adamw_"
    assert kernels(lambda: step(other, plain, 0), name) == 2
    assert kernels(lambda: step(model, ours, 0), name) == 1
    ours.param_groups[1]["betas"] = (0.5, 0.6)
    assert kernels(ours.step, name) == 2
    ours.param_groups[1]["betas"] = (0.9, 0.999)
    ours.param_groups[1]["own"] = True
    assert kernels(ours.step, name) == 2
    del ours.param_groups[1]["own"]
    assert kernels(ours.step, name) == 1
    ours.add_param_group({"params": [extra := nn.Parameter(torch.ones(2))]})
    extra.grad = torch.ones(2)
    assert kernels(ours.step, name) == 3


def test_hooks_and_schedulers_see_both_groups() -> None:
    """Hooks around the step may change them; a change in the hook before applies to that step."""
    (model, ours), (other, plain) = optimizers(SGD, lr=0.1)
    seen: list[int] = []

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        seen.append(len(optimizer.param_groups))
        optimizer.param_groups[1]["lr"] = 0.0

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        seen.append(len(optimizer.param_groups))

    for each in (ours, plain):
        each.register_step_pre_hook(before)
        each.register_step_post_hook(after)
        torch.optim.lr_scheduler.LambdaLR(each, lambda _: 1.0)
    step(model, ours, 0)
    step(other, plain, 0)
    assert seen == [2] * 4
    assert same_weights(model.state_dict(), other.state_dict())
    assert not same_weights(model.state_dict(), deep().state_dict())


def test_a_failing_step_leaves_the_groups() -> None:
    """A closure's exception passes through, and its result is returned."""
    (_, ours), _ = optimizers(AdamW, lr=0.1)
    groups = ours.param_groups

    def failing() -> float:
        raise KeyError("closure")

    with pytest.raises(KeyError, match="closure"):
        ours.step(failing)
    assert ours.param_groups is groups
    assert ours.step(lambda: 3.5) == 3.5
    copied = deepcopy(ours)
    assert [len(group["params"]) for group in copied.param_groups] == [len(group["params"]) for group in groups]
    copied.step()


# Checkpoints of optimizers with other groups


def saving(folder: Path, model: nn.Module, optimizer: Any, **given: Any) -> Any:
    """Return a Trainer of this model, which saves, with the user's optimizer if one is given."""
    given = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "optim": "adamw_torch", **given}
    return small_trainer(folder, parts={"model": model, "optimizers": (optimizer, None)}, **given)


def one_group(model: nn.Module) -> Any:
    return AdamW(model.parameters(), lr=0.01, weight_decay=0.0)


@pytest.mark.parametrize("one_first", [True, False])
def test_a_run_resumes_with_other_groups(one_first: bool, tmp_path: Path) -> None:
    """One group resumes as two and two as one, bit-identically, if their options are equal."""
    first, second = net(), net()
    whole = saving(tmp_path / "whole", first, one_group(first) if one_first else None)
    whole.train()
    rest = saving(tmp_path / "rest", second, None if one_first else one_group(second))
    rest.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert [len(trainer.optimizer.param_groups) for trainer in (whole, rest)] == ([1, 2] if one_first else [2, 1])
    assert same_weights(weights(whole), weights(rest))
    assert history(whole) == history(rest)


def test_groups_with_other_options_are_not_joined(tmp_path: Path) -> None:
    """Two groups of which one is decayed are refused for an optimizer with one."""
    saving(tmp_path / "whole", net(), None, weight_decay=0.1).train()
    model = net()
    with pytest.raises(CheckpointError, match=r"groups of \[2, 2\] parameters, and that of this run of \[4\]"):
        saving(tmp_path / "rest", model, one_group(model)).train(
            resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2")
        )


def test_decay_can_be_turned_on(tmp_path: Path) -> None:
    """Named as a difference; if it is accepted, moments are kept, also those of an optimizer with one group."""
    model = net()
    saving(tmp_path / "one", model, one_group(model)).train()
    saving(tmp_path / "two", net(), None).train()
    for name in ("one", "two"):
        where = str(tmp_path / name / "checkpoint-2")
        with pytest.raises(CheckpointError, match=r"weight_decay of group 0 was 0\.0 and is 0\.1\. .*'optimizer'"):
            saving(tmp_path / f"{name} refused", net(), None, weight_decay=0.1).train(resume_from_checkpoint=where)
        rest = saving(tmp_path / f"{name} rest", net(), None, weight_decay=0.1, resume_despite=["optimizer"])
        rest.train(resume_from_checkpoint=where)
        assert [group["weight_decay"] for group in rest.optimizer.param_groups] == [0.1, 0.0]
        assert {int(state["step"]) for state in rest.optimizer.state.values()} == {4}
