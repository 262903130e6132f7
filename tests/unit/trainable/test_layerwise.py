"""Steps within the backward pass equal steps at its end, and free each gradient at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer, RMSprop
from torch.utils.checkpoint import checkpoint

from hexloop import ConfigurationError
from hexloop.adapters.trainable.torch.layerwise import LayerwiseSteps, NoReduction, total_norm
from hexloop.adapters.trainable.torch.trainable import Gradients
from hexloop.domain.errors import RunStateError

Make = Callable[[Iterable[Any]], Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "AdamW": lambda groups: AdamW(groups, lr=0.05),
    "AdamW, fused": lambda groups: AdamW(groups, lr=0.05, fused=True),
    "SGD": lambda groups: SGD(groups, lr=0.1, momentum=0.9),
    "RMSprop": lambda groups: RMSprop(groups, lr=0.01, centered=True),
    "Adafactor": lambda groups: torch.optim.Adafactor(groups, lr=0.05),
}


class Net(nn.Module):
    """Three layers, a tied one, one that only every other batch uses, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed = nn.Embedding(12, 6)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.sometimes = nn.Linear(6, 6)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.head = nn.Linear(6, 12, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, words: Tensor, sometimes: bool) -> Tensor:
        """Return a loss."""
        hidden = self.embed(words)
        for layer in self.layers:
            hidden = hidden + torch.tanh(layer(hidden))
        hidden = self.frozen(hidden)
        if sometimes:
            hidden = hidden + self.sometimes(hidden)
        return nn.functional.cross_entropy(self.head(hidden), words.roll(1))


def groups_of(model: nn.Module) -> list[dict[str, Any]]:
    named = list(model.named_parameters())
    return [
        {"params": [each for name, each in named if "bias" not in name], "weight_decay": 0.1},
        {"params": [each for name, each in named if "bias" in name], "weight_decay": 0.0},
    ]


def windows(lengths: list[int]) -> list[list[tuple[Tensor, bool]]]:
    draw = torch.Generator().manual_seed(1)
    numbers = iter(range(sum(lengths)))
    return [
        [(torch.randint(0, 12, (5,), generator=draw), next(numbers) % 2 == 0) for _ in range(length)]
        for length in lengths
    ]


def at_the_end(make: Make, lengths: list[int], max_norm: float) -> tuple[nn.Module, Optimizer, list[float]]:
    """Train with steps at the end of each window."""
    model = Net()
    optimizer, gradients, norms = make(groups_of(model)), Gradients(model.parameters()), []
    for number, window in enumerate(windows(lengths)):
        for group in optimizer.param_groups:
            group["lr"] = 0.05 / (number + 1)
        for words, sometimes in window:
            model(words, sometimes).backward()
        norms.append(float(gradients.clip(max_norm)))
        optimizer.step()
        gradients.clear()
    return model, optimizer, norms


def in_backward(make: Make, lengths: list[int], max_norm: float) -> tuple[nn.Module, Optimizer, list[float]]:
    """Train with steps within the backward pass."""
    model = Net()
    optimizer, norms = make(groups_of(model)), list[float]()
    steps = LayerwiseSteps(model, optimizer, max_norm, NoReduction())
    for number, window in enumerate(windows(lengths)):
        for group in optimizer.param_groups:
            group["lr"] = 0.05 / (number + 1)
        for index, (words, sometimes) in enumerate(window):
            steps.begin(index + 1 == len(window))
            steps.backward(model(words, sometimes))
        norms.append(float(steps.clip(max_norm) or 0.0))
        steps.step()
        assert all(each.grad is None for each in model.parameters())
    steps.close()
    return model, optimizer, norms


def assert_alike(one: nn.Module, other: nn.Module, tolerance: float = 0.0) -> None:
    for name, each in one.named_parameters():
        assert torch.allclose(each, other.get_parameter(name), rtol=0, atol=tolerance), name


@pytest.mark.parametrize("max_norm", [0.0, 0.3])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_they_equal_steps_at_the_end(kind: str, max_norm: float) -> None:
    """Weights, moments and norms, with windows of one and several micro-batches, whose last may leave a layer out."""
    lengths = [1, 4, 2, 1, 3]
    model, optimizer, norms = in_backward(OPTIMIZERS[kind], lengths, max_norm)
    expected, whole, expected_norms = at_the_end(OPTIMIZERS[kind], lengths, max_norm)
    assert_alike(model, expected, 1e-7)
    assert norms == pytest.approx(expected_norms, rel=1e-6)
    for name, parameter in model.named_parameters():
        found, wanted = optimizer.state[parameter], whole.state[expected.get_parameter(name)]
        assert found.keys() == wanted.keys()
        assert all(torch.allclose(torch.as_tensor(found[key]), torch.as_tensor(wanted[key])) for key in found)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.sampled_from([0.0, 0.1, 10.0]))
def test_any_windows(lengths: list[int], max_norm: float) -> None:
    """Whatever the lengths of the windows are."""
    found, expected = (
        in_backward(OPTIMIZERS["AdamW"], lengths, max_norm),
        at_the_end(OPTIMIZERS["AdamW"], lengths, max_norm),
    )
    assert_alike(found[0], expected[0], 1e-6)
    assert found[2] == pytest.approx(expected[2], rel=1e-5)


class Chain(nn.Module):
    """Layers of different sizes, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        widths = (4, 16, 8, 32, 4)
        self.layers = nn.ModuleList(nn.Linear(one, other) for one, other in pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        """Return a loss."""
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.square().sum()


def peak_of_gradients(max_norm: float, accumulates: int) -> tuple[int, int, int]:
    """Return the most bytes of gradients at a time, those of the largest parameter, and those of all."""
    model, peak = Chain(), 0
    parameters = list(model.parameters())

    def observe(_: Tensor) -> None:
        nonlocal peak
        peak = max(peak, sum(each.grad.nbytes for each in parameters if each.grad is not None))

    for each in parameters:  # before the hooks of the steps, which free them
        each.register_post_accumulate_grad_hook(observe)  # type: ignore[no-untyped-call]
    steps = LayerwiseSteps(model, AdamW(parameters), max_norm, NoReduction())
    for _ in range(3):
        for number in range(accumulates):
            steps.begin(number + 1 == accumulates)
            steps.backward(model(torch.ones(2, 4)))
        steps.clip(max_norm)
    return peak, max(each.nbytes for each in parameters), sum(each.nbytes for each in parameters)


def test_gradients_take_the_memory_of_the_largest_layer() -> None:
    """Also with clipping, which measures in a pass of its own; all of them exist only with accumulation."""
    for max_norm in (0.0, 0.5):
        peak, largest, every = peak_of_gradients(max_norm, 1)
        assert peak == largest < every / 2
        assert peak_of_gradients(max_norm, 2)[0] == every


def test_parameters_that_are_unfrozen_take_part() -> None:
    """From the next window on, in whatever group they are by then."""
    model = Chain()
    model.layers[0].requires_grad_(False)
    optimizer = SGD([each for each in model.parameters() if each.requires_grad], lr=0.1)
    steps = LayerwiseSteps(model, optimizer, 0.0, NoReduction())
    first = model.get_parameter("layers.0.weight")
    before = first.detach().clone()
    for unfrozen in (False, True):
        if unfrozen:
            model.layers[0].requires_grad_(True)
            optimizer.add_param_group({"params": list(model.layers[0].parameters())})
        steps.begin(True)
        steps.backward(model(torch.ones(2, 4)))
        steps.clip(0.0)
        assert torch.equal(before, first) is not unfrozen


def test_parameters_without_the_optimizer_are_measured() -> None:
    """A parameter of the model that the optimizer lacks counts for the norm; one that is not the model's does not."""
    torch.manual_seed(0)
    model, outside = Chain(), nn.Parameter(torch.ones(3))
    model(torch.ones(2, 4)).backward()
    expected = Gradients(model.parameters()).clip(0.0)
    model.zero_grad()
    optimizer = SGD([*model.layers[1:].parameters(), outside], lr=0.1)
    steps = LayerwiseSteps(model, optimizer, 0.0, NoReduction())
    steps.begin(True)
    steps.backward(model(torch.ones(2, 4)) + outside.sum())
    norm = steps.clip(0.0)
    assert norm is not None
    assert float(norm) == pytest.approx(float(expected), rel=1e-6)
    assert torch.allclose(outside, torch.full((3,), 0.9))
    assert all(each.grad is None for each in (*model.parameters(), outside))


class Counting(SGD):
    """Keeps a counter in its groups, as schedule-free optimizers do, and uses it."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
            group["lr"] = 0.1 / group["count"]
        return super().step(closure)


class Joint(SGD):
    """Keeps in its groups what depends on all gradients, as Prodigy does."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            found = [float(each.grad.norm()) for each in group["params"] if each.grad is not None]
            group["scale"] = group.get("scale", 0.0) + sum(found)
        return super().step(closure)


class CountingByItself(SGD):
    """Counts its steps in an attribute."""

    count = 0

    def step(self, closure: Any = None) -> Any:
        self.count += 1
        return super().step(closure)


def steps_of(optimizer: type[Any], **options: Any) -> tuple[Any, nn.Module]:
    model = Chain()
    made = optimizer(model.parameters(), **options)
    steps = LayerwiseSteps(model, made, 0.0, NoReduction())
    for _ in range(3):
        steps.begin(True)
        steps.backward(model(torch.ones(2, 4)))
        steps.clip(0.0)
    return made, model


def test_counters_of_groups() -> None:
    """A counter that all parameters of a group share advances once in a window."""
    torch.manual_seed(0)
    optimizer, model = steps_of(Counting, lr=0.1)
    torch.manual_seed(0)
    expected = Chain()
    whole = Counting(expected.parameters(), lr=0.1)
    for _ in range(3):
        whole.zero_grad()
        expected(torch.ones(2, 4)).backward()
        whole.step()
    assert optimizer.param_groups[0]["count"] == 3
    assert_alike(model, expected)


@pytest.mark.parametrize(
    ("optimizer", "problem"),
    [
        (Joint, "the value 'scale' of its groups depends on all of them"),
        (CountingByItself, "the attribute 'count' depends on all of them"),
        (torch.optim.LBFGS, "computes the loss in its steps"),
    ],
)
def test_optimizers_that_need_all_parameters(optimizer: type[Any], problem: str) -> None:
    """They are refused, before or in their first step, and not computed wrongly."""
    with pytest.raises(ConfigurationError, match=problem):
        steps_of(optimizer, lr=0.1)


def test_a_gradient_that_arrives_twice() -> None:
    """A second backward pass in a window is refused: the first one took the step."""
    model = Chain()
    steps = LayerwiseSteps(model, SGD(model.parameters(), lr=0.1), 0.0, NoReduction())
    steps.begin(True)
    steps.backward(model(torch.ones(2, 4)))
    with pytest.raises(RunStateError, match="arrived twice"):
        model(torch.ones(2, 4)).backward()


@pytest.mark.parametrize("reentrant", [False, True])
def test_with_activation_checkpointing(reentrant: bool) -> None:
    """Layers that compute their outputs again in the backward pass do so before they are updated."""

    class Checkpointed(Chain):
        def forward(self, x: Tensor) -> Tensor:
            x = x.requires_grad_()
            for layer in self.layers:
                x = checkpoint(lambda x, layer=layer: torch.tanh(layer(x)), x, use_reentrant=reentrant)
            return x.square().sum()

    found = list[nn.Module]()
    for kind in (Chain, Checkpointed):
        torch.manual_seed(0)
        model = kind()
        for max_norm in (0.0, 0.5):
            steps = LayerwiseSteps(model, SGD(model.parameters(), lr=0.1), max_norm, NoReduction())
            steps.begin(True)
            steps.backward(model(torch.ones(2, 4)))
            steps.clip(max_norm)
            steps.close()
        found.append(model)
    assert_alike(found[0], found[1])


def test_a_backward_pass_of_the_users() -> None:
    """A function of the user's that calls `loss.backward()` is followed, too; it is clipped afterwards."""
    for max_norm in (0.0, 0.3):
        found = list[nn.Module]()
        for by_user in (True, False):
            torch.manual_seed(0)
            model = Chain()
            steps = LayerwiseSteps(model, SGD(model.parameters(), lr=0.1), max_norm, NoReduction())
            steps.begin(True)
            loss = model(torch.ones(2, 4))
            if by_user:
                loss.backward()
            else:
                steps.backward(loss)
            steps.clip(max_norm)
            found.append(model)
        assert_alike(found[0], found[1])


def test_nothing_is_followed_after_the_run() -> None:
    """The hooks are removed, so that gradients stay where they are."""
    model = Chain()
    steps = LayerwiseSteps(model, SGD(model.parameters(), lr=0.1), 0.0, NoReduction())
    steps.begin(True)
    steps.backward(model(torch.ones(2, 4)))
    steps.clip(0.0)
    steps.close()
    model(torch.ones(2, 4)).backward()
    assert all(each.grad is not None for each in model.parameters())


def test_norms_of_different_types() -> None:
    """The norm of norms is of the widest type."""
    norm = total_norm([torch.tensor(3.0, dtype=torch.bfloat16), torch.tensor(4.0)])
    assert norm is not None
    assert norm.dtype == torch.float32
    assert float(norm) == 5
    assert total_norm([]) is None
