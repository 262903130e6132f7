"""torch's DistributedDataParallel: every process holds the whole model, and gradients meet in buckets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attrs import field, frozen
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from hexloop.adapters.engines.arguments import EngineArguments
from hexloop.ports.device import Device
from hexloop.ports.engine import Engine
from hexloop.ports.parallelism import ParallelismCapabilities

Hook = tuple[object, Callable[..., Any]]
"""A communication hook as torch takes it: its state, and the function."""


@frozen
class DdpOptions:
    """What DistributedDataParallel is told. None leaves it as torch has it.

    find_unused_parameters: look in each step for parameters that took no part in the loss. None, as the reference
        library has it: unless the model computes its activations anew, which does not go together with looking.
    bucket_cap_mb: MiB of gradients that meet at once. hook: how they meet instead of by a sum.
    """

    find_unused_parameters: bool | None = None
    bucket_cap_mb: int | None = None
    broadcast_buffers: bool | None = None
    static_graph: bool | None = None
    gradient_as_bucket_view: bool = False
    hook: Hook | None = None

    def named(self) -> dict[str, Any]:
        """As keyword arguments."""
        given = {
            "bucket_cap_mb": self.bucket_cap_mb,
            "broadcast_buffers": self.broadcast_buffers,
            "static_graph": self.static_graph,
        }
        return {name: value for name, value in given.items() if value is not None} | {
            "gradient_as_bucket_view": self.gradient_as_bucket_view,
        }


@frozen
class Ddp:
    """Answers the Parallelism port. The processes of torch.distributed's default group hold a copy of the model each.

    Each process computes its share of the window's loss; torch takes the mean of the gradients, so the shares are
    multiplied by the number of processes first.
    device: where the module lies. world_size: how many processes there are.
    """

    device: torch.device
    world_size: int
    options: DdpOptions = field(factory=DdpOptions)
    _wrapped: list[DistributedDataParallel] = field(factory=list, init=False)

    capabilities = ParallelismCapabilities("ddp", processes=True)

    def prepare(self, model: Any, make_optimizer: Callable[[Any], Any]) -> tuple[Any, Any]:
        """Wrap the module; every process begins with the weights of the first."""
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
        if not looks and not self.options.static_graph:  # elsewhere the layout stays, or is of the first step's graph
            settle_buckets(wrapped)
        return wrapped, make_optimizer(wrapped)

    def synchronise(self, last_of_window: bool) -> None:
        """Let gradients meet in the window's last backward pass alone."""
        for wrapped in self._wrapped:
            wrapped.require_backward_grad_sync = last_of_window

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of the mean over all processes of world_size times their shares: of the sum of these."""
        (loss * self.world_size).backward()  # type: ignore[no-untyped-call]

    def unwrap(self, model: Any) -> Any:
        """The module within."""
        return model.module if isinstance(model, DistributedDataParallel) else model


def recomputes(model: Any) -> bool:
    """Whether a model says that it computes its activations anew, by the flag's present name or by its former one."""
    for name in ("is_activation_checkpointing", "is_gradient_checkpointing"):
        if hasattr(model, name):
            return bool(getattr(model, name))
    return False


def settle_buckets(wrapped: DistributedDataParallel) -> None:
    """Bring the buckets into the layout that they keep.

    After its first backward pass DistributedDataParallel lays its buckets out anew, in the order in which gradients
    came. A run that is taken up again would take its first step with the layout of the beginning, and so add up in
    another order than the run that was not interrupted. A backward pass through a chain of all parameters, the last
    one first, as it comes about in most models, makes the layout the same whenever the run begins. It leaves no
    gradient, draws no random number, and touches no buffer.
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
        for _ in range(2):  # the layout changes at the beginning of the second forward pass
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


def make_ddp(args: EngineArguments, device: Device) -> Ddp:
    """Return the adapter for the processes of the run, with the options in the arguments."""
    options = DdpOptions(
        find_unused_parameters=args.ddp_find_unused_parameters,
        bucket_cap_mb=args.ddp_bucket_cap_mb,
        broadcast_buffers=args.ddp_broadcast_buffers,
        static_graph=args.ddp_static_graph,
    )
    return Ddp(torch.device(device.name), args.world_size, options)


ENGINE: Engine[EngineArguments, Tensor] = Engine("ddp", make_ddp)
