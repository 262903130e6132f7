"""The contracts of engines and collectives on a GPU, over nccl, in a world of one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from hexloop.adapters.collectives.torch import TorchCollectives
from hexloop.adapters.device.torch import CudaDevice
from hexloop.adapters.engines.ddp.engine import Ddp
from hexloop.adapters.engines.fsdp.engine import Fsdp2
from hexloop.adapters.engines.fsdp.fsdp1 import Fsdp1
from hexloop.adapters.engines.fsdp.units import FsdpOptions
from hexloop.adapters.trainable.torch.layouts import WHOLE
from hexloop.adapters.trainable.torch.trainable import ModelLoss, TorchTrainable, exact_item_sum
from hexloop.app.testing.contracts.processes import CollectivesContract
from hexloop.ports.collectives import Collectives
from hexloop.ports.device import Device
from hexloop.ports.engine import Engine
from hexloop.ports.parallelism import Parallelism, Sharding
from tests.engines.test_parallelism import LAYERS, TESTS, Curve, OnCurve, passed_by

Result = TypeVar("Result")

GPU = torch.device("cuda", 0)

ENGINES: Mapping[str, Callable[[], Parallelism[Tensor]]] = {
    "ddp": lambda: Ddp(GPU, 1),
    "fsdp1": lambda: Fsdp1(GPU, 1, FsdpOptions(LAYERS)),
    "fsdp1, gradients alone": lambda: Fsdp1(GPU, 1, FsdpOptions(LAYERS, "shard_grad_op")),
    "fsdp2": lambda: Fsdp2(GPU, 1, FsdpOptions(LAYERS)),
    "fsdp2, on the host": lambda: Fsdp2(GPU, 1, FsdpOptions(LAYERS, offload=True)),
}


@pytest.fixture(scope="module", autouse=True)
def world(gpu: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A process group of one process, over nccl for tensors on the GPU, and gloo for those in host memory."""
    torch.cuda.set_device(GPU)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl", init_method=f"file://{tmp_path_factory.mktemp('world')}/store", rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()


class OnGpu(OnCurve):
    """An engine whose model and batches are on the GPU."""

    def __init__(self, name: str) -> None:
        super().__init__(name, 1)

    def engine(self) -> Engine[Any, Tensor]:
        return Engine(self.name, lambda args, device: ENGINES[self.name]())

    def device(self) -> Device:
        return CudaDevice()

    def model(self) -> nn.Module:
        return Curve().to(GPU)

    def trainable(self, model: nn.Module, optimizer: Any) -> TorchTrainable:
        sharded = self.made.capabilities.sharded
        layout = cast("Sharding[Tensor, nn.Module, Tensor]", self.made).layout if sharded else WHOLE
        return TorchTrainable(model, optimizer, ModelLoss(), item_sum=exact_item_sum(1, GPU), layout=layout)

    def batch(self) -> dict[str, Tensor]:
        return {name: values.to(GPU) for name, values in super().batch().items()}


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_passes_the_contract(engine: str) -> None:
    """Each engine passes every test of its contract over nccl."""
    assert passed_by(OnGpu(engine)) == TESTS


class TestCollectivesOverNccl(CollectivesContract):
    """A world of one process whose default backend for the GPU is nccl."""

    world_size = 1

    def run(self, function: Callable[[Collectives], Result]) -> list[Result]:
        return [function(TorchCollectives(20.0))]
