"""Averages of weights: the formula, the exchange with the weights that are trained, and what is saved of them."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hexloop.adapters.trainable.torch.averaged_weights import (
    AveragedLayout,
    AveragedWeights,
    averaged_parameters,
    trained_weights,
)
from hexloop.adapters.trainable.torch.layouts import WHOLE
from hexloop.adapters.trainable.torch.model_state import ModelState
from hexloop.adapters.trainable.torch.moving_averages import MovingAverages
from hexloop.adapters.trainable.torch.optimizer_modes import OptimizerModes, switches_modes
from hexloop.adapters.trainable.torch.serialization import read_tensor
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.json_documents import json_part
from hexloop.ports.state import JSON, Part


class Net(nn.Module):
    """Two layers with tied weights, a frozen layer, and a batch normalization, whose statistics are buffers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second, self.frozen = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.frozen.requires_grad_(requires_grad=False)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.norm(self.second(self.first(self.frozen(x))))
        return found


def trained(model: nn.Module) -> list[Tensor]:
    return [each for each in model.parameters() if each.requires_grad]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(trained(model), lr=0.1)


def schedule_free(model: nn.Module) -> Any:
    schedulefree = pytest.importorskip("schedulefree")
    return schedulefree.AdamWScheduleFree(trained(model), lr=0.1, warmup_steps=2)


def step(model: nn.Module, optimizer: Any, seed: int) -> None:
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))
    model(x).pow(2).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def ema(model: nn.Module, optimizer: Any, decay: float = 0.5, **given: Any) -> MovingAverages:
    return MovingAverages(model, averaged_parameters(model, optimizer), decay, **given)


def modes(model: nn.Module, optimizer: Any) -> OptimizerModes:
    return OptimizerModes(model, optimizer, averaged_parameters(model, optimizer))


def copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: each.detach().clone() for name, each in model.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# The formula


@settings(deadline=None, max_examples=25)
@given(st.floats(0, 0.999), st.integers(0, 4), st.integers(1, 3), st.integers(0, 9))
def test_the_moving_average_is_the_formula(decay: float, first: int, every: int, steps: int) -> None:
    """In double precision by hand, over steps that begin and skip as they are told to."""
    model = Net()
    optimizer = sgd(model)
    averages = ema(model, optimizer, decay, first=first, every=every)
    expected = model.first.weight.detach().double() if first == 0 else None
    for number in range(1, steps + 1):
        step(model, optimizer, number)
        averages.update()
        weight = model.first.weight.detach().double()
        if number == first:
            expected = weight
        elif expected is not None and (number - first) % every == 0:
            expected = decay * expected + (1 - decay) * weight

    assert averages.started == (expected is not None)
    if expected is not None:
        torch.testing.assert_close(averages.averages["first.weight"].double(), expected, rtol=1e-6, atol=1e-6)


def test_a_step_that_was_not_taken_does_not_count() -> None:
    """After an overflow, the averages stay as they are."""
    model = Net()
    averages = ema(model, sgd(model))
    before = {name: each.clone() for name, each in averages.averages.items()}
    with torch.no_grad():
        model.first.weight.zero_()
    averages.update(taken=False)
    assert averages.updates == 0
    assert same(before, averages.averages)


def test_averages_of_weights_in_half_precision_are_in_float32() -> None:
    """A change below the resolution of bfloat16 is not lost."""
    model = Net().to(torch.bfloat16)
    averages = ema(model, sgd(model), decay=0.999)
    with torch.no_grad():
        model.first.weight.fill_(2.0)
        averages.averages["first.weight"].fill_(1.0)
    for _ in range(3):
        averages.update()
    expected = 2 - 0.999**3
    torch.testing.assert_close(averages.averages["first.weight"], torch.full((4, 4), expected))
    (exported,) = {each.dtype for each in averages.exported().values()}
    assert exported is torch.bfloat16


def test_what_is_averaged() -> None:
    """A tied weight once, no frozen one, no buffer, and nothing that the optimizer does not have."""
    model = Net()
    assert set(averaged_parameters(model, sgd(model))) == {
        "first.weight", "first.bias", "second.bias", "norm.weight", "norm.bias",
    }  # fmt: skip
    assert set(averaged_parameters(model, torch.optim.SGD([model.norm.bias]))) == {"norm.bias"}


class Quantized(Tensor):
    """A class of weights of its own."""


def test_weights_of_another_class_are_refused() -> None:
    """By name, with what to do."""
    model = nn.Linear(2, 2)
    weight = torch.randn(2, 2).as_subclass(Quantized).requires_grad_()
    model.weight = nn.Parameter(weight)
    with pytest.raises(ConfigurationError, match="weights weight are of the class Quantized"):
        averaged_parameters(model, torch.optim.SGD([model.weight]))


# The exchange

KINDS: dict[str, tuple[Callable[[nn.Module], Any], Callable[[nn.Module, Any], AveragedWeights]]] = {
    "moving": (sgd, ema),
    "schedule-free": (schedule_free, modes),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def trained_for(kind: str, steps: int = 5) -> tuple[Net, Any, AveragedWeights]:
    model, (make, average) = Net(), KINDS[kind]
    optimizer = make(model)
    averages = average(model, optimizer)
    for number in range(steps):
        go_on(model, optimizer, averages, number)
    return model, optimizer, averages


def go_on(model: nn.Module, optimizer: Any, averages: AveragedWeights, number: int) -> None:
    step(model, optimizer, number)
    if isinstance(averages, MovingAverages):
        averages.update()


@kinds
def test_the_weights_return_bit_identically(kind: str) -> None:
    """After nested and interrupted shows; and training goes on as it would have."""
    model, optimizer, averages = trained_for(kind)
    other, its_optimizer, its_averages = trained_for(kind)
    before = copied(model)

    averages.show()
    shown = copied(model)
    averages.show()
    averages.hide()
    assert same(shown, copied(model))
    assert averages.shown
    show_again = averages.conceal()
    assert same(before, copied(model))
    assert not averages.shown
    show_again()
    assert same(shown, copied(model))
    averages.hide()

    assert not same(before, shown)
    assert same(before, copied(model))
    assert model.second.weight is model.first.weight
    for number in range(5, 8):
        go_on(model, optimizer, averages, number)
        go_on(other, its_optimizer, its_averages, number)
    assert same(copied(model), copied(other))


@kinds
def test_buffers_and_frozen_weights_are_shown_as_they_are(kind: str) -> None:
    """Only the averaged weights change."""
    model, _, averages = trained_for(kind)
    before = copied(model)
    averages.show()
    shown = copied(model)
    changed = {name for name in before if not torch.equal(before[name], shown[name])}
    assert changed
    assert all(name.partition(".")[0] != "frozen" and "running" not in name for name in changed)


def test_the_arithmetic_of_the_optimizer_does_round() -> None:
    """So that the copy of the weights is needed: its own `eval()` and `train()` do not return exactly."""
    model, optimizer, _ = trained_for("schedule-free")
    before = copied(model)
    optimizer.eval()
    optimizer.train()
    assert not same(before, copied(model))


def test_a_mode_that_a_callback_has_set_stays() -> None:
    """An optimizer that is in evaluation mode already is in it afterwards."""
    model, optimizer, averages = trained_for("schedule-free")
    optimizer.eval()
    before = copied(model)
    averages.show()
    averages.hide()
    assert same(before, copied(model))
    assert not optimizer.param_groups[0]["train_mode"]


def test_averages_that_cannot_be_shown_leave_the_weights() -> None:
    """Also if the optimizer has changed some of them before it raised."""
    model, optimizer, averages = trained_for("schedule-free")
    before, evaluate = copied(model), optimizer.eval

    def fail() -> None:
        evaluate()
        raise MemoryError

    optimizer.eval = fail
    with pytest.raises(MemoryError):
        averages.show()
    assert not averages.shown
    assert same(before, copied(model))
    assert optimizer.param_groups[0]["train_mode"]


@kinds
def test_the_averages_stay_at_the_end(kind: str) -> None:
    """`settle` leaves them in the model."""
    model, _, averages = trained_for(kind)
    averages.show()
    shown = copied(model)
    averages.hide()
    averages.settle()
    assert same(shown, copied(model))


def test_averages_that_have_not_begun_change_nothing() -> None:
    """Before their first step."""
    model = Net()
    averages, before = ema(model, sgd(model), first=3), copied(model)
    averages.show()
    assert same(before, copied(model))
    averages.hide()
    assert not averages.exported()
    assert {part.name for part in averages.export()} == {"averages"}


@pytest.mark.parametrize(("name", "switches"), [("schedule-free", True), ("moving", False)])
def test_which_optimizers_have_modes(name: str, switches: bool) -> None:
    """Those with `train` and `eval`, whatever they are called."""
    assert switches_modes(KINDS[name][0](Net())) is switches


# What is saved


def viewed(data: bytearray) -> memoryview:
    return memoryview(data)


def read(parts: Any) -> list[Part]:
    """Return parts as a file has them, which later changes of their source do not reach."""
    found = []
    for part in parts:
        data = bytearray(bytes(part.read()))
        found.append(Part(part.name, part.dtype, part.shape, 0, part.length, partial(viewed, data), fresh=True))
    return found


@kinds
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_fresh_model_continues_bit_identically(kind: str, dtype: torch.dtype) -> None:
    """From the averages in the files of the model, and the trained weights beside them."""
    make, average = KINDS[kind]

    def start() -> tuple[Net, Any, AveragedWeights]:
        model = Net().to(dtype)
        optimizer = make(model)
        return model, optimizer, average(model, optimizer)

    def go(model: Net, optimizer: Any, averages: AveragedWeights, steps: range) -> None:
        for number in steps:
            x = torch.randn(8, 4, generator=torch.Generator().manual_seed(number)).to(dtype)
            model(x).pow(2).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if isinstance(averages, MovingAverages):
                averages.update()

    model, optimizer, averages = start()
    go(model, optimizer, averages, range(4))
    layout = AveragedLayout(WHOLE)
    layout.use(averages.exported())
    saved = read(ModelState(model, layout).export())
    beside, state = read(averages.export()), deepcopy(optimizer.state_dict())
    layout.use({})
    averages.show()
    shown = copied(model)
    averages.hide()
    assert all(torch.equal(read_tensor(part), shown[part.name]) for part in saved)

    other, its_optimizer, its_averages = start()
    its_optimizer.load_state_dict(state)
    its_averages.load(beside)
    ModelState(other).load(saved)
    its_averages.resume(4)

    assert same(copied(model), copied(other))
    for each in ((model, optimizer, averages), (other, its_optimizer, its_averages)):
        go(*each, range(4, 8))
    assert same(copied(model), copied(other))
    averages.show()
    its_averages.show()
    assert same(copied(model), copied(other))


def test_without_saved_averages_they_begin_with_the_weights() -> None:
    """Of a checkpoint that has none."""
    model = Net()
    averages = ema(model, sgd(model))
    with torch.no_grad():
        model.first.weight.fill_(7.0)
    averages.load([])
    averages.resume(5)
    assert torch.equal(averages.averages["first.weight"], model.first.weight)
    assert averages.updates == 5


def document(**changes: Any) -> Part:
    return json_part("averages", {"kind": "ema", "started": True, "replaced": True, **changes})


def without(name: str, parts: list[Part]) -> list[Part]:
    return [part for part in parts if part.name != name]


def renamed(parts: list[Part], name: str, to: str) -> list[Part]:
    return [
        Part(to, part.dtype, part.shape, 0, part.length, part.read) if part.name == name else part for part in parts
    ]


def reshaped(parts: list[Part], name: str) -> list[Part]:
    return [
        Part(part.name, part.dtype, (2, 8), 0, part.length, part.read) if part.name == name else part for part in parts
    ]


DAMAGED: dict[str, tuple[Callable[[list[Part]], list[Part]], str]] = {
    "no document": (lambda parts: without("averages", parts), "no valid document"),
    "another document": (lambda parts: [*without("averages", parts), document(more=1)], "no valid document"),
    "a document of other types": (
        lambda parts: [*without("averages", parts), document(started="yes")],
        "no valid document",
    ),
    "a weight is missing": (
        lambda parts: without("training.first.bias", parts),
        "the trained weights of first.bias are missing",
    ),
    "another weight": (
        lambda parts: renamed(parts, "training.first.bias", "training.frozen.bias"),
        "frozen.bias is not a parameter that is averaged",
    ),
    "another name": (lambda parts: renamed(parts, "training.first.bias", "first.bias"), "first.bias is unknown"),
    "another shape": (lambda parts: reshaped(parts, "training.first.weight"), r"\(2, 8\) in the checkpoint"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_saved_averages_that_do_not_fit(case: str) -> None:
    """Nothing is changed."""
    model = Net()
    averages = ema(model, sgd(model))
    damage, problem = DAMAGED[case]
    parts, before = damage(read(averages.export())), copied(model)
    with pytest.raises(ValueError, match=problem):
        averages.load(parts)
    assert same(before, copied(model))


def test_averages_in_float32_are_not_left_out() -> None:
    """Those of weights in half precision are needed to continue exactly."""
    model = Net().to(torch.bfloat16)
    averages = ema(model, sgd(model))
    parts = without("average.first.weight", read(averages.export()))
    with pytest.raises(ValueError, match=r"lack those of 'first.weight' in float32"):
        averages.load(parts)


def test_the_weights_that_are_trained_have_the_names_of_the_model() -> None:
    """As an export to transformers writes them."""
    model, _, averages = trained_for("schedule-free")
    found = trained_weights(averages.export())
    assert found.keys() <= {part.name for part in ModelState(model).export() if part.dtype != JSON}
    assert torch.equal(read_tensor(found["first.weight"]), model.first.weight)


def test_a_copy_in_memory_is_returned_to() -> None:
    """All averages, in their own precision, and the number of updates."""
    model, optimizer, averages = trained_for("moving")
    assert isinstance(averages, MovingAverages)
    (kept,) = averages.kept().values()
    before, parts = {name: each.clone() for name, each in averages.averages.items()}, read(kept.export())
    for number in range(5, 8):
        go_on(model, optimizer, averages, number)
    assert not same(before, averages.averages)
    kept.load(parts)
    assert same(before, averages.averages)
    assert averages.updates == 5
