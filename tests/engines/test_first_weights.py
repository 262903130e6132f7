"""Sharding a model whose weights exist on the first process only."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hexloop.adapters.engines.fsdp.engine import Fsdp2
from hexloop.adapters.engines.fsdp.fsdp1 import Fsdp1
from hexloop.adapters.engines.fsdp.units import FsdpOptions
from hexloop.adapters.trainable.torch.units import Units
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.parallelism import Parallelism
from tests.engines.processes import in_processes

CPU = torch.device("cpu")
LAYERS = Units(("Linear",))
WORDS = torch.tensor([1, 2, 3])

ENGINES: dict[str, Callable[[], Parallelism[Tensor]]] = {
    "fsdp1": lambda: Fsdp1(CPU, 2, FsdpOptions(LAYERS)),
    "fsdp2": lambda: Fsdp2(CPU, 2, FsdpOptions(LAYERS)),
}


class Guesser(nn.Module):
    """Shares the weights of its embedding with its output; a non-persistent buffer scales the result."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.words = nn.Embedding(7, 5)
        self.layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(3))
        self.out = self.words.weight
        self.register_buffer("scale", torch.arange(7.0), persistent=False)

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.words(words)
        for layer in self.layers:
            hidden = hidden + torch.tanh(layer(hidden))
        guesses: Tensor = (hidden @ self.out.T) * self.scale
        return guesses


def guessed(rank: int, engine: str, without: int) -> list[Any]:
    """Return the sharded model's output, where one process created the model without weights."""
    with torch.device("meta") if rank == without else nullcontext():
        model = Guesser()
    wrapped, _ = ENGINES[engine]().prepare(model, lambda _model: None)
    assert model.out is model.words.weight
    found: Tensor = wrapped(WORDS)
    return found.tolist()


@pytest.mark.parametrize("engine", ENGINES)
def test_other_ranks_receive_the_weights_of_the_first(engine: str) -> None:
    """Ties between weights stay, and buffers are broadcast."""
    expected = Guesser()(WORDS).detach()
    for found in in_processes(2, lambda rank: guessed(rank, engine, without=1)):
        assert isinstance(found, list), found
        torch.testing.assert_close(torch.tensor(found), expected)


@pytest.mark.parametrize("engine", ENGINES)
def test_rank_0_must_have_the_weights(engine: str) -> None:
    """Otherwise the error says how to fix it."""
    first, _ = in_processes(2, lambda rank: guessed(rank, engine, without=0))
    assert isinstance(first, ConfigurationError)
    assert "The model of rank 0 is on torch's meta device" in str(first)
