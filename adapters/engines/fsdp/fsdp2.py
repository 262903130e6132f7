"""torch's `fully_shard`: every process holds a part of each parameter, and gathers a layer's when it computes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from math import prod
from typing import Any, cast

import torch
import torch.distributed as dist
from attrs import define, field, frozen
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from hexloop.adapters.engines.fsdp.units import Formats, Units, give_memory, recompute, same_as_first
from hexloop.ports.parallelism import ParallelismCapabilities, Spread


@frozen
class Fsdp2Options:
    """What `fully_shard` is told.

    units: the modules that are gathered and freed one by one. mesh: how many copies of the model there are, and over
    how many processes each is spread; None is one copy over all.
    reshard_after_forward: free a layer's weights after its forward pass, and gather them anew in the backward pass.
    offload: keep weights, gradients and moments in host memory. recompute: forget a layer's activations, likewise.
    prefetch: gather the next layer's weights while a layer is computed.
    synchronise_each: let gradients meet after every micro-batch. Otherwise they meet in a window's last one, until when
    every process keeps those of the whole model.
    """

    units: Units = field(factory=Units)
    mesh: tuple[int, int] | None = None
    reshard_after_forward: bool = True
    formats: Formats = field(factory=Formats)
    offload: bool = False
    recompute: bool = False
    prefetch: bool = False
    synchronise_each: bool = True


@define(eq=False)
class Fsdp2:
    """Answers the Parallelism port, and Sharding. Parameters are DTensors, split by rows over the processes.

    Each process computes its share of the window's loss; torch takes the mean of the gradients, so the shares are
    multiplied by the number of processes first.
    device: where layers are computed. world_size: how many processes there are.
    """

    device: torch.device
    world_size: int
    options: Fsdp2Options = field(factory=Fsdp2Options)
    _sharded: list[FSDPModule] = field(factory=list, init=False)
    _sharing: dist.ProcessGroup | None = field(default=None, init=False)

    capabilities = ParallelismCapabilities("fsdp2", processes=True, sharded=True)

    def prepare(self, model: Any, make_optimizer: Callable[[Any], Any]) -> tuple[Any, Any]:
        """Shard the module in place; every process begins with the weights of the first."""
        if not isinstance(model, FSDPModule):
            self._shard(model)
        _free(model)
        self._sharded[:], self._sharing = [model], _group_of(model)
        return model, make_optimizer(model)

    def _shard(self, model: nn.Module) -> None:
        options = self.options
        units = options.units.of(model)
        if options.recompute:
            recompute(units or [model])
        how: dict[str, Any] = {
            "mesh": self._mesh(),
            "reshard_after_forward": options.reshard_after_forward,
            "mp_policy": MixedPrecisionPolicy(
                options.formats.parameters, options.formats.gradients, options.formats.outputs
            ),
            "offload_policy": self._offloading(),
        }
        give_memory(model)
        for part in (*units, model):  # so that no process has more than one of them whole, but for the first
            same_as_first(part, self.device)
            fully_shard(part, **how)
        if options.prefetch:
            in_order = [unit for unit in model.modules() if isinstance(unit, FSDPModule) and unit is not model]
            for unit, after in pairwise(in_order):
                unit.set_modules_to_forward_prefetch([after])

    def _mesh(self) -> DeviceMesh:
        if self.options.mesh is None:
            return init_device_mesh(self.device.type, (self.world_size,))
        return init_device_mesh(self.device.type, self.options.mesh, mesh_dim_names=("copies", "shards"))

    def _offloading(self) -> OffloadPolicy:
        return CPUOffloadPolicy(pin_memory=self.device.type != "cpu") if self.options.offload else OffloadPolicy()

    def synchronise(self, last_of_window: bool) -> None:
        """Let gradients meet in every backward pass or, where it is so chosen, in the window's last alone."""
        for model in self._sharded:
            model.set_requires_gradient_sync(last_of_window or self.options.synchronise_each)

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of the mean over all processes of world_size times their shares: of the sum of these."""
        (loss * self.world_size).backward()  # type: ignore[no-untyped-call]

    def unwrap(self, model: Any) -> Any:
        """The module itself, which was sharded in place."""
        return model

    def spreads(self, model: Any) -> bool:
        """Whether the module is sharded."""
        return isinstance(model, FSDPModule)

    @property
    def layout(self) -> RowLayout:
        """Where its tensors lie."""
        assert self._sharing is not None, "no model is prepared"
        return RowLayout(dist.get_rank(), self.world_size, self._sharing)


def _free(model: nn.Module) -> None:
    """Let go of gathered weights: those of a forward pass without a backward pass stay in the parameters' place."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _group_of(model: nn.Module) -> dist.ProcessGroup:
    """The processes that hold one copy of the model between them, of which none has gathered weights."""
    mesh = next(parameter.device_mesh for parameter in model.parameters() if isinstance(parameter, DTensor))
    return mesh.get_group(mesh.ndim - 1)


@frozen
class RowLayout:
    """Answers `hexloop.ports.parallelism.Layout` for DTensors that are split by rows. group: who share a copy."""

    rank: int
    world_size: int
    group: dist.ProcessGroup

    uneven = False

    def state(self, model: nn.Module) -> Mapping[str, Any]:
        """The state dict, whose parameters are those of the optimizer."""
        return model.state_dict(keep_vars=True)

    def parameters(self, model: nn.Module) -> Mapping[str, Tensor]:
        """As the model names them."""
        _free(model)
        return dict(model.named_parameters())

    def spread(self, tensor: Tensor, parameter: Tensor) -> Spread | None:
        """By rows, in chunks of as many as make all but the last chunks equal."""
        if not isinstance(tensor, DTensor):
            return None
        *_, shards = tensor.device_mesh.shape
        rows, width = tensor.shape[0], prod(tensor.shape[1:])
        chunk = -(-rows // shards)
        bounds = [min(number * chunk, rows) * width for number in range(shards + 1)]
        first = tensor.device_mesh.mesh.reshape(-1, shards)[0].tolist()
        run = {rank: (bounds[number], bounds[number + 1] - bounds[number]) for number, rank in enumerate(first)}
        place = tensor.device_mesh.get_local_rank(tensor.device_mesh.ndim - 1)
        own = bounds[place], bounds[place + 1] - bounds[place]
        return Spread(tuple(tensor.shape), tuple(run.get(rank, (0, 0)) for rank in range(self.world_size)), own)

    def local(self, tensor: Tensor) -> Tensor:
        """The process's rows."""
        assert isinstance(tensor, DTensor)
        rows: Tensor = cast("DTensor", tensor.detach()).to_local()
        return rows.view(-1)

    def like(self, parameter: Tensor, local: Tensor) -> Tensor:
        """A DTensor of these rows, on the device that the parameter's lie on."""
        made = torch.empty_like(parameter.detach(), dtype=local.dtype)
        self.local(made).copy_(local)
        return made

    def norm(self, own: Tensor) -> Tensor:
        """The norm of all rows, from that of this process's."""
        squared = own.to(torch.float32).square()
        dist.all_reduce(squared, group=self.group)
        return squared.sqrt()
