"""FSDP units, activation recomputation, and starting from the weights of rank 0: what both versions of FSDP need."""

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

CHUNK = 1 << 26
"""Elements of a tensor that are broadcast at once."""


@frozen
class Units:
    """Selects the FSDP units: the modules whose weights are gathered and freed together.

    Parameters outside all units are gathered with the root module.

    classes: class names of the modules. None: those in the model's `_no_split_modules`, if it has any.
    least: if positive, modules are selected by size instead: each has at least this many parameters that belong to no
        other unit.
    """

    classes: tuple[str, ...] | None = None
    least: int = 0

    def of(self, model: nn.Module) -> list[nn.Module]:
        """Return the units of `model`, inner before outer. Raises ConfigurationError if a class does not occur."""
        if self.least > 0:
            return [module for module in _by_size(model, self.least) if module is not model]
        names = set(self.classes) if self.classes is not None else _no_split_classes(model)
        found = [module for module in model.modules() if _class_name(module) in names and module is not model]
        if missing := names - {_class_name(module) for module in model.modules()} if self.classes else set():
            raise ConfigurationError(
                f"You chose FSDP with transformer_layer_cls_to_wrap={sorted(missing)}, but {type(model).__name__} "
                f"has no module of that class; choose among {', '.join(_repeated(model)) or 'its classes'}."
            )
        return found[::-1]


def _class_name(module: nn.Module) -> str:
    return type(module).__name__


def _no_split_classes(model: nn.Module) -> set[str]:
    """Return the classes that a transformers model, or one inside it, declares as not to be split."""
    return {name for module in model.modules() for name in getattr(module, "_no_split_modules", None) or ()}


def _repeated(model: nn.Module) -> list[str]:
    """Return the class names of the modules in module lists."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return sorted({_class_name(child) for each in lists for child in each})


def _by_size(model: nn.Module, least: int) -> Iterator[nn.Module]:
    """Yield modules with at least `least` parameters that no earlier one has, inner before outer."""
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
    """Make each module discard its activations in the forward pass and recompute them in the backward pass."""
    for unit in units:
        if "forward" not in vars(unit):
            again: Callable[..., Any] = partial(checkpoint, unit.forward, use_reentrant=False)
            unit.forward = again


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
