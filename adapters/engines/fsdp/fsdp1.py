"""torch's FullyShardedDataParallel: a layer's parameters lie in one flat row, of which every process holds a piece."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from attrs import define, field, frozen
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

from hexloop.adapters.engines.fsdp.units import Formats, Units, give_memory, recompute, same_as_first
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.parallelism import ParallelismCapabilities, Spread


@frozen
class Fsdp1Options:
    """What FullyShardedDataParallel is told.

    units: the modules that are gathered and freed one by one. strategy: as torch names it, in small letters.
    mesh: for the hybrid strategies, how many copies of the model there are, and how many processes share one.
    backward_prefetch: when the next layer's weights are gathered, as torch names it, in small letters; None: never.
    offload: keep weights, gradients and moments in host memory. recompute: forget a layer's activations, and compute
    them anew in the backward pass.
    synchronise_each: let gradients meet after every micro-batch. Otherwise they meet in a window's last one, until when
    every process keeps those of the whole model.
    """

    units: Units = field(factory=Units)
    strategy: str = "full_shard"
    mesh: tuple[int, int] | None = None
    formats: Formats = field(factory=Formats)
    offload: bool = False
    recompute: bool = False
    backward_prefetch: str | None = "backward_pre"
    forward_prefetch: bool = False
    limit_all_gathers: bool = True
    synchronise_each: bool = True


@define(eq=False)
class Fsdp1:
    """Answers the Parallelism port, and Sharding. The model's own parameters stay, as views of what lies here.

    Each process computes its share of the window's loss; torch takes the mean of the gradients, so the shares are
    multiplied by the number of processes first.
    device: where layers are computed. world_size: how many processes there are.
    """

    device: torch.device
    world_size: int
    options: Fsdp1Options = field(factory=Fsdp1Options)
    _wrapped: FullyShardedDataParallel | None = field(default=None, init=False)
    _layout: FlatLayout | None = field(default=None, init=False)
    _apart: ExitStack = field(factory=ExitStack, init=False)

    capabilities = ParallelismCapabilities("fsdp1", processes=True, sharded=True)

    def prepare(self, model: Any, make_optimizer: Callable[[Any], Any]) -> tuple[Any, Any]:
        """Wrap the module; every process begins with the weights of the first.

        Raises ConfigurationError where the model's state is not its parameters and buffers alone.
        """
        self._apart.close()
        if not self.spreads(model):
            give_memory(model)
            same_as_first(model, self.device)
            places = _places(model)
            names = [name for name, _ in model.named_parameters()]
            shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
            self._wrapped = self._wrap(model)
            self._layout = FlatLayout(dist.get_rank(), self.world_size, places, names, self._shards)
            self._layout.look(shapes, self._wrapped)
        self.layout.free()
        return self._wrapped, make_optimizer(self._wrapped)

    @property
    def _shards(self) -> int:
        """How many processes share a copy of the model."""
        if self.options.mesh is not None:
            return self.options.mesh[1]
        return 1 if self.options.strategy == "no_shard" else self.world_size

    @property
    def _strategy(self) -> str:
        """As it is chosen, but for a hybrid that splits nothing: torch would let no gradients meet then."""
        return "no_shard" if self._shards == 1 else self.options.strategy

    def _wrap(self, model: nn.Module) -> FullyShardedDataParallel:
        options = self.options
        units = options.units.of(model)
        if options.recompute:
            recompute(units or [model])
        chosen = set(map(id, units))
        formats = options.formats
        prefetch = options.backward_prefetch
        mesh = None
        if self._strategy.startswith("hybrid"):
            assert options.mesh is not None
            mesh = init_device_mesh(self.device.type, options.mesh, mesh_dim_names=("copies", "shards"))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning)  # torch would have NO_SHARD be DDP
            return FullyShardedDataParallel(
                model,
                sharding_strategy=getattr(ShardingStrategy, _TORCH_NAMES.get(self._strategy, self._strategy).upper()),
                auto_wrap_policy=CustomPolicy(lambda module: id(module) in chosen),
                mixed_precision=MixedPrecision(formats.parameters, formats.gradients, formats.buffers),
                cpu_offload=CPUOffload(True) if options.offload else None,
                backward_prefetch=None if prefetch is None else getattr(BackwardPrefetch, prefetch.upper()),
                forward_prefetch=options.forward_prefetch,
                limit_all_gathers=options.limit_all_gathers,
                use_orig_params=True,
                device_id=self.device,
                device_mesh=mesh,
            )

    def synchronise(self, last_of_window: bool) -> None:
        """Let gradients meet in every backward pass or, where it is so chosen, in the window's last alone."""
        self._apart.close()
        if self._wrapped is not None and not (last_of_window or self.options.synchronise_each):
            self._apart.enter_context(self._wrapped.no_sync())

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of the mean over all processes of world_size times their shares: of the sum of these."""
        (loss * self.world_size).backward()  # type: ignore[no-untyped-call]

    def unwrap(self, model: Any) -> Any:
        """The module within."""
        return model.module if isinstance(model, FullyShardedDataParallel) else model

    def spreads(self, model: Any) -> bool:
        """Whether it is the module that was wrapped last."""
        return self._wrapped is not None and self._wrapped.module is model

    @property
    def layout(self) -> FlatLayout:
        """Where its tensors lie."""
        assert self._layout is not None, "no model is prepared"
        return self._layout


_TORCH_NAMES = {"hybrid_shard_zero2": "_hybrid_shard_zero2"}

Place = tuple[nn.Module, str]
"""A module, and the name of an attribute of it."""


@define(eq=False)
class FlatLayout:
    """Answers `hexloop.ports.parallelism.Layout` for parameters that are views of flat rows, each split into pieces.

    places: where each tensor of the state is found. names: the parameters. shards: the processes that share a copy.
    """

    rank: int
    world_size: int
    places: Mapping[str, Place]
    names: Iterable[str]
    shards: int
    _group: Any = field(default=None, init=False)
    _units: list[Any] = field(factory=list, init=False)
    _spreads: dict[int, Spread] = field(factory=dict, init=False)

    uneven = True

    def look(self, shapes: Mapping[str, tuple[int, ...]], wrapped: FullyShardedDataParallel) -> None:
        """Find out how the parameters, whose whole shapes are given, lie over the processes. Collective."""
        self._group = group = wrapped.process_group
        if self.shards == 1:
            return
        self._units = [unit for unit in FullyShardedDataParallel.fsdp_modules(wrapped) if unit._handle is not None]
        lengths = torch.tensor([parameter.numel() for parameter in self.parameters().values()])
        lengths = lengths.to(next(iter(self.parameters().values())).device)
        of_all = [torch.empty_like(lengths) for _ in range(self.shards)]
        dist.all_gather(of_all, lengths, group=group)
        place = dist.get_rank(group)
        table = torch.stack(of_all, 1).tolist()
        for (name, parameter), row in zip(self.parameters().items(), table, strict=True):
            runs = list(zip(accumulate(row, initial=0), row, strict=False))
            copies = [(0, 0)] * (self.world_size - self.shards)
            self._spreads[id(parameter)] = Spread(shapes[name], (*runs, *copies), runs[place])

    def free(self) -> None:
        """Let go of gathered rows. Those of a forward pass without a backward pass stay, and torch would compute with
        them though the pieces have changed since; it has no public function for it.
        """
        for unit in self._units:
            begun = unit._is_root is not None  # before the first forward pass there is no row
            if begun and not unit._handle.needs_unshard():
                _reshard(unit, unit._handle, True)

    def state(self, model: nn.Module | None = None) -> Mapping[str, Any]:
        """By the names of the state dict before the module was wrapped."""
        self.free()
        return {name: getattr(module, leaf) for name, (module, leaf) in self.places.items()}

    def parameters(self, model: nn.Module | None = None) -> Mapping[str, Tensor]:
        """By their names before the module was wrapped."""
        return {name: getattr(*self.places[name]) for name in self.names}

    def spread(self, tensor: Tensor, parameter: Tensor) -> Spread | None:
        """A piece of each parameter lies on the processes whose pieces of the flat row it falls to."""
        return self._spreads.get(id(parameter)) if tensor.shape == parameter.shape else None

    def local(self, tensor: Tensor) -> Tensor:
        """The piece."""
        return tensor.detach().view(-1)

    def like(self, parameter: Tensor, local: Tensor) -> Tensor:
        """The piece, on the device that the parameter's lies on."""
        return local.view(parameter.shape).to(parameter.device)

    def norm(self, own: Tensor) -> Tensor:
        """The norm of all pieces, from that of this process's."""
        if self.shards == 1:
            return own
        squared = own.to(self._device, torch.float32).square()
        dist.all_reduce(squared, group=self._group)
        return squared.sqrt()

    @property
    def _device(self) -> torch.device:
        return next(iter(self.parameters().values())).device


def _places(model: nn.Module) -> dict[str, Place]:
    """For each name of the state dict, the module that holds the tensor, and what it calls it."""
    found: dict[str, Place] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for leaf in (*module._parameters, *module._buffers):
            found[f"{prefix}.{leaf}" if prefix else leaf] = module, leaf
    state = model.state_dict()
    if unknown := [name for name in state if name not in found]:
        raise ConfigurationError(
            [
                f"You chose FSDP 1 for a model whose state holds {', '.join(unknown)}, which are no parameters or "
                "buffers of its modules, so no checkpoint would hold them; set version=2 in fsdp_config."
            ]
        )
    return {name: found[name] for name in state}
