"""How a module's tensors are distributed over the ranks, and gathering each distributed tensor on one of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from attrs import field, frozen
from torch import Tensor, nn
from torch.nn.functional import pad

from hexloop.adapters.trainable.torch.names import by_own_names
from hexloop.adapters.trainable.torch.serialization import DTYPES, TYPES, tensor_names, tensor_part
from hexloop.domain.ranks import assign_to_ranks
from hexloop.ports.mesh import Mesh, Spread, held_by_one
from hexloop.ports.parallelism import Layout
from hexloop.ports.state import Part

TorchLayout: TypeAlias = Layout[nn.Module, Tensor]


@frozen
class ModuleLayout:
    """Base of layouts that keep the tensors in the module, under the names in the model without wrappers."""

    mesh: Mesh = field(factory=Mesh)

    uneven = False

    def state(self, model: nn.Module) -> Mapping[str, Any]:
        """Return the state dict, with the parameters that the optimizer has."""
        return by_own_names(model, model.state_dict(keep_vars=True))

    def parameters(self, model: nn.Module) -> Mapping[str, Tensor]:
        """Return the parameters."""
        return by_own_names(model, dict(model.named_parameters()))


@frozen
class WholeLayout(ModuleLayout):
    """Layout of a module that every rank holds whole."""

    whole = True

    def spread(self, tensor: Tensor, parameter: Tensor) -> Spread | None:
        """Return None: no tensor is distributed."""
        return None

    def local(self, tensor: Tensor) -> Tensor:
        """Return the whole tensor, flat."""
        return tensor.detach().view(-1)

    def like(self, parameter: Tensor, local: Tensor) -> Tensor:
        """Return the whole tensor in the parameter's shape."""
        return local.view(parameter.shape)

    def norm(self, own: Tensor) -> Tensor:
        """Return the norm as it is."""
        return own


WHOLE = WholeLayout()


@frozen
class OwnLayout:
    """Layout of what this rank holds of a sharded model, as if that were all of it: for a copy in its own memory.

    Exporting and loading with it exchanges nothing, and fits only the same rank of the same run.
    """

    _sharded: TorchLayout

    mesh = Mesh()
    whole = False
    uneven = False

    def state(self, model: nn.Module) -> Mapping[str, Any]:
        """Return the state dict."""
        return self._sharded.state(model)

    def parameters(self, model: nn.Module) -> Mapping[str, Tensor]:
        """Return the parameters."""
        return self._sharded.parameters(model)

    def spread(self, tensor: Tensor, parameter: Tensor) -> Spread | None:
        """Return the shape of this rank's elements as that of the whole; None if every rank has the whole."""
        if self._sharded.spread(tensor, parameter) is None:
            return None
        return Spread(tuple(self._sharded.local(tensor).shape), self.mesh)

    def local(self, tensor: Tensor) -> Tensor:
        """Return this rank's elements."""
        return self._sharded.local(tensor)

    def like(self, parameter: Tensor, local: Tensor) -> Tensor:
        """Return a tensor that is distributed like a parameter."""
        return self._sharded.like(parameter, local)

    def norm(self, own: Tensor) -> Tensor:
        """Return the norm over all ranks."""
        return self._sharded.norm(own)


def norm_over(own: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Return the norm of the ranks' parts of sharded gradients, from the norm of this rank's. Collective."""
    squared = own.to(torch.float32).square()
    dist.all_reduce(squared, group=group)
    return squared.sqrt()


@frozen
class TensorEntry:
    """A tensor to export under a name. tensor: this rank's elements of it; None if it has none.

    shape, dtype: of the whole tensor. spread: how it is distributed, None if every rank has the whole.
    """

    name: str
    tensor: Tensor | None
    shape: tuple[int, ...]
    dtype: torch.dtype
    spread: Spread | None = None

    @property
    def size(self) -> int:
        """The size of the whole tensor, in bytes."""
        return prod(self.shape) * self.dtype.itemsize


def entry_of(name: str, tensor: Tensor, parameter: Tensor | None, layout: TorchLayout) -> TensorEntry:
    """Return the entry of a parameter or a moment of one; of a tensor that belongs to none if `parameter` is None."""
    spread = None if parameter is None else layout.spread(tensor, parameter)
    return TensorEntry(name, tensor, tuple(tensor.shape) if spread is None else spread.shape, tensor.dtype, spread)


def shape_of(tensor: Tensor, parameter: Tensor, layout: TorchLayout) -> tuple[int, ...]:
    """Return the shape of the whole tensor."""
    spread = layout.spread(tensor, parameter)
    return tuple(tensor.shape) if spread is None else spread.shape


def assigned_parts(entries: Sequence[TensorEntry], layout: TorchLayout, writers: int | None = None) -> Iterator[Part]:
    """Yield a part for each tensor: the whole tensor on the rank that it is assigned to, an empty one on the others.

    Tensors are assigned by `assign_to_ranks` to the first `writers` ranks, to all ranks if None. They are gathered one
    at a time, in the host memory of their rank. Collective.
    With an OwnLayout each part is this rank's tensor itself.
    """
    if isinstance(layout, OwnLayout):
        held = ((entry.name, _own_elements(entry, layout)) for entry in entries)
        yield from (tensor_part(name, own) for name, own in held if own is not None)
        return
    owners = assign_to_ranks([entry.size for entry in entries], writers or layout.mesh.size)
    for entry, owner in zip(entries, owners, strict=True):
        yield assigned_part(entry, _own_elements(entry, layout), owner, layout.mesh.rank)


def _own_elements(entry: TensorEntry, layout: TorchLayout) -> Tensor | None:
    """Return this rank's elements of a tensor."""
    return entry.tensor if entry.tensor is None or entry.spread is None else layout.local(entry.tensor)


def assigned_part(entry: TensorEntry, own: Tensor | None, owner: int, rank: int) -> Part:
    """Return rank `rank`'s part of a tensor that is assigned to `owner`; `own`: what it holds. Collective."""
    whole = None
    if entry.spread is not None:
        whole = _gather(entry, entry.spread, own, owner, rank)
    elif owner == rank and own is not None:
        whole = own.detach().to("cpu", copy=True)  # which later updates do not change
    if whole is not None:
        return tensor_part(entry.name, whole)
    return Part(entry.name, DTYPES[entry.dtype], entry.shape, 0, 0, lambda: memoryview(b""))


def _gather(entry: TensorEntry, spread: Spread, own: Tensor | None, owner: int, rank: int) -> Tensor | None:
    """Return the whole tensor in host memory on rank `owner`; None on the others, which send their elements."""
    boxes, device = spread.holders(), communication_device()
    if owner != rank:
        if rank in boxes and own is not None:
            dist.send(own.to(device).contiguous().view(-1).view(torch.uint8), owner)
        return None
    whole = torch.empty(spread.divided, dtype=entry.dtype, device=device)
    received = []
    for sender, box in boxes.items():
        target = whole[box.slices]
        if sender == owner:
            if own is not None:
                target.copy_(own.view(target.shape))
            continue
        # What is contiguous in the whole tensor is received in place.
        buffer = target if target.is_contiguous() else torch.empty_like(target, memory_format=torch.contiguous_format)
        received.append((dist.irecv(buffer.view(-1).view(torch.uint8), sender), buffer, target))
    for pending, buffer, target in received:
        if pending is not None:
            pending.wait()
        if buffer is not target:
            target.copy_(buffer)
    return whole.cpu().view(entry.shape)


def merge_uneven_state(
    state: Mapping[str, Any], entries: list[TensorEntry], parameters: Mapping[str, Tensor], layout: TorchLayout
) -> tuple[dict[str, Any], list[TensorEntry]]:
    """Return the state of all parameters and its tensors, if a rank only has that of parameters it holds a part of.

    state: for each parameter's name its state, as JSON that mentions tensors. The first rank that holds a part of a
    parameter describes its state to the others. Collective.
    """
    own, described = {entry.name: entry for entry in entries}, {}
    for name, kept in state.items():
        if _first_holder(parameters[name], layout) == layout.mesh.rank:
            tensors = [own[tensor] for tensor in tensor_names(kept)]
            fields = [[each.name, DTYPES[each.dtype], each.shape, each.spread is None] for each in tensors]
            described[name] = [kept, fields]
    by_rank = gather_json(described)
    merged: dict[str, Any] = {}
    of_parameters = {tensor for kept in state.values() for tensor in tensor_names(kept)}
    found = {name: entry for name, entry in own.items() if name not in of_parameters}
    for name, parameter in parameters.items():
        first = _first_holder(parameter, layout)
        if name not in by_rank[first]:
            continue
        merged[name], tensors = by_rank[first][name]
        for tensor, dtype, shape, is_whole in tensors:
            held = own.get(tensor)
            spread = held_by_one(tuple(shape), layout.mesh, first) if is_whole else layout.spread(parameter, parameter)
            found[tensor] = TensorEntry(
                tensor, None if held is None else held.tensor, tuple(shape), TYPES[dtype], spread
            )
    return merged, list(found.values())


def _first_holder(parameter: Tensor, layout: TorchLayout) -> int:
    """Return the first rank that holds a part of a parameter."""
    spread = layout.spread(parameter, parameter)
    return 0 if spread is None else next(iter(spread.holders()), 0)


def communication_device() -> torch.device:
    """Return a device whose tensors the default process group can send; the CPU if there is none."""
    if not dist.is_initialized():
        return torch.device("cpu")
    accelerator = torch.accelerator.current_accelerator()
    usual = "gloo" if accelerator is None else dist.get_default_backend_for_device(accelerator)
    if accelerator is None or usual == "gloo" or usual not in dist.get_backend():
        return torch.device("cpu")
    return torch.device(accelerator.type, torch.accelerator.current_device_index())


def gather_json(value: Any) -> list[Any]:
    """Return the JSON-like values of all ranks, by rank. Collective."""
    device, size = communication_device(), dist.get_world_size()
    encoded = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8).to(device)
    lengths = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(size)]
    dist.all_gather(lengths, torch.tensor([encoded.numel()], device=device))
    longest = max(int(length) for length in lengths)
    padded = [torch.empty(longest, dtype=torch.uint8, device=device) for _ in range(size)]
    dist.all_gather(padded, pad(encoded, (0, longest - encoded.numel())))
    return [json.loads(bytes(each[: int(n)].cpu().numpy())) for each, n in zip(padded, lengths, strict=True)]
