"""The FSDP engine, and FSDP 2: torch's `fully_shard`. Each parameter is a DTensor whose rows are sharded over ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, cast

import torch
import torch.distributed as dist
from attrs import define, field, frozen
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from hexloop.adapters.engines.arguments import EngineArguments
from hexloop.adapters.engines.fsdp.fsdp1 import Fsdp1
from hexloop.adapters.engines.fsdp.options import consolidates, read_options
from hexloop.adapters.engines.fsdp.units import Fsdp, allocate_meta_tensors, broadcast_from_rank0
from hexloop.adapters.trainable.torch.layouts import ModuleLayout, norm_over
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.device import Device
from hexloop.ports.engine import Engine
from hexloop.ports.mesh import Dimensions, Sharded, Spread
from hexloop.ports.parallelism import Parallelism, ParallelismCapabilities


@define(eq=False)
class Fsdp2(Fsdp):
    """Parallelism and Sharding adapter for `fully_shard`."""

    _prepared: list[FSDPModule] = field(factory=list, init=False)
    _shard_group: dist.ProcessGroup | None = field(default=None, init=False)

    capabilities = ParallelismCapabilities("fsdp2", processes=True, sharded=True)

    def prepare(self, model: Any, make_optimizer: Callable[[Any], Any]) -> tuple[Any, Any]:
        """Shard the module in place, after copying the weights of rank 0 to every rank."""
        if not isinstance(model, FSDPModule):
            self._shard(model)
        _free(model)
        self._prepared[:], self._shard_group = [model], _shard_group_of(model)
        return model, make_optimizer(model)

    def _shard(self, model: nn.Module) -> None:
        options, formats, units = self.options, self.options.formats, self.units_of(model)
        arguments: dict[str, Any] = {
            "mesh": self._device_mesh(),
            "reshard_after_forward": options.reshard_after_forward,
            "mp_policy": MixedPrecisionPolicy(formats.parameters, formats.gradients, formats.outputs),
            "offload_policy": CPUOffloadPolicy(self.device.type != "cpu") if options.offload else OffloadPolicy(),
        }
        allocate_meta_tensors(model)
        for part in (*units, model):  # one at a time, so that no rank but rank 0 holds more than one unsharded unit
            broadcast_from_rank0(part, self.device)
            fully_shard(part, **arguments)
        if options.forward_prefetch:
            in_order = [unit for unit in model.modules() if isinstance(unit, FSDPModule) and unit is not model]
            for unit, following in pairwise(in_order):
                unit.set_modules_to_forward_prefetch([following])

    def _device_mesh(self) -> DeviceMesh:
        replicas, shards = (self.mesh.along(name).size for name in ("replicate", "shard"))
        if self.options.strategy != "no_shard" and self.options.mesh is None:
            return init_device_mesh(self.device.type, (shards,))
        return init_device_mesh(self.device.type, (replicas, shards), mesh_dim_names=("replicas", "shards"))

    def synchronise(self, last_of_window: bool) -> None:
        """Reduce gradients in every backward pass or, if so configured, in the window's last one only."""
        for model in self._prepared:
            model.set_requires_gradient_sync(last_of_window or self.options.synchronise_each)

    def unwrap(self, model: Any) -> Any:
        """Return the module itself, which was sharded in place."""
        return model

    def spreads(self, model: Any) -> bool:
        """Return whether the module is sharded."""
        return isinstance(model, FSDPModule)

    @property
    def layout(self) -> RowLayout:
        """The layout of the model that was prepared last."""
        assert self._shard_group is not None, "no model is prepared"
        return RowLayout(self.mesh, self._shard_group)


def _free(model: nn.Module) -> None:
    """Free gathered weights. A forward pass that no backward pass followed leaves them in place of the shards."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _shard_group_of(model: nn.Module) -> dist.ProcessGroup:
    """Return the ranks that hold one replica of the model together. No weights may be gathered."""
    mesh = next(parameter.device_mesh for parameter in model.parameters() if isinstance(parameter, DTensor))
    return mesh.get_group(mesh.ndim - 1)


@frozen
class RowLayout(ModuleLayout):
    """Layout of DTensors that are sharded by rows. group: the ranks that hold one replica together."""

    group: dist.ProcessGroup | None = None

    whole = False

    def parameters(self, model: nn.Module) -> Mapping[str, Tensor]:
        """Return the parameters under the model's names."""
        _free(model)
        return super().parameters(model)

    def spread(self, tensor: Tensor, parameter: Tensor) -> Spread | None:
        """Return how the rows are sharded: in equal chunks, of which the last ones may be smaller or empty."""
        if not isinstance(tensor, DTensor):
            return None
        return Spread(tuple(tensor.shape), self.mesh, (Sharded("shard"),))

    def local(self, tensor: Tensor) -> Tensor:
        """Return this rank's rows, without the class that weights have which are gathered in another format."""
        assert isinstance(tensor, DTensor)
        rows: Tensor = cast("DTensor", tensor.detach()).to_local()
        return rows if type(rows) is Tensor else torch.ops.aten.alias(rows)

    def like(self, parameter: Tensor, local: Tensor) -> Tensor:
        """Return a DTensor of these rows, on the parameter's device."""
        made = torch.zeros_like(parameter.detach(), dtype=local.dtype)  # plain, whatever class the weights have
        self.local(made).copy_(local.view_as(self.local(made)))
        return made

    def norm(self, own: Tensor) -> Tensor:
        """Return the norm over all ranks' rows, from the norm of this rank's."""
        return norm_over(own, self.group)


def make_fsdp(args: EngineArguments, device: Device) -> Parallelism[Tensor]:
    """Return the adapter. Raises ConfigurationError with all problems of the options."""
    options = read_options(args)
    if options.version == 2:
        return Fsdp2(torch.device(device.name), args.world_size, options)
    if options.offload and device.name == "cpu":
        raise ConfigurationError(
            "You chose FSDP 1 with offload on the CPU, where the weights are in host memory anyway; leave offload "
            "out, or set version=2 in fsdp_config."
        )
    return Fsdp1(torch.device(device.name), args.world_size, options)


def _dimensions(args: EngineArguments) -> Dimensions:
    return read_options(args).dimensions(args.world_size)


ENGINE: Engine[EngineArguments, Tensor] = Engine(
    "fsdp", make_fsdp, mesh=_dimensions, consolidates=consolidates, exchanges_host_tensors=True
)
