"""One process on XLA, which records the operations of a step, compiles them together, and runs them.

With FSDP, the process drives all devices by SPMD, and each weight is sharded over them. Model, optimizer and
checkpoints stay those of a single process: a tensor is whole for the program, and XLA stores and computes a part of it
on each device. transformers calls this FSDP v2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from attrs import define, field
from torch import Tensor, nn

from hexloop.adapters.engines.arguments import EngineArguments
from hexloop.adapters.engines.xla.options import XlaFsdpOptions, read_options
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.device import Device
from hexloop.ports.engine import Engine
from hexloop.ports.parallelism import ParallelismCapabilities


@define(eq=False)
class Xla:
    """Parallelism adapter for one process on a device that records operations.

    A program ends with each micro-batch and with each optimizer step, so that all steps run the same programs.
    """

    _device: Device
    _is_last: bool = field(default=True, init=False)
    _hook: Any = field(default=None, init=False)

    capabilities = ParallelismCapabilities("xla")

    def prepare(self, model: Any, make_optimizer: Callable[[Any], Any]) -> tuple[Any, Any]:
        """Return the model itself, and its optimizer, whose steps are started as soon as they are recorded."""
        optimizer, device = make_optimizer(model), self._device
        if self._hook is not None:
            self._hook.remove()
        self._hook = None if optimizer is None else optimizer.register_step_post_hook(lambda *_: device.flush())
        return model, optimizer

    def synchronise(self, last_of_window: bool) -> None:
        """Note whether the optimizer step follows, which ends the program of the last micro-batch."""
        self._is_last = last_of_window

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass of the loss."""
        loss.backward()  # type: ignore[no-untyped-call]
        if not self._is_last:
            self._device.flush()

    def unwrap(self, model: Any) -> Any:
        """Return the model itself."""
        return model


# FSDP

AXES = ("fsdp", "tensor")
"""The axes of the mesh of devices, as transformers names them; all devices are along the first."""


@define(eq=False)
class XlaFsdp(Xla):
    """Parallelism adapter for one process with several devices.

    Each parameter is sharded along its longest dimension, as torch_xla's FSDP v2 does, if that can be divided over the
    devices. Inputs and outputs are sharded along the batch. So are the outputs of the units, whose weights are then
    gathered unit by unit.
    """

    options: XlaFsdpOptions
    _handles: list[Any] = field(factory=list, init=False)

    capabilities = ParallelismCapabilities("xla_fsdp_v2")

    def prepare(self, model: Any, make_optimizer: Callable[[Any], Any]) -> tuple[Any, Any]:
        """Shard the parameters of the model in place, and return it and its optimizer."""
        from torch_xla.distributed.fsdp import checkpoint_module
        from torch_xla.distributed.spmd import xla_sharding

        while self._handles:
            self._handles.pop().remove()
        mesh = device_mesh()
        for parameter in model.parameters():
            if parameter.ndim and not parameter.shape[longest(parameter)] % mesh.shape()[AXES[0]]:
                shard(parameter, mesh, longest(parameter))
        for unit in self.options.units.of(model):
            if self.options.recompute and "forward" not in vars(unit):
                checkpoint_module(unit)
            self._handles.append(unit.register_forward_hook(partial(_shard_output, mesh)))
        self._handles.append(model.register_forward_pre_hook(partial(_shard_inputs, mesh), with_kwargs=True))
        self._handles.append(model.register_forward_hook(partial(_shard_output, mesh)))
        xla_sharding.apply_backward_optimization_barrier(model)
        return super().prepare(model, make_optimizer)


def device_mesh() -> Any:
    """Return the mesh of all devices, which is also torch_xla's global one."""
    import torch_xla.runtime
    from torch_xla.distributed import spmd

    mesh = spmd.get_global_mesh()
    if mesh is None:
        count = torch_xla.runtime.global_runtime_device_count()
        mesh = spmd.Mesh(list(range(count)), (count, 1), AXES)
        spmd.set_global_mesh(mesh)
    return mesh


def longest(tensor: Tensor) -> int:
    """Return the number of a tensor's longest dimension."""
    return max(range(tensor.ndim), key=lambda number: tensor.shape[number], default=0)


def shard(tensor: Tensor, mesh: Any, dimension: int) -> None:
    """Shard a tensor along one of its dimensions; a scalar is replicated."""
    from torch_xla.distributed import spmd

    placement = [AXES[0] if number == dimension else None for number in range(tensor.ndim)]
    spmd.mark_sharding(tensor, mesh, tuple(placement))


def _shard_rows(value: Any, mesh: Any) -> None:
    """Shard the tensors in inputs or outputs along their rows, if these can be divided over the devices."""
    if isinstance(value, Tensor):
        if value.ndim and value.device.type == "xla" and not value.shape[0] % mesh.shape()[AXES[0]]:
            shard(value, mesh, 0)
    elif isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            _shard_rows(each, mesh)


def _shard_inputs(mesh: Any, _module: nn.Module, args: Any, kwargs: Any) -> None:
    _shard_rows([*args, *kwargs.values()], mesh)


def _shard_output(mesh: Any, _module: nn.Module, _inputs: Any, output: Any) -> None:
    _shard_rows(output, mesh)


# The engines


def make_xla(args: EngineArguments, device: Device) -> Xla:
    """Return the adapter. Raises ConfigurationError in a run of several processes."""
    if args.world_size > 1:
        raise ConfigurationError(
            f"hexloop trains on XLA in one process, and this run has {args.world_size}; start one, which computes on "
            "all devices with fsdp='full_shard' and fsdp_config={'xla': True, 'xla_fsdp_v2': True}."
        )
    return Xla(device)


def drive_all_devices(args: EngineArguments) -> None:
    """Let XLA drive all devices from this process, which has to be chosen before the first is used.

    Raises ConfigurationError if the device is not one of XLA.
    """
    if args.device.type != "xla":
        raise ConfigurationError(
            f"You set xla to True in fsdp_config, but the run trains on {args.device}; leave it out, or train on a "
            "device of XLA (torch_xla is installed, and neither use_cpu nor USE_TORCH_XLA=false is set)."
        )
    import torch_xla.runtime

    torch_xla.runtime.use_spmd()


def make_xla_fsdp(args: EngineArguments, device: Device) -> Xla:
    """Return the adapter for all devices of this process.

    Raises ConfigurationError with all problems of the options.
    """
    return XlaFsdp(device, read_options(args))


ENGINE: Engine[EngineArguments, Any] = Engine("xla", make_xla)
FSDP: Engine[EngineArguments, Any] = Engine("xla_fsdp_v2", make_xla_fsdp, begin=drive_all_devices)
