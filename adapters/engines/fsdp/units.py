"""What torch's two generations of fully sharded data parallelism are told alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from attrs import frozen
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from hexloop.domain.errors import ConfigurationError


@frozen
class Formats:
    """The number formats of sharded training; None leaves a format as the tensors have it.

    parameters: in which weights are gathered and computed with. gradients: in which they meet.
    buffers: of FSDP 1 alone. outputs: what the model's outputs are cast to, of FSDP 2 alone.
    """

    parameters: torch.dtype | None = None
    gradients: torch.dtype | None = None
    buffers: torch.dtype | None = None
    outputs: torch.dtype | None = None


@frozen
class Units:
    """Which modules are gathered and freed one by one; what is in none of them goes with the whole model.

    classes: the names of their classes. None: those that the model says are not to be split, if it does.
    least: modules are taken by size instead, each with at least that many parameters that are in no other.
    """

    classes: tuple[str, ...] | None = None
    least: int = 0

    def of(self, model: nn.Module) -> list[nn.Module]:
        """The modules, inner ones before outer ones. Raises ConfigurationError where the model has none of a class."""
        if self.least > 0:
            return [module for module in _by_size(model, self.least) if module is not model]
        names = set(self.classes) if self.classes is not None else _unsplit(model)
        found = [module for module in model.modules() if _class_name(module) in names and module is not model]
        if missing := names - {_class_name(module) for module in model.modules()} if self.classes else set():
            raise ConfigurationError(
                [
                    f"You chose FSDP with transformer_layer_cls_to_wrap={sorted(missing)}, but {type(model).__name__} "
                    f"has no module of that class; choose among {', '.join(_repeated(model)) or 'its classes'}."
                ]
            )
        return found[::-1]


def _class_name(module: nn.Module) -> str:
    return type(module).__name__


def _unsplit(model: nn.Module) -> set[str]:
    """The classes that a transformers model, or one within it, names."""
    return {name for module in model.modules() for name in getattr(module, "_no_split_modules", None) or ()}


def _repeated(model: nn.Module) -> list[str]:
    """The classes of the modules that are members of lists of modules."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return sorted({_class_name(child) for each in lists for child in each})


def _by_size(model: nn.Module, least: int) -> Iterator[nn.Module]:
    """Modules with at least `least` parameters besides those of the modules that came before, inner ones first."""
    taken: set[int] = set()

    def walk(module: nn.Module) -> Iterator[nn.Module]:
        for child in module.children():
            yield from walk(child)
        left = [parameter for parameter in module.parameters() if id(parameter) not in taken]
        if not isinstance(module, nn.ModuleList | nn.ModuleDict) and sum(each.numel() for each in left) >= least:
            taken.update(map(id, left))
            yield module

    yield from walk(model)


def recompute(units: list[nn.Module]) -> None:
    """Let each module forget what its forward pass computed, and compute it again in the backward pass."""
    for unit in units:
        if "forward" not in vars(unit):
            again: Callable[..., Any] = partial(checkpoint, unit.forward, use_reentrant=False)
            unit.forward = again


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
