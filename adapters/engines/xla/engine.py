"""Training on XLA, which records the operations of a step, compiles them together, and runs them.

A run has one process, or several that each hold the whole model. With FSDP in its second version, one process drives
all devices by SPMD, and each weight is sharded over them. Model, optimizer and checkpoints stay those of a single
process: a tensor is whole for the program, and XLA stores and computes a part of it on each device.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from attrs import define, field
from torch import Tensor, nn

from hexloop.adapters.engines.arguments import EngineArguments
from hexloop.adapters.engines.xla.options import XlaFsdpOptions, read_options
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.device import Device
from hexloop.ports.engine import Engine, RunFacts
from hexloop.ports.parallelism import ParallelismCapabilities

LAYOUT = "_hexloop_xla_layout"
"""The attribute by which a model that the first version of FSDP has sharded is known, also to another Trainer."""


@define(eq=False)
class Xla:
    """Parallelism adapter for a process on a device that records operations.

    A program ends with each micro-batch and with each optimizer step, so that all steps run the same programs.

    replicas: the processes, each of which holds the whole model and computes its share of the window's loss. Their
    gradients are summed before they are clipped, in a program of its own with the update: it is the same in every
    process, even if their batches differ in shape.
    """

    _device: Device
    replicas: int = 1
    _is_last: bool = field(default=True, init=False)
    _hook: Any = field(default=None, init=False)
    _summed: tuple[nn.Parameter, ...] = field(default=(), init=False)

    @property
    def capabilities(self) -> ParallelismCapabilities:
        """Several processes only with several replicas. XLA compiles the model itself."""
        return ParallelismCapabilities("xla", processes=self.replicas > 1, compiles=False)

    def prepare(self, model: Any, make_optimizer: Callable[[Any], Any]) -> tuple[Any, Any]:
        """Return the model itself, and its optimizer, whose steps are started as soon as they are recorded.

        Replicas start from the weights of the first one.
        """
        if self.replicas > 1:
            import torch_xla.core.xla_model

            torch_xla.core.xla_model.broadcast_master_param(model)
        optimizer, device = make_optimizer(model), self._device
        if self._hook is not None:
            self._hook.remove()
        self._hook = None if optimizer is None else optimizer.register_step_post_hook(lambda *_: device.flush())
        if self.replicas > 1:
            self._summed = tuple(_parameters(model, optimizer))
        return model, optimizer

    def synchronise(self, last_of_window: bool) -> None:
        """Note whether the optimizer step follows, which ends the program of the last micro-batch."""
        self._is_last = last_of_window

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass of the loss, then in the window's last one sum the gradients over the replicas."""
        loss.backward()  # type: ignore[no-untyped-call]
        if not self._is_last or self.replicas > 1:
            self._device.flush()
        if self._is_last and self.replicas > 1:
            sum_over_replicas([each.grad for each in self._summed if each.grad is not None])

    def unwrap(self, model: Any) -> Any:
        """Return the model itself."""
        return model


def _parameters(model: nn.Module, optimizer: Any) -> Iterable[nn.Parameter]:
    """Return the parameters of a model, and further ones that its optimizer updates, such as those of a loss."""
    grouped = [] if optimizer is None else [each for group in optimizer.param_groups for each in group["params"]]
    return {id(each): each for each in (*model.parameters(), *grouped)}.values()


def sum_over_replicas(tensors: list[Tensor]) -> None:
    """Add, in the recorded program, the tensors of all replicas, in place. They have the same shapes in each."""
    import torch_xla.core.xla_model as runtime

    runtime.all_reduce(runtime.REDUCE_SUM, tensors)


# FSDP by SPMD

AXES = ("fsdp", "tensor")
"""The axes of the mesh of devices, as transformers names them; all devices are along the first."""


_HOOKS: WeakKeyDictionary[nn.Module, list[Any]] = WeakKeyDictionary()
"""The hooks of sharded models, which a further run of a model replaces."""


@define(eq=False)
class XlaFsdp(Xla):
    """Parallelism adapter for one process with several devices.

    Each parameter is sharded along its longest dimension, as torch_xla's FSDP v2 does, if that can be divided over the
    devices. Inputs and outputs are sharded along the batch. So are the outputs of the units, whose weights are then
    gathered unit by unit.
    """

    options: XlaFsdpOptions = field(factory=XlaFsdpOptions, kw_only=True)

    capabilities = ParallelismCapabilities("xla_fsdp_v2", compiles=False)

    def prepare(self, model: Any, make_optimizer: Callable[[Any], Any]) -> tuple[Any, Any]:
        """Shard the parameters of the model in place, and return it and its optimizer."""
        handles = _HOOKS.setdefault(model, [])
        while handles:
            handles.pop().remove()
        mesh = device_mesh()
        for parameter in model.parameters():
            if parameter.ndim and not parameter.shape[longest(parameter)] % mesh.shape()[AXES[0]]:
                shard(parameter, mesh, longest(parameter))
        units = self.options.units.of(model)
        if self.options.recompute:
            recompute(model, units)
        handles += [unit.register_forward_hook(partial(_shard_output, mesh)) for unit in units]
        handles.append(model.register_forward_pre_hook(partial(_shard_inputs, mesh), with_kwargs=True))
        handles.append(model.register_forward_hook(partial(_shard_output, mesh)))
        handles.append(model.register_full_backward_hook(_barrier))
        return super().prepare(model, make_optimizer)


def recompute(model: nn.Module, units: Iterable[nn.Module]) -> None:
    """Let each unit discard its activations in the forward pass and recompute them in the backward pass.

    A cache of keys and values would be filled again by that, so a transformers model no longer has one.
    """
    from torch_xla.distributed.fsdp import checkpoint_module

    config: Any = getattr(model, "config", None)
    if getattr(config, "use_cache", False):
        config.use_cache = False
        logging.getLogger("hexloop").warning(
            "xla_fsdp_grad_ckpt sets the model's use_cache to False: a cache would be filled twice."
        )
    for unit in units:
        if "forward" not in vars(unit):
            checkpoint_module(unit)


def _barrier(model: nn.Module, inputs: Any, _outputs: Any) -> None:
    """Keep XLA from fusing the backward pass of the model with what follows, which would need much memory."""
    import torch_xla.core.xla_model

    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    given = [each for each in inputs if isinstance(each, Tensor)]
    torch_xla.core.xla_model.optimization_barrier_([*gradients, *given])


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
    """Return the adapter. Raises ConfigurationError if XLA has other replicas than the run has processes."""
    check_replicas(args)
    return Xla(device, args.world_size)


def check_replicas(args: EngineArguments) -> None:
    """Raise ConfigurationError unless XLA connects the processes of the run, in the order of their ranks."""
    import torch_xla.runtime

    found, expected = torch_xla.runtime.world_size(), args.world_size
    if found != expected:
        problem = (
            f"This run has {expected} process{'es' if expected > 1 else ''}, but XLA "
            f"({torch_xla.runtime.device_type()}) connects {found} device{'s' if found > 1 else ''}"
        )
        if found < expected:
            problem += (
                ", so that each process would train a model of its own: it connects the processes of TPUs, if each is "
                "started for one device of its own before anything uses a device"
            )
        raise ConfigurationError(
            f"{problem}. Start one process for each device with hexloop launch --tpu, or a single one, which computes "
            "on all devices with fsdp='full_shard' and fsdp_config={'xla': True, 'xla_fsdp_v2': True}."
        )
    if (ordinal := torch_xla.runtime.global_ordinal()) != args.process_index:
        raise ConfigurationError(
            f"This process has rank {args.process_index}, but its device has number {ordinal} among those of XLA; "
            "start the machines in the order of their devices: --node-rank is the number of the TPU's worker."
        )


def require_xla(args: EngineArguments) -> None:
    """Raise ConfigurationError if the device is not one of XLA."""
    if args.device.type != "xla":
        raise ConfigurationError(
            f"You set xla to True in fsdp_config, but the run trains on {args.device}; leave it out, or train on a "
            "device of XLA (torch_xla is installed, and neither use_cpu nor USE_TORCH_XLA=false is set)."
        )


def drive_all_devices(args: EngineArguments) -> None:
    """Let XLA drive all devices from this process, which has to be chosen before the first is used.

    Raises ConfigurationError if the device is not one of XLA, or the run has several processes.
    """
    require_xla(args)
    if args.world_size > 1:
        raise ConfigurationError(
            f"You set xla_fsdp_v2 in fsdp_config, which computes on all devices from one process, but the run has "
            f"{args.world_size}; start one, or leave xla_fsdp_v2 out."
        )
    import torch_xla.runtime

    torch_xla.runtime.use_spmd()


def make_xla_fsdp(args: EngineArguments, device: Device) -> Xla:
    """Return the adapter for all devices of this process.

    Raises ConfigurationError with all problems of the options.
    """
    return XlaFsdp(device, options=read_options(args))


def refuse_shards(_args: EngineArguments, facts: RunFacts) -> list[str]:
    """Return a problem if the first version of FSDP has sharded the model, of which it then has a part only."""
    if not isinstance(facts.model, nn.Module) or LAYOUT not in vars(facts.model):
        return []
    return ["The model was sharded by FSDP on XLA; train it in the same way, or create it again and load its weights."]


ENGINE: Engine[EngineArguments, Any] = Engine("xla", make_xla, check=refuse_shards)
FSDP: Engine[EngineArguments, Any] = Engine("xla_fsdp_v2", make_xla_fsdp, begin=drive_all_devices, check=refuse_shards)
