"""Beginning with the weights of the first process, which need be the only one that has any."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from hexloop.domain.errors import ConfigurationError

CHUNK = 1 << 26
"""Elements of a tensor that processes are told at once."""


def give_memory(model: nn.Module) -> None:
    """Put tensors without content in the place of those on torch's meta device; ties between them stay.

    What nothing is written to takes no memory yet. Raises ConfigurationError in the first process, which needs weights.
    """
    if dist.get_rank() == 0 and any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise ConfigurationError(
            [
                "The first process's model lies on torch's meta device, but the others begin with its weights; make "
                "it elsewhere there, as with `contextlib.nullcontext() if rank == 0 else torch.device('meta')`."
            ]
        )
    made: dict[Tensor, Tensor] = {}
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is None or not tensor.is_meta:
                    continue
                if tensor not in made:
                    empty = torch.empty_like(tensor, device="cpu")
                    made[tensor] = nn.Parameter(empty, tensor.requires_grad) if name in module._parameters else empty
                held[name] = made[tensor]  # type: ignore[assignment]


def same_as_first(model: nn.Module, device: torch.device) -> None:
    """Give every process the weights and buffers of the first; they travel over `device`, a piece at a time.

    What is spread already stays as it is.
    """
    with torch.no_grad():
        for tensor in {id(each): each for each in (*model.parameters(), *model.buffers())}.values():
            if isinstance(tensor, DTensor):
                continue
            whole = tensor.detach()
            if not whole.is_contiguous():
                copy = whole.contiguous()
                _broadcast(copy, device)
                whole.copy_(copy)
            else:
                _broadcast(whole, device)


def _broadcast(tensor: Tensor, device: torch.device) -> None:
    for piece in torch.split(tensor.view(-1), CHUNK):
        sent = piece.to(device)
        dist.broadcast(sent, 0)
        if sent.data_ptr() != piece.data_ptr():
            piece.copy_(sent)
