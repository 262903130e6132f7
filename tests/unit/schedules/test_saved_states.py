"""Saved states of schedulers of torch and of the user: what may be loaded, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import CyclicLR, LambdaLR, LRScheduler, MultiStepLR, ReduceLROnPlateau, StepLR

from hexloop.adapters.scheduler.torch.run_schedules import GreedyLR
from hexloop.adapters.scheduler.torch.user_scheduler import TorchScheduler
from hexloop.domain.evaluation import BestMetric
from hexloop.domain.json_documents import json_part


class Lazy(LRScheduler):
    """A scheduler of the user, some of whose attributes exist only after a step."""

    best: float | None = None

    def get_lr(self) -> list[float | torch.Tensor]:
        if self.last_epoch > 0:
            self.best, self.seen = 0.5, [*getattr(self, "seen", []), self.last_epoch]
        return [group["lr"] / 2 for group in self.optimizer.param_groups]


class Factor:
    """A function with state, which a LambdaLR saves."""

    def __call__(self, step: float) -> float:
        if step > 0:
            self.last = step
        return 1 / (1 + step)


def trained(make: Callable[[Optimizer], Any], steps: int) -> TorchScheduler:
    """Return a scheduler of one group after some steps."""
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=0.1, momentum=0.9)
    scheduler = TorchScheduler(make(optimizer), optimizer, BestMetric("loss", required=True))
    for step in range(steps):
        optimizer.step()
        scheduler.observe({"eval_loss": 1 / (step + 1)})
        scheduler.advance(step)
    return scheduler


MADE: dict[str, Callable[[Optimizer], Any]] = {
    "lazy": Lazy,
    "function with state": lambda optimizer: LambdaLR(optimizer, Factor()),
    "smoothed greedy": lambda optimizer: GreedyLR(optimizer, smooth=True, window_size=3),
    "plateau": ReduceLROnPlateau,
    "milestones": lambda optimizer: MultiStepLR(optimizer, [2, 4]),
    "cyclic": lambda optimizer: CyclicLR(optimizer, 0.1, 0.2, scale_fn=Factor()),
}


@pytest.mark.parametrize("name", MADE)
def test_a_state_of_a_trained_scheduler_is_loaded(name: str) -> None:
    """Also if it has attributes that a fresh one lacks; both then go the same way."""
    one, other = trained(MADE[name], 3), trained(MADE[name], 0)
    other.load(one.export())
    for step in range(3, 6):
        for scheduler in (one, other):
            scheduler.observe({"eval_loss": 1.0})
            scheduler.advance(step)
    assert one.rates() == other.rates()


def exported(scheduler: TorchScheduler) -> Any:
    (part,) = scheduler.export()
    return json.loads(bytes(part.read()))


def test_a_state_of_another_version_of_torch_is_loaded() -> None:
    """Versions differ in flags, and in attributes that the constructor sets."""
    saved = exported(trained(ReduceLROnPlateau, 2))
    del saved["state"]["default_min_lr"]
    saved["state"]["verbose"] = False
    trained(ReduceLROnPlateau, 0).load([json_part("scheduler", saved)])
    saved = exported(trained(lambda optimizer: StepLR(optimizer, 3), 2))
    del saved["state"]["_is_initial"]
    saved["state"] |= {"verbose": False, "_flag_of_the_future": True}
    trained(lambda optimizer: StepLR(optimizer, 3), 0).load([json_part("scheduler", saved)])


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "a method": (
        "lazy",
        {"step": 5, "optimizer": True},
        "'step' would replace an attribute of Lazy; scheduler.state: 'opt",
    ),
    "a method by a flag": ("milestones", {"get_lr": True}, "'get_lr' would replace an attribute of MultiStepLR"),
    "a text": ("lazy", {"last_epoch": "x"}, "scheduler.state.last_epoch: 'x' is not a number"),
    "a count that is not finite": ("lazy", {"last_epoch": float("nan")}, "last_epoch: nan is not a finite number"),
    "functions that are missing": ("function with state", {"lr_lambdas": []}, "lr_lambdas: it has 0 entries, not 1"),
    "a window of texts": ("smoothed greedy", {"state": {"initial_rates": [0.1]}}, "state.reset_counter: it is missing"),
    "rates of another kind": (
        "smoothed greedy",
        {"_last_lr": ["x"]},
        "scheduler.state._last_lr[0]: 'x' is not a number",
    ),
    "rates of two groups": ("smoothed greedy", {"_last_lr": [0.1, 0.2]}, "_last_lr: it has 2 entries, not 1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_state_that_no_scheduler_saves_is_refused(name: str) -> None:
    """With its fields, and nothing of the scheduler has changed."""
    kind, changes, words = WRONG[name]
    saved, scheduler = exported(trained(MADE[kind], 3)), trained(MADE[kind], 1)
    saved["state"] |= changes
    before = repr(scheduler.scheduler.state_dict())
    with pytest.raises(ValueError, match=r"has|is|would") as raised:
        scheduler.load([json_part("scheduler", saved)])
    assert words in str(raised.value)
    assert repr(scheduler.scheduler.state_dict()) == before
