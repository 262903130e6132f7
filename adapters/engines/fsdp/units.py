"""What both versions of FSDP need: options, activation recomputation, and starting from rank 0's weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from attrs import define, field, frozen
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from hexloop.adapters.trainable.torch.quantized import refuse_divided_quantization
from hexloop.adapters.trainable.torch.units import Units
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.mesh import Dimensions, Mesh

STRATEGIES = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")
"""What is sharded over the ranks; accelerate's configuration files number them, from 1."""

KEEPING = {"full_shard": "shard_grad_op", "hybrid_shard": "hybrid_shard_zero2"}
"""For each strategy that frees gathered weights after the forward pass, the one that keeps them."""

CHUNK = 1 << 26
"""Elements of a tensor that are broadcast at once."""


@frozen
class Formats:
    """The dtypes of sharded training; None keeps that of the tensors.

    parameters: of gathered weights and of the computation. gradients: of gradients while they are reduced.
    buffers: version 1 only. outputs: what the model's outputs are cast to; version 2 only.
    """

    parameters: torch.dtype | None = None
    gradients: torch.dtype | None = None
    buffers: torch.dtype | None = None
    outputs: torch.dtype | None = None


@frozen
class FsdpOptions:
    """The options of both versions of FSDP.

    units: the modules whose weights are gathered and freed together. strategy: one of STRATEGIES. version: of FSDP, 1
    or 2. mesh: the number of replicas, and of the ranks that hold one together; None: one replica over all ranks.
    offload: keep weights, gradients and moments in host memory. recompute: discard the activations of a unit in the
    forward pass and recompute them in the backward pass. forward_prefetch: gather the next unit's weights while one is
    computed. backward_prefetch: one of PREFETCHES, version 1 only, as limit_all_gathers.
    synchronise_each: reduce gradients after every micro-batch. Otherwise they are reduced in a window's last one, until
    when every rank keeps those of the whole model.
    """

    units: Units = field(factory=Units)
    strategy: str = "full_shard"
    version: int = 2
    mesh: tuple[int, int] | None = None
    formats: Formats = field(factory=Formats)
    offload: bool = False
    recompute: bool = False
    forward_prefetch: bool = False
    backward_prefetch: str = "backward_pre"
    limit_all_gathers: bool = True
    synchronise_each: bool = True

    @property
    def reshard_after_forward(self) -> bool:
        """Whether gathered weights are freed after the forward pass and gathered again in the backward pass."""
        return self.strategy in KEEPING

    def dimensions(self, processes: int) -> Dimensions:
        """Return the mesh of this number of processes: replicas, and the ranks that hold one together."""
        replicas, shards = self.mesh or (1, processes)
        if self.strategy == "no_shard":
            replicas, shards = processes, 1
        return ("replicate", replicas), ("shard", shards)


@define(eq=False)
class Fsdp:
    """Base of the adapters for both versions.

    Each rank computes its share of the window's loss. torch averages the gradients over the ranks, so the shares are
    multiplied by the number of ranks first.

    device: where layers are computed. world_size: the number of ranks.
    """

    device: torch.device
    world_size: int
    options: FsdpOptions = field(factory=FsdpOptions)

    @property
    def mesh(self) -> Mesh:
        """The ranks, once they have met."""
        return Mesh(self.options.dimensions(self.world_size), dist.get_rank())

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of the sum over the ranks: the mean of `world_size` times their shares."""
        (loss * self.world_size).backward()  # type: ignore[no-untyped-call]

    def units_of(self, model: nn.Module) -> list[nn.Module]:
        """Return the units of `model`, whose activations are recomputed if the options say so.

        Raises ConfigurationError if its weights are quantized.
        """
        refuse_divided_quantization(model, "FSDP")
        units = self.options.units.of(model)
        if self.options.recompute:
            for unit in units or [model]:
                if "forward" not in vars(unit):
                    again: Callable[..., Any] = partial(checkpoint, unit.forward, use_reentrant=False)
                    unit.forward = again
        return units


def allocate_meta_tensors(model: nn.Module) -> None:
    """Replace tensors on torch's meta device by uninitialized ones on the CPU; tied tensors stay tied.

    Memory is only used once they are written to. Raises ConfigurationError on rank 0, which has to have the weights.
    """
    if dist.get_rank() == 0 and any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise ConfigurationError(
            "The model of rank 0 is on torch's meta device, but the other ranks start from its weights; create it "
            "on a real device there, as with `contextlib.nullcontext() if rank == 0 else torch.device('meta')`."
        )
    allocated: dict[Tensor, Tensor] = {}
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is None or not tensor.is_meta:
                    continue
                if tensor not in allocated:
                    empty = torch.empty_like(tensor, device="cpu")
                    is_parameter = name in module._parameters
                    allocated[tensor] = nn.Parameter(empty, tensor.requires_grad) if is_parameter else empty
                held[name] = allocated[tensor]  # type: ignore[assignment]


def broadcast_from_rank0(model: nn.Module, device: torch.device) -> None:
    """Copy the parameters and buffers of rank 0 to every rank over `device`, in chunks. Sharded ones are skipped."""
    with torch.no_grad():
        for tensor in {id(each): each for each in (*model.parameters(), *model.buffers())}.values():
            if isinstance(tensor, DTensor):
                continue
            whole = tensor.detach()
            contiguous = whole.contiguous()
            for piece in torch.split(contiguous.view(-1), CHUNK):
                sent = piece.to(device)
                dist.broadcast(sent, 0)
                if sent is not piece:
                    piece.copy_(sent)
            if contiguous is not whole:
                whole.copy_(contiguous)
