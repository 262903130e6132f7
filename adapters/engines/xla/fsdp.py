"""FSDP on XLA in its first version: torch_xla's `XlaFullyShardedDataParallel`.

Each process holds a shard of every parameter: a run of its elements or, with `shard_param_on_dim_0`, of its rows. The
last shards are filled up with zeros. torch_xla keeps the shards in its wrappers and leaves the model without
parameters; here they become the parameters of the user's model again, under its own names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from attrs import define, field
from torch import Tensor, nn
from torch.nn.functional import pad

from hexloop.adapters.engines.arguments import EngineArguments
from hexloop.adapters.engines.xla.engine import (
    LAYOUT,
    Xla,
    check_replicas,
    recompute,
    require_xla,
    sum_over_replicas,
)
from hexloop.adapters.engines.xla.options import XlaFsdpOptions, read_options
from hexloop.adapters.trainable.torch.names import Location, tensor_locations
from hexloop.ports.device import Device
from hexloop.ports.engine import Engine, RunFacts
from hexloop.ports.mesh import Mesh, Sharded, Spread, flat_mesh
from hexloop.ports.parallelism import ParallelismCapabilities


@define(eq=False)
class XlaFsdp1(Xla):
    """Parallelism and Sharding adapter for `XlaFullyShardedDataParallel`.

    Each rank computes its share of the window's loss. torch_xla averages the gradients over the ranks in every backward
    pass, so the shares are multiplied by the number of ranks first.

    rank: of this process. replicas: the number of processes.
    """

    rank: int = 0
    options: XlaFsdpOptions = field(factory=XlaFsdpOptions, kw_only=True)
    _layout: ShardLayout | None = field(default=None, init=False)

    @property
    def capabilities(self) -> ParallelismCapabilities:
        """Several processes, even if there is one."""
        return ParallelismCapabilities(
            "xla_fsdp",
            processes=True,
            sharded=True,
            own_exchange=True,
            compiles=False,
            averages=False,
            flattens=True,
        )

    def prepare(self, model: Any, make_optimizer: Callable[[Any], Any]) -> tuple[Any, Any]:
        """Shard the module, after copying the weights of rank 0 to every rank."""
        if LAYOUT not in vars(model):
            if self.replicas > 1:
                _broadcast(model)
            locations, _ = tensor_locations(model)
            parameters = {
                name: location for name, location in locations.items() if location[1] in location[0]._parameters
            }
            mesh = flat_mesh(self.rank, self.replicas, "shard")
            vars(model)[LAYOUT] = ShardLayout(mesh, self._wrap(model), locations, frozenset(parameters))
        self._layout = vars(model)[LAYOUT]
        assert self._layout is not None
        self._layout.free()
        wrapped, optimizer = self._layout.wrapped, make_optimizer(self._layout.wrapped)
        device = self._device
        if self._hook is not None:
            self._hook.remove()
        self._hook = None if optimizer is None else optimizer.register_step_post_hook(lambda *_: device.flush())
        return wrapped, optimizer

    def _wrap(self, model: nn.Module) -> Any:
        from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel

        units = self.options.units.of(model)
        if self.options.recompute:
            recompute(model, units)
        chosen = set(map(id, units))
        wrapped = XlaFullyShardedDataParallel(
            model, auto_wrap_policy=partial(_is_chosen, chosen), **dict(self.options.settings)
        )
        for wrapper in _wrappers(wrapped):
            _show_shards(wrapper)
        return wrapped

    def synchronise(self, last_of_window: bool) -> None:
        """Note whether the optimizer step follows, and free what an evaluation left: all steps run the same program."""
        super().synchronise(last_of_window)
        if self._layout is not None:
            self._layout.free()

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of the sum over the ranks: the mean of `replicas` times their shares."""
        (loss * self.replicas).backward()  # type: ignore[no-untyped-call]
        if not self._is_last:
            self._device.flush()

    def unwrap(self, model: Any) -> Any:
        """Return the wrapped module."""
        return self._layout.model if self._layout is not None and model is self._layout.wrapped else model

    def spreads(self, model: Any) -> bool:
        """Return whether this adapter has sharded the module, or prepared it for a further run."""
        return self._layout is not None and self._layout.model is model

    @property
    def layout(self) -> ShardLayout:
        """The layout of the model that was prepared last."""
        assert self._layout is not None, "no model is prepared"
        return self._layout


def _is_chosen(chosen: set[int], module: nn.Module, recurse: bool, unwrapped_params: int) -> bool:
    """Return whether a module is a unit; its children are looked at in any case."""
    return recurse or id(module) in chosen


def _wrappers(wrapped: nn.Module) -> list[Any]:
    from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel

    return [each for each in wrapped.modules() if isinstance(each, XlaFullyShardedDataParallel)]


def _show_shards(wrapper: Any) -> None:
    """Make the shards of a wrapper the parameters of the modules that they are of, instead of its own.

    The forward pass still finds the gathered weights, which torch_xla makes plain attributes.
    """
    for shard, (_, module, leaf) in zip(wrapper.sharded_params, wrapper.full_param_infos, strict=True):
        del wrapper._parameters[shard._name]
        module._parameters[leaf] = shard
    for _, _, module, leaf, first, its_leaf in wrapper.shared_full_param_infos:
        module._parameters[leaf] = first._parameters[its_leaf]


@define(eq=False)
class ShardLayout:
    """Layout of parameters that are shards.

    wrapped: torch_xla's wrapper of the model. locations: for each name in the state dict, the attribute that holds the
    tensor. names: those of parameters.
    """

    mesh: Mesh
    wrapped: Any
    locations: Mapping[str, Location]
    names: frozenset[str]
    _wrappers: list[Any] = field(init=False)

    whole = False
    uneven = False

    def __attrs_post_init__(self) -> None:
        self._wrappers = _wrappers(self.wrapped)

    @property
    def model(self) -> nn.Module:
        """The user's model."""
        module: nn.Module = self.wrapped.module.module
        return module

    def free(self) -> None:
        """Free gathered weights: a forward pass without a backward pass leaves them, and shards may change since."""
        for wrapper in self._wrappers:
            if wrapper.has_full_params:
                wrapper._free_full_params(apply_opt_barrier=False)

    def state(self, model: nn.Module | None = None) -> Mapping[str, Any]:
        """Return shards and buffers under their names in the state dict before the module was sharded."""
        self.free()
        return {
            name: module._parameters[leaf] if name in self.names else getattr(module, leaf)
            for name, (module, leaf) in self.locations.items()
        }

    def parameters(self, model: nn.Module | None = None) -> Mapping[str, Tensor]:
        """Return the shards under the names of their parameters, each under one name."""
        found: dict[int, tuple[str, Tensor]] = {}
        for name, (module, leaf) in self.locations.items():
            if name in self.names and (shard := module._parameters[leaf]) is not None:
                found.setdefault(id(shard), (name, shard))
        return dict(found.values())

    def spread(self, tensor: Tensor, parameter: Tensor) -> Spread | None:
        """Return the elements, or the rows, of the parameter in each rank's shard."""
        whole = _whole_shape(parameter)
        if whole is None or tensor.shape != parameter.shape:
            return None
        tensor._orig_size = torch.Size(whole)  # type: ignore[attr-defined]  # of a moment, for `local`
        return spread_of(whole, tuple(tensor.shape), self.mesh)

    def local(self, tensor: Tensor) -> Tensor:
        """Return this rank's elements of a shard, without those that fill it up; a gradient as it is.

        The gradient of what fills a shard up is 0, and adds nothing to a norm.
        """
        whole = _whole_shape(tensor)
        if whole is None:
            return tensor.detach()
        return tensor.detach()[: spread_of(whole, tuple(tensor.shape), self.mesh).own.lengths[0]]

    def like(self, parameter: Tensor, local: Tensor) -> Tensor:
        """Return a shard like that of a parameter, from this rank's elements; zeros fill it up."""
        rows = local.view(-1, *parameter.shape[1:])
        return pad(rows, (0, 0) * (rows.ndim - 1) + (0, parameter.shape[0] - len(rows))).to(parameter.device)

    def norm(self, own: Tensor) -> Tensor:
        """Return the norm over all ranks' shards, from the norm of this rank's."""
        if self.mesh.size == 1:
            return own
        squared = own.to(torch.float32).square()
        sum_over_replicas([squared])
        return squared.sqrt()


def _whole_shape(tensor: object) -> tuple[int, ...] | None:
    """Return the shape of the parameter that a tensor is a shard of; None if it is not a shard."""
    size = getattr(tensor, "_orig_size", None)
    return None if size is None else tuple(size)


def spread_of(whole: tuple[int, ...], shard: tuple[int, ...], mesh: Mesh) -> Spread:
    """Return how a parameter is distributed: in runs of elements if the shards have one dimension, else in rows.

    whole: its shape. shard: that of each shard, of which the last ones are filled up, or hold nothing else.
    """
    by_rows = len(shard) > 1
    length = whole[0] if by_rows else prod(whole)
    bounds = tuple(min(rank * shard[0], length) for rank in range(mesh.size + 1))
    return Spread(whole, mesh, (Sharded("shard", 0, bounds),), flat=not by_rows)


def _broadcast(model: nn.Module) -> None:
    """Copy the parameters and buffers of rank 0 to every rank, one at a time."""
    with torch.no_grad():
        for tensor in {id(each): each for each in (*model.parameters(), *model.buffers())}.values():
            sent = tensor.detach().cpu().contiguous()
            dist.broadcast(sent, 0)
            tensor.copy_(sent)


# The engine


def make_xla_fsdp1(args: EngineArguments, device: Device) -> XlaFsdp1:
    """Return the adapter.

    Raises ConfigurationError with all problems of the options, or if XLA does not connect the processes of the run.
    """
    options = read_options(args)
    check_replicas(args)
    return XlaFsdp1(device, args.world_size, args.process_index, options=options)


def problems_with(args: EngineArguments, facts: RunFacts) -> list[str]:
    """Return what torch_xla cannot shard of a model."""
    model = facts.model
    if not isinstance(model, nn.Module) or LAYOUT in vars(model):
        return []
    problems = []
    others = sorted({str(each.dtype) for each in model.parameters() if each.dtype != torch.float32})
    if others:
        problems.append(
            f"FSDP on XLA shards parameters of torch.float32, but the model has some of {', '.join(others)}; load it "
            "in float32, and set compute_dtype in xla_fsdp_settings to the format to compute in."
        )
    if any(each.is_meta for each in model.parameters()):
        problems.append("FSDP on XLA shards weights, but the model is on torch's meta device; create it on the CPU.")
    if unknown := tensor_locations(model)[1]:
        problems.append(
            f"You chose FSDP on XLA for a model whose state dict has {', '.join(unknown)}, which are not parameters or "
            "buffers of its modules, so no checkpoint would hold them; set xla_fsdp_v2 to True in fsdp_config."
        )
    units = read_options(args).units.of(model)
    if (repeated := _repeated(model, units)) is not None:
        problems.append(
            f"FSDP on XLA cannot shard {repeated}, which the model has in several places, as a unit; choose others by "
            "transformer_layer_cls_to_wrap, or set xla_fsdp_v2 to True in fsdp_config."
        )
    if tied := _tied_across(model, units):
        problems.append(
            f"FSDP on XLA would no longer train {' and '.join(tied)} as one parameter, because they are in different "
            "units; choose units by transformer_layer_cls_to_wrap or min_num_params that hold none or all of them, or "
            "set xla_fsdp_v2 to True in fsdp_config."
        )
    return problems


def _repeated(model: nn.Module, units: list[nn.Module]) -> str | None:
    """Return the name of a unit that occurs more than once; None if there is none."""
    chosen, seen = set(map(id, units)), set[int]()
    for name, module in model.named_modules(remove_duplicate=False):
        if id(module) in chosen and id(module) in seen:
            return str(name)
        seen.add(id(module))
    return None


def _tied_across(model: nn.Module, units: list[nn.Module]) -> list[str]:
    """Return the names of the first parameter that belongs to several units; empty if there is none."""
    chosen, places = set(map(id, units)), dict[int, dict[int, str]]()

    def walk(module: nn.Module, path: str, unit: int) -> None:
        unit = id(module) if id(module) in chosen else unit
        for leaf, parameter in module._parameters.items():
            if parameter is not None:
                places.setdefault(id(parameter), {}).setdefault(unit, f"{path}{leaf}")
        for name, child in module.named_children():
            walk(child, f"{path}{name}.", unit)

    walk(model, "", id(model))
    return next((list(names.values()) for names in places.values() if len(names) > 1), [])


SHARDED = (
    "The model cannot be evaluated or saved: another Trainer has sharded it over the processes. Train it with this one "
    "first."
)


def unprepared(parameter: object) -> str | None:
    """Return why a parameter cannot be used before a run of this Trainer, if another one has sharded it."""
    return None if _whole_shape(parameter) is None else SHARDED


def element_count(parameter: Any) -> int:
    """Return the number of elements of a whole parameter."""
    return prod(_whole_shape(parameter) or (int(parameter.numel()),))


ENGINE: Engine[EngineArguments, Any] = Engine(
    "xla_fsdp",
    make_xla_fsdp1,
    begin=require_xla,
    mesh=lambda args: (("shard", args.world_size),),
    check=problems_with,
    element_count=element_count,
    unprepared=unprepared,
)
