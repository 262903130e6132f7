"""The DDP engine: torch's `DistributedDataParallel`. Every rank holds the whole model; gradients are averaged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attrs import asdict, field, frozen
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from hexloop.adapters.engines.arguments import EngineArguments
from hexloop.adapters.trainable.torch.names import wrapper_in
from hexloop.ports.device import Device
from hexloop.ports.engine import Engine
from hexloop.ports.parallelism import Parallelism, ParallelismCapabilities

Hook = tuple[object, Callable[..., Any]]
"""A communication hook of torch: its state, and the function."""


@frozen
class DdpOptions:
    """The options of `DistributedDataParallel`. None is torch's default.

    find_unused_parameters: look in each step for parameters that do not contribute to the loss. None, as in
        transformers: only if the model does not use activation checkpointing, which excludes it.
    bucket_cap_mb: the size of a gradient bucket in MiB. hook: a communication hook that replaces the sum.
    """

    find_unused_parameters: bool | None = None
    bucket_cap_mb: int | None = None
    broadcast_buffers: bool | None = None
    static_graph: bool | None = None
    gradient_as_bucket_view: bool = False
    hook: Hook | None = None

    def named(self) -> dict[str, Any]:
        """Return the options as keyword arguments, `find_unused_parameters` and the hook excepted."""
        others = ("find_unused_parameters", "hook")
        return asdict(self, filter=lambda option, value: value is not None and option.name not in others)


@frozen
class Ddp:
    """Parallelism adapter for the ranks of torch.distributed's default group.

    Each rank computes its share of the window's loss. torch averages the gradients over the ranks, so the shares are
    multiplied by the number of ranks first.

    device: where the module is. world_size: the number of ranks. averages: the mean of the ranks' gradients is wanted,
    as in transformers, and torch's buckets stay as they are.
    """

    device: torch.device
    world_size: int
    options: DdpOptions = field(factory=DdpOptions)
    averages: bool = False
    _wrapped: list[DistributedDataParallel] = field(factory=list, init=False)

    capabilities = ParallelismCapabilities("ddp", processes=True)

    def prepare(self, model: Any, make_optimizer: Callable[[Any], Any]) -> tuple[Any, Any]:
        """Wrap the module, which copies the weights of rank 0 to every rank. The user's own wrapper stays, if any."""
        if (own := wrapper_in(model)) is not None:
            self._wrapped[:] = [own]
            return model, make_optimizer(model)
        ids = None if self.device.type == "cpu" else [self.device.index]
        if not any(parameter.requires_grad for parameter in model.parameters()):
            return model, make_optimizer(model)
        looks = self.options.find_unused_parameters
        if looks is None:
            looks = not recomputes(model)
        wrapped = DistributedDataParallel(model, ids, find_unused_parameters=looks, **self.options.named())
        if self.options.hook is not None:
            wrapped.register_comm_hook(*self.options.hook)
        self._wrapped[:] = [wrapped]
        keeps = looks or self.options.static_graph  # torch does not rebuild its buckets, or by the graph
        if not (keeps or self.averages):
            rebuild_buckets(wrapped)
        return wrapped, make_optimizer(wrapped)

    def synchronise(self, last_of_window: bool) -> None:
        """Reduce gradients in the window's last backward pass only."""
        for wrapped in self._wrapped:
            wrapped.require_backward_grad_sync = last_of_window

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of the sum over the ranks: the mean of `world_size` times their shares."""
        share = loss if self.averages else loss * self.world_size
        share.backward()  # type: ignore[no-untyped-call]

    def unwrap(self, model: Any) -> Any:
        """Return the wrapped module, also that of the user's own wrapper."""
        own = wrapper_in(model)
        return model if own is None else own.module


def recomputes(model: Any) -> bool:
    """Return whether a transformers model uses activation checkpointing, by the flag's current or former name."""
    for name in ("is_activation_checkpointing", "is_gradient_checkpointing"):
        if hasattr(model, name):
            return bool(getattr(model, name))
    return False


def rebuild_buckets(wrapped: DistributedDataParallel) -> None:
    """Make DistributedDataParallel rebuild its buckets before the first step, so that resumed runs are bit-identical.

    After its first backward pass it rebuilds the buckets in the order in which gradients arrived. A resumed run would
    take its first step with the initial buckets, and sum in another order than the run that was not interrupted. A
    backward pass through a chain of all parameters, the last one first as in most models, makes the buckets the same
    whenever a run starts. It leaves no gradients, draws no random numbers, and changes no buffers.
    """
    module = wrapped.module
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]

    def chain() -> Tensor:
        total = torch.zeros((), device=parameters[0].device)
        for parameter in parameters:
            total = total + 0.0 * parameter.reshape(-1)[:1].sum().to(total.dtype)
        return total

    own = module.__dict__.get("forward")
    broadcast, wrapped.broadcast_buffers = wrapped.broadcast_buffers, False
    hooks = [dict(each) for each in (module._forward_hooks, module._forward_pre_hooks)]
    module._forward_hooks.clear()
    module._forward_pre_hooks.clear()
    try:
        for _ in range(2):  # buckets are rebuilt at the start of the second forward pass
            module.forward = chain
            wrapped().backward()
    finally:
        del module.forward
        if own is not None:
            module.forward = own
        wrapped.broadcast_buffers = broadcast
        module._forward_hooks.update(hooks[0])
        module._forward_pre_hooks.update(hooks[1])
        for parameter in parameters:
            parameter.grad = None


def make_ddp(args: EngineArguments, device: Device) -> Parallelism[Tensor]:
    """Return the adapter for the processes of the run, with the options in the arguments."""
    if args.steps_in_backward:
        from hexloop.adapters.engines.ddp.layerwise import LayerwiseDdp

        return LayerwiseDdp(args.ddp_broadcast_buffers is not False)
    options = DdpOptions(
        find_unused_parameters=args.ddp_find_unused_parameters,
        bucket_cap_mb=args.ddp_bucket_cap_mb,
        broadcast_buffers=args.ddp_broadcast_buffers,
        static_graph=args.ddp_static_graph,
    )
    return Ddp(torch.device(device.name), args.world_size, options, averages=args.reproduce is not None)


ENGINE: Engine[EngineArguments, Tensor] = Engine("ddp", make_ddp)
