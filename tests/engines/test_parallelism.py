"""The engine contract for engines of several processes, run in each of the real processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from inspect import signature
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from hexloop.adapters.device.torch import CpuDevice
from hexloop.adapters.engines.ddp.engine import Ddp, DdpOptions
from hexloop.adapters.engines.ddp.layerwise import LayerwiseDdp
from hexloop.adapters.engines.fsdp.engine import Fsdp2
from hexloop.adapters.engines.fsdp.fsdp1 import Fsdp1
from hexloop.adapters.engines.fsdp.units import FsdpOptions
from hexloop.adapters.trainable.torch.layouts import WHOLE
from hexloop.adapters.trainable.torch.trainable import ModelLoss, TorchTrainable, exact_item_sum
from hexloop.adapters.trainable.torch.units import Units
from hexloop.app.testing.contracts.processes import EngineContract
from hexloop.ports.device import Device
from hexloop.ports.engine import Engine
from hexloop.ports.parallelism import Parallelism, Sharding
from tests.engines.processes import in_processes

CPU = torch.device("cpu")
LAYERS = Units(("Linear",))

ENGINES: Mapping[str, Callable[[int], Parallelism[Tensor]]] = {
    "ddp": lambda size: Ddp(CPU, size),
    "ddp without looking": lambda size: Ddp(CPU, size, DdpOptions(find_unused_parameters=False)),
    "ddp, layer-wise": lambda size: LayerwiseDdp(),
    "fsdp1": lambda size: Fsdp1(CPU, size, FsdpOptions(LAYERS)),
    "fsdp1, meeting at the end": lambda size: Fsdp1(CPU, size, FsdpOptions(LAYERS, synchronise_each=False)),
    "fsdp1, gradients alone": lambda size: Fsdp1(CPU, size, FsdpOptions(LAYERS, "shard_grad_op")),
    "fsdp2": lambda size: Fsdp2(CPU, size, FsdpOptions(LAYERS)),
    "fsdp2, meeting at the end": lambda size: Fsdp2(CPU, size, FsdpOptions(LAYERS, synchronise_each=False)),
    "fsdp2, on the host": lambda size: Fsdp2(CPU, size, FsdpOptions(LAYERS, offload=True)),
}


class Curve(nn.Module):
    """Three layers whose sizes no number of processes divides."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.layers = nn.ModuleList([nn.Linear(3, 7), nn.Linear(7, 7), nn.Linear(7, 1)])

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return {"loss": nn.functional.mse_loss(x, labels)}


class OnCurve(EngineContract[nn.Module, dict[str, Tensor], Tensor]):
    """An engine in one of `size` processes, each with its own batch."""

    tolerance = 1e-5

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size = name, size
        self.made: Parallelism[Tensor] = self.make()

    def engine(self) -> Engine[Any, Tensor]:
        return Engine(self.name, lambda args, device: ENGINES[self.name](self.size))

    def arguments(self) -> Any:
        return SimpleNamespace()

    def device(self) -> Device:
        return CpuDevice()

    def make(self) -> Parallelism[Tensor]:
        self.made = super().make()
        return self.made

    def model(self) -> nn.Module:
        return Curve()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def trainable(self, model: nn.Module, optimizer: Any) -> TorchTrainable:
        sharded = self.made.capabilities.sharded
        layout = cast("Sharding[Tensor, nn.Module, Tensor]", self.made).layout if sharded else WHOLE
        return TorchTrainable(model, optimizer, ModelLoss(), item_sum=exact_item_sum(self.size, CPU), layout=layout)

    def batch(self) -> dict[str, Tensor]:
        draw = torch.Generator().manual_seed(dist.get_rank())
        return {"x": torch.randn(4, 3, generator=draw), "labels": torch.randn(4, 1, generator=draw)}


def assert_passed(engine: str, size: int) -> None:
    """Raise the error of any process."""
    assert len(TESTS) >= 10
    for outcome in in_processes(size, lambda _rank: passed(engine, size)):
        if isinstance(outcome, BaseException):
            raise outcome
        assert outcome == TESTS


TESTS = sorted(name for name in dir(EngineContract) if name.startswith("test_"))


def passed(engine: str, size: int) -> list[str]:
    """Return the tests of the contract that all processes passed. Raises the error of any process."""
    assert dist.get_world_size() == size
    return passed_by(OnCurve(engine, size))


def passed_by(suite: OnCurve) -> list[str]:
    """Return the tests of the contract that this process passed with the others. Raises its error."""
    for name in TESTS:
        test = getattr(suite, name)
        needed = {"parallelism": suite.make()} if "parallelism" in signature(test).parameters else {}
        with suppress(pytest.skip.Exception):  # skipped: a capability that the engine does not have
            test(**needed)
    return TESTS


@pytest.mark.matrix
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("engine", ENGINES)
def test_every_process_passes_the_contract(engine: str, size: int) -> None:
    """Each rank of a world of one, two and four runs the contract suite at the same time."""
    assert_passed(engine, size)


@pytest.mark.parametrize("engine", ["ddp", "ddp, layer-wise", "fsdp1", "fsdp2"])
def test_two_processes_pass_the_contract(engine: str) -> None:
    """Two processes pass, for each engine."""
    assert_passed(engine, 2)
