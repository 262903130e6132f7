"""With debug="underflow_overflow" a run ends at the first module with non-finite values, and names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hexloop.adapters.trainable.torch.forward_hooks import FRAMES, OverflowWatch
from hexloop.domain.errors import NotFiniteError
from tests.end_to_end.small.models import Net, net
from tests.end_to_end.small.trainers import same_weights, small_trainer, weights


class Exploding(nn.Module):
    """Divides by zero from its third forward pass on."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = 0

    def forward(self, hidden: Tensor) -> Tensor:
        self.passes += 1
        return hidden / (self.passes < 3)


def exploding() -> Net:
    model = net()
    model.layers[2] = Exploding()
    return model


def watched(folder: Path, model: nn.Module, **given: Any) -> Any:
    return small_trainer(folder, parts={"model": model}, debug="underflow_overflow", **given)


def test_the_first_overflowing_module_is_named(tmp_path: Path) -> None:
    """With its class, the non-finite tensor, and the forward pass; a ValueError as in transformers."""
    with pytest.raises(NotFiniteError) as raised:
        watched(tmp_path, exploding()).train()

    assert isinstance(raised.value, ValueError)
    told = str(raised.value)
    assert told.startswith(
        "Values that are not finite in forward pass 2 of the model, at layers.2 (Exploding): output."
    )
    assert "layers.1 (Tanh)" in told
    assert "layers.3" not in told.rpartition("layers.2 (Exploding)")[2]


def test_frames_contain_the_ranges_of_weights_inputs_and_outputs() -> None:
    """The smallest and largest absolute value of each."""
    linear = nn.Linear(2, 1, bias=False)
    linear.weight.data = torch.tensor([[0.5, -2.0]])
    watch = OverflowWatch()
    watch.watch(linear)
    linear(torch.tensor([[1.0, -4.0]]))

    (frame,) = watch.frames
    assert [(each.name, each.smallest, each.largest) for each in frame.ranges] == [
        ("weight", 0.5, 2.0),
        ("input[0]", 1.0, 4.0),
        ("output", 8.5, 8.5),
    ]


def test_max_frames_are_kept() -> None:
    """The last ones, the innermost modules first."""
    model = nn.Sequential(*(nn.Linear(1, 1) for _ in range(30)))
    watch = OverflowWatch()
    watch.watch(model)
    model(torch.ones(1, 1))

    assert [frame.module for frame in watch.frames] == [*map(str, range(30 - FRAMES + 1, 30)), ""]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", ["weight", "input", "keyword"])
def test_weights_and_all_inputs_are_checked(value: float, where: str) -> None:
    """Nested inputs, keyword arguments, and integers among them."""

    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, inputs: Any, mask: Any = None, count: Any = None) -> dict[str, Any]:
            return {"nothing": None, "count": torch.arange(3)}

    model, bad = Picky(), torch.tensor([1.0, value])
    if where == "weight":
        model.weight.data = bad
    OverflowWatch().watch(model)
    with pytest.raises(NotFiniteError, match=where):
        model({"a": [bad if where == "input" else torch.ones(2)]}, mask=(bad if where == "keyword" else None,))


def test_a_run_without_overflow_is_unchanged(tmp_path: Path) -> None:
    """Detection does not change the run, and its hooks are removed afterwards."""
    seen, plain = watched(tmp_path, net()), small_trainer(tmp_path)
    seen.train()
    plain.train()

    assert same_weights(weights(seen), weights(plain))
    assert not any(module._forward_hooks for module in seen.model.modules())
