"""FSDP 1: torch's `FullyShardedDataParallel`. A unit's parameters form one flat parameter, sharded over the ranks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist
from attrs import define, field
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
)
from torch.distributed.fsdp._runtime_utils import _reshard
from torch.distributed.fsdp.wrap import CustomPolicy

from hexloop.adapters.engines.fsdp.units import Fsdp, allocate_meta_tensors, broadcast_from_rank0
from hexloop.adapters.trainable.torch.layouts import WHOLE, norm_over
from hexloop.adapters.trainable.torch.names import COMPILED, Location, tensor_locations
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.mesh import Mesh, Spread, held_in_runs
from hexloop.ports.parallelism import ParallelismCapabilities


@define(eq=False)
class Fsdp1(Fsdp):
    """Parallelism and Sharding adapter for `FullyShardedDataParallel`. The model's own parameters stay, as views."""

    _wrapped: FullyShardedDataParallel | None = field(default=None, init=False)
    _layout: FlatLayout | None = field(default=None, init=False)
    _without_sync: ExitStack = field(factory=ExitStack, init=False)

    capabilities = ParallelismCapabilities("fsdp1", processes=True, sharded=True, flattens=True)

    def prepare(self, model: Any, make_optimizer: Callable[[Any], Any]) -> tuple[Any, Any]:
        """Wrap the module, after copying the weights of rank 0 to every rank.

        Raises ConfigurationError if the model's state dict has entries that are not parameters or buffers.
        """
        self._without_sync.close()
        if not self.spreads(model):
            allocate_meta_tensors(model)
            broadcast_from_rank0(model, self.device)
            locations = _locations(model)
            shapes = {name: tuple(each.shape) for name, each in WHOLE.parameters(model).items()}
            self._wrapped = self._wrap(model)
            self._layout = FlatLayout(self.mesh, locations, list(shapes), self._shards)
            self._layout.exchange(shapes, self._wrapped)
        self.layout.free()
        return self._wrapped, make_optimizer(self._wrapped)

    @property
    def _shards(self) -> int:
        """The number of ranks that hold one replica together."""
        return self.mesh.along("shard").size

    @property
    def _strategy(self) -> str:
        """The chosen strategy. A hybrid with one shard becomes no_shard: torch would not reduce its gradients."""
        return "no_shard" if self._shards == 1 else self.options.strategy

    def _wrap(self, model: nn.Module) -> FullyShardedDataParallel:
        options = self.options
        chosen = set(map(id, self.units_of(model)))
        if any(id(each._modules.get(COMPILED)) in chosen for each in model.modules()):
            raise ConfigurationError(
                "FSDP 1 cannot shard layers that were compiled by themselves; set version=2 in fsdp_config, or pass "
                "the model without torch.compile and set torch_compile=True."
            )
        formats = options.formats
        prefetch = options.backward_prefetch
        mesh = None
        if self._strategy.startswith("hybrid"):
            assert options.mesh is not None
            mesh = init_device_mesh(self.device.type, options.mesh, mesh_dim_names=("replicas", "shards"))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning)  # torch recommends DDP instead of NO_SHARD
            return FullyShardedDataParallel(
                model,
                sharding_strategy=getattr(ShardingStrategy, _TORCH_NAMES.get(self._strategy, self._strategy).upper()),
                auto_wrap_policy=CustomPolicy(lambda module: id(module) in chosen),
                mixed_precision=MixedPrecision(formats.parameters, formats.gradients, formats.buffers),
                cpu_offload=CPUOffload(True) if options.offload else None,
                backward_prefetch=None if prefetch == "no_prefetch" else getattr(BackwardPrefetch, prefetch.upper()),
                forward_prefetch=options.forward_prefetch,
                limit_all_gathers=options.limit_all_gathers,
                use_orig_params=True,
                device_id=self.device,
                device_mesh=mesh,
            )

    def synchronise(self, last_of_window: bool) -> None:
        """Reduce gradients in every backward pass or, if so configured, in the window's last one only."""
        self._without_sync.close()
        if self._wrapped is not None and not (last_of_window or self.options.synchronise_each):
            self._without_sync.enter_context(self._wrapped.no_sync())

    def unwrap(self, model: Any) -> Any:
        """Return the wrapped module."""
        return model.module if isinstance(model, FullyShardedDataParallel) else model

    def spreads(self, model: Any) -> bool:
        """Return whether it is the module that was wrapped last."""
        return self._wrapped is not None and self._wrapped.module is model

    @property
    def layout(self) -> FlatLayout:
        """The layout of the model that was prepared last."""
        assert self._layout is not None, "no model is prepared"
        return self._layout


_TORCH_NAMES = {"hybrid_shard_zero2": "_hybrid_shard_zero2"}


@define(eq=False)
class FlatLayout:
    """Layout of parameters that are views of flat parameters, each of which is split over the ranks.

    locations: for each name in the state dict, the attribute that holds the tensor. names: the parameters.
    shards: the number of ranks that hold one replica together.
    """

    mesh: Mesh
    locations: Mapping[str, Location]
    names: Iterable[str]
    shards: int
    _group: Any = field(default=None, init=False)
    _units: list[Any] = field(factory=list, init=False)
    _spreads: dict[int, Spread] = field(factory=dict, init=False)

    whole = False
    uneven = True

    def exchange(self, shapes: Mapping[str, tuple[int, ...]], wrapped: FullyShardedDataParallel) -> None:
        """Exchange how many elements of each parameter, whose whole shapes are given, the ranks hold. Collective."""
        self._group = group = wrapped.process_group
        if self.shards == 1:
            return
        self._units = [unit for unit in FullyShardedDataParallel.fsdp_modules(wrapped) if unit._handle is not None]
        lengths = torch.tensor([parameter.numel() for parameter in self.parameters().values()])
        lengths = lengths.to(next(iter(self.parameters().values())).device)
        gathered = [torch.empty_like(lengths) for _ in range(self.shards)]
        dist.all_gather(gathered, lengths, group=group)
        table = torch.stack(gathered, 1).tolist()
        for (name, parameter), row in zip(self.parameters().items(), table, strict=True):
            self._spreads[id(parameter)] = held_in_runs(shapes[name], self.mesh, "shard", row)

    def free(self) -> None:
        """Free gathered flat parameters, for which torch has no public function.

        A forward pass that no backward pass followed leaves them, and torch would compute with them although the
        shards have changed since.
        """
        for unit in self._units:
            has_run = unit._is_root is not None  # before the first forward pass nothing is gathered
            if has_run and not unit._handle.needs_unshard():
                _reshard(unit, unit._handle, True)

    def state(self, model: nn.Module | None = None) -> Mapping[str, Any]:
        """Return the tensors under their names in the state dict before the module was wrapped."""
        self.free()
        return {name: getattr(module, leaf) for name, (module, leaf) in self.locations.items()}

    def parameters(self, model: nn.Module | None = None) -> Mapping[str, Tensor]:
        """Return the parameters under their names before the module was wrapped."""
        return {name: getattr(*self.locations[name]) for name in self.names}

    def spread(self, tensor: Tensor, parameter: Tensor) -> Spread | None:
        """Return the elements of the parameter that fall into each rank's shard of the flat parameter."""
        return self._spreads.get(id(parameter)) if tensor.shape == parameter.shape else None

    def local(self, tensor: Tensor) -> Tensor:
        """Return this rank's elements, flat."""
        return tensor.detach().view(-1)

    def like(self, parameter: Tensor, local: Tensor) -> Tensor:
        """Return this rank's elements in the parameter's local shape and on its device."""
        return local.view(parameter.shape).to(parameter.device)

    def norm(self, own: Tensor) -> Tensor:
        """Return the norm over all shards, from the norm of this rank's."""
        if self.shards == 1:
            return own
        return norm_over(own.to(next(iter(self.parameters().values())).device), self._group)


def _locations(model: nn.Module) -> dict[str, Location]:
    """Return, for each name in the state dict, the module that holds the tensor and its attribute."""
    found, unknown = tensor_locations(model)
    if unknown:
        raise ConfigurationError(
            f"You chose FSDP 1 for a model whose state dict has {', '.join(unknown)}, which are not parameters or "
            "buffers of its modules, so no checkpoint would hold them; set version=2 in fsdp_config."
        )
    return found
