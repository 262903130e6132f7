"""State that optimizers keep in attributes of their own, and in tensors that consist of others."""

from __future__ import annotations

import random
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from hexloop import CheckpointError, ConfigurationError
from hexloop.adapters.trainable.torch.optimizer_state import OptimizerState
from hexloop.domain.json_documents import json_part, json_value
from hexloop.ports.state import Part
from tests.contracts.test_optimizer_states import advance, model, same
from tests.end_to_end.small.trainers import small_trainer


class Counter:
    """An object of the optimizer's package."""

    def __init__(self) -> None:
        self.seen = 0


class InAttributes(SGD):
    """Keeps a count, a total, moments by parameter, an object and a generator in attributes."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, lr=lr)
        self.count = 0
        self.total: Any = None
        self.moments: dict[Tensor, Tensor] = {}
        self.recent: list[float] = []
        self.counter = Counter()
        self.generator = torch.Generator().manual_seed(3)
        self.table = torch.linspace(0, 1, 5)
        self.is_set_up = False
        self.parameters = [each for group in self.param_groups for each in group["params"]]

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Take a step that depends on all of these."""
        self.is_set_up = True
        self.count += 1
        self.counter.seen += 2
        noise = torch.rand((), generator=self.generator)
        for each in self.parameters:
            moment = self.moments.setdefault(each, torch.zeros_like(each))
            moment.mul_(0.9).add_(each.grad)
            each.sub_(moment * noise / (self.count + self.counter.seen))
        total = sum(each.grad.norm() for each in self.parameters)
        self.total = total if self.total is None else self.total + total
        self.recent = [*self.recent, float(total)][-2:]


def saved_of(optimizer_class: type[Optimizer] = InAttributes) -> tuple[nn.Module, Any, list[Part]]:
    """Return a model, its optimizer, and the exported state after three steps."""
    ours = model()
    optimizer: Any = optimizer_class(ours.parameters())  # type: ignore[call-arg]
    state = OptimizerState(ours, optimizer)
    advance(ours, optimizer, 3)
    return ours, optimizer, list(state.export())


def changed(parts: list[Part], change: Callable[[dict[str, Any]], None]) -> list[Part]:
    """Return the parts with another document."""
    (document,) = (json_value(part) for part in parts if part.name == "param_groups")
    change(document)
    return [part for part in parts if part.name != "param_groups"] + [json_part("param_groups", document)]


def test_attributes_that_change_are_state() -> None:
    """A new optimizer continues bit-identically. What did not change, and what says that it is set up, is not saved."""
    ours, optimizer, parts = saved_of()
    (document,) = (json_value(part) for part in parts if part.name == "param_groups")
    assert set(document["attributes"]) == {"count", "total", "moments", "recent", "counter", "generator"}
    again = model()
    new: Any = InAttributes(again.parameters())
    OptimizerState(again, new).load(parts)
    again.load_state_dict(ours.state_dict())
    assert (new.count, new.recent, new.counter.seen, new.is_set_up) == (3, optimizer.recent, 6, False)
    assert list(new.moments) == list(again.parameters())
    advance(ours, optimizer, 2)
    advance(again, new, 2)
    assert same(dict(ours.state_dict()), dict(again.state_dict()))
    assert torch.equal(optimizer.total, new.total)


def test_state_that_was_loaded_is_saved_again() -> None:
    """Also if it has not changed since."""
    _, _, parts = saved_of()
    again = model()
    new = InAttributes(again.parameters())
    state = OptimizerState(again, new)
    state.load(parts)
    twice = {part.name: bytes(part.read()) for part in state.export()}
    assert twice == {part.name: bytes(part.read()) for part in parts}


def wrong_count(document: dict[str, Any]) -> None:
    document["attributes"]["count"] = {"value": "many"}


def a_method(document: dict[str, Any]) -> None:
    document["attributes"]["zero_grad"] = {"value": 1}


def the_groups(document: dict[str, Any]) -> None:
    document["attributes"]["param_groups"] = {"value": []}


def a_dunder(document: dict[str, Any]) -> None:
    document["attributes"]["__class__"] = {"value": 1}


def no_generator(document: dict[str, Any]) -> None:
    document["attributes"]["count"] = {"generator": {"__tensor__": "attribute.generator"}}


def no_value(document: dict[str, Any]) -> None:
    document["attributes"]["count"] = {}


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (wrong_count, "has a str as count, and this one has a int"),
        (a_method, "an attribute 'zero_grad', which is not state"),
        (the_groups, "an attribute 'param_groups', which is not state"),
        (a_dunder, "an attribute '__class__', which is not state"),
        (no_generator, "count is not the state of its generator"),
        (no_value, "The saved optimizer is invalid"),
    ],
)
def test_attributes_that_a_file_must_not_set(change: Callable[[dict[str, Any]], None], wanted: str) -> None:
    """They are refused, and nothing is changed."""
    _, _, parts = saved_of()
    again = model()
    new: Any = InAttributes(again.parameters())
    state = OptimizerState(again, new)
    before = new.generator.get_state().clone()
    with pytest.raises(ValueError, match=wanted):
        state.load(changed(parts, change))
    assert (new.count, new.total, new.moments) == (0, None, {})
    assert torch.equal(new.generator.get_state(), before)


class Drawing(SGD):
    """Draws from a generator of another library."""

    def __init__(self, params: Any, lr: float = 0.1, source: Any = None) -> None:
        super().__init__(params, lr=lr)
        self.source = source


class Around(SGD):
    """Contains another optimizer, whose state is nowhere else."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        groups = list(params)
        super().__init__(groups, lr=lr)
        self.inner = SGD(self.param_groups, lr=lr, momentum=0.9)


class OwnStateDict(SGD):
    def state_dict(self) -> dict[str, Any]:
        """Return something else."""
        return {"everything": super().state_dict()}


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "Python's": (Drawing, {"source": random.Random(1)}, "random numbers in source, a random.Random"),
    "numpy's": (Drawing, {"source": np.random.default_rng(1)}, "random numbers in source, a numpy.random"),
    "an inner optimizer": (Around, {}, "another optimizer in inner, a SGD, whose state is not in its state dict"),
    "its own state dict": (OwnStateDict, {}, "the state dict of OwnStateDict has no param_groups and state"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_state_that_cannot_be_kept_is_refused(name: str, tmp_path: Path) -> None:
    """Before the first step, if the run saves checkpoints; a run without them trains."""
    kind, options, wanted = REFUSED[name]
    parts = {"optimizer_cls_and_kwargs": (kind, {"lr": 0.1, **options})}
    trainer = small_trainer(tmp_path, parts=parts, save_strategy="steps", save_steps=2)
    with pytest.raises(ConfigurationError, match=wanted):
        trainer.train()
    assert trainer.state.global_step == 0
    small_trainer(tmp_path, parts=parts, save_strategy="no", max_steps=2).train()


class Halves(Tensor):
    """A tensor that consists of a sum and a difference, as quantised state consists of codes and scales."""

    total: Tensor
    rest: Tensor

    @staticmethod
    def __new__(cls, total: Tensor, rest: Tensor, kind: str) -> Any:
        made: Any = Tensor._make_wrapper_subclass(cls, total.shape, dtype=total.dtype)
        return made

    def __init__(self, total: Tensor, rest: Tensor, kind: str) -> None:
        if kind != "halves":
            raise ValueError(f"no kind {kind}")
        self.total, self.rest, self.kind = total, rest, kind

    def dequantize(self) -> Tensor:
        """Return the plain tensor."""
        return self.total + self.rest

    def __tensor_flatten__(self) -> tuple[list[str], list[str]]:
        return ["total", "rest"], [self.kind]

    @classmethod
    def __tensor_unflatten__(cls, parts: dict[str, Tensor], context: list[str], size: Any, stride: Any) -> Halves:
        return cls(parts["total"], parts["rest"], *context)

    @classmethod
    def __torch_dispatch__(cls, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if function is torch.ops.aten._to_copy.default:
            return cls(args[0].total.clone(), args[0].rest.clone(), args[0].kind)
        if function is torch.ops.aten.detach.default:
            return cls(args[0].total, args[0].rest, args[0].kind)
        raise NotImplementedError(function)


class WithHalves(SGD):
    """Keeps momentum in such a tensor."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Take a step."""
        for group in self.param_groups:
            for each in group["params"]:
                before = self.state[each]["exp_avg"].dequantize() if self.state[each] else torch.zeros_like(each)
                now = 0.9 * before + each.grad
                self.state[each]["exp_avg"] = Halves(now.round(decimals=2), now - now.round(decimals=2), "halves")
                each.sub_(now, alpha=group["lr"])


def test_a_tensor_of_others_is_restored_bitwise() -> None:
    """As the tensors that it consists of."""
    ours, optimizer, parts = saved_of(WithHalves)
    assert {part.name.rpartition(".")[2] for part in parts} == {"param_groups", "total", "rest"}
    again = model()
    new = WithHalves(again.parameters())
    OptimizerState(again, new).load(parts)
    again.load_state_dict(ours.state_dict())
    assert all(isinstance(new.state[each]["exp_avg"], Halves) for each in again.parameters())
    advance(ours, optimizer, 2)
    advance(again, new, 2)
    assert same(dict(ours.state_dict()), dict(again.state_dict()))


def other_class(document: dict[str, Any]) -> None:
    next(iter(document["state"].values()))["exp_avg"]["__wrapper__"] = "os.system"


def plain_class(document: dict[str, Any]) -> None:
    next(iter(document["state"].values()))["exp_avg"]["__wrapper__"] = f"{__name__}.Counter"


def other_context(document: dict[str, Any]) -> None:
    next(iter(document["state"].values()))["exp_avg"]["context"] = ["quarters"]


def mixed_up(document: dict[str, Any]) -> None:
    first, second, *_ = document["state"].values()
    first["exp_avg"], second["exp_avg"] = second["exp_avg"], first["exp_avg"]


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (other_class, "contains a os.system, which is not a tensor class of this optimizer's package"),
        (plain_class, "Counter, which is not a tensor class"),
        (other_context, "contains an invalid Halves: no kind quarters"),
        (mixed_up, "exp_avg has shape .*, and its parameter"),
    ],
)
def test_a_tensor_class_from_a_file_is_checked(change: Callable[[dict[str, Any]], None], wanted: str) -> None:
    """Only classes of the optimizer's package are made, with their own checks, and of the parameter's shape."""
    _, _, parts = saved_of(WithHalves)
    again = model()
    new = WithHalves(again.parameters())
    with pytest.raises(ValueError, match=wanted):
        OptimizerState(again, new).load(changed(parts, change))
    assert not new.state


def test_a_tensor_class_of_another_package_is_refused() -> None:
    """A checkpoint could not name it safely."""
    elsewhere = types.ModuleType("elsewhere")
    kind = type("Halves", (Halves,), {"__module__": "elsewhere"})
    sys.modules["elsewhere"] = elsewhere
    try:
        ours = model()
        optimizer = SGD(ours.parameters(), lr=0.1)
        state = OptimizerState(ours, optimizer)
        for each in ours.parameters():
            optimizer.state[each]["exp_avg"] = kind(torch.zeros_like(each), torch.zeros_like(each), "halves")
        with pytest.raises(CheckpointError, match=r"exp_avg is a elsewhere.Halves, a tensor class that the optimizer"):
            list(state.export())
    finally:
        del sys.modules["elsewhere"]
