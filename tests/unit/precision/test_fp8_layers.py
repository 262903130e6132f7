"""Which layers multiply in 8 bits, and how they are replaced."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hexloop.adapters.precision.fp8 import chosen_layers, replace_layers
from hexloop.domain.errors import ConfigurationError


class Block(nn.Module):
    """Layers of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 32)
        self.start = nn.Linear(32, 32)
        self.query = nn.Linear(32, 32)
        self.odd = nn.Linear(32, 24)
        self.gate = nn.Linear(32, 64, bias=False)
        self.own = nn.Bilinear(4, 4, 4)
        self.derived = Derived(32, 32)
        self.changed = nn.Linear(32, 32)
        vars(self.changed)["forward"] = lambda x: x
        self.normed = nn.utils.weight_norm(nn.Linear(32, 32))
        self.tied = nn.Linear(32, 32)
        self.again = nn.Linear(32, 32)
        self.again.weight = self.tied.weight
        self.end = nn.Linear(32, 32)


class Derived(nn.Linear):
    """A class of its own, as quantized layers are."""


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_layers_that_are_converted() -> None:
    """Plain linear layers with dimensions that are multiples of 16, neither the first nor the last linear one."""
    model = Block()
    assert list(chosen_layers(model)) == ["query", "gate", "tied", "again"]
    assert list(chosen_layers(model, tied=False)) == ["query", "gate"]
    assert list(chosen_layers(model, excluded=["gate"])) == ["query", "tied", "again"]
    assert list(chosen_layers(nn.ModuleDict({"block": model}), excluded=["block.gate", "again"])) == [
        "block.query",
        "block.tied",
    ]
    named = ("start", "odd", "changed")
    assert list(chosen_layers(model, choose=lambda layer, name: name in named)) == ["start", "odd"]


def test_a_model_without_such_layers_is_refused() -> None:
    """The message says which layers there are, and why they stay; a name that is excluded has to exist."""
    with pytest.raises(ConfigurationError, match=r"Sequential has no layer for it\. Of its 2 layers of the class"):
        chosen_layers(nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32)))
    with pytest.raises(ConfigurationError, match="has no linear layer in 'lm_head'; choose among the names of"):
        chosen_layers(nn.Sequential(*(nn.Linear(32, 32) for _ in range(3))), excluded=["lm_head"])


def test_a_converted_layer_keeps_what_the_layer_had() -> None:
    """Its hooks, mode and attributes; a layer with two names becomes one layer with two names."""

    class Doubled(nn.Linear):
        def forward(self, x: Any) -> Any:
            return 2 * super().forward(x)

    def convert(layer: nn.Linear) -> nn.Module:
        made = Doubled(layer.in_features, layer.out_features)
        made.load_state_dict(layer.state_dict())
        return made

    layer = nn.Linear(4, 4).eval()
    layer.note = "kept"  # type: ignore[assignment]
    seen: list[int] = []
    handle = layer.register_forward_hook(lambda *_: seen.append(1))
    model = nn.ModuleDict({"one": nn.Sequential(layer), "other": nn.Sequential(layer)})
    (made,) = replace_layers(model, {"one.0": layer, "other.0": layer}, convert)
    assert model.get_submodule("one.0") is model.get_submodule("other.0") is made
    assert not made.training
    assert made.note == "kept"
    x = torch.ones(1, 4)
    assert torch.equal(made(x), 2 * layer(x))
    assert seen == [1, 1]
    handle.remove()
    made(x)
    assert seen == [1, 1]
