"""Where a module's tensors lie, and bringing those that are spread over processes together, each on one of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from attrs import frozen
from torch import Tensor, nn
from torch.nn.functional import pad

from hexloop.adapters.trainable.torch.serialization import DTYPES, tensor_part
from hexloop.domain.ranks import assign_to_ranks
from hexloop.ports.parallelism import Layout, Spread
from hexloop.ports.state import Part

TorchLayout: TypeAlias = Layout[nn.Module, Tensor]


@frozen
class WholeLayout:
    """Answers `hexloop.ports.parallelism.Layout` for a module that every process holds whole."""

    rank: int = 0
    world_size: int = 1

    uneven = False

    def state(self, model: nn.Module) -> Mapping[str, Any]:
        """The state dict."""
        return model.state_dict(keep_vars=True)

    def parameters(self, model: nn.Module) -> Mapping[str, Tensor]:
        """As the model names them."""
        return dict(model.named_parameters())

    def spread(self, tensor: Tensor, parameter: Tensor) -> Spread | None:
        """No tensor is."""
        return None

    def local(self, tensor: Tensor) -> Tensor:
        """All of it."""
        return tensor.detach().view(-1)

    def like(self, parameter: Tensor, local: Tensor) -> Tensor:
        """What every process holds is the whole."""
        return local.view(parameter.shape)

    def norm(self, own: Tensor) -> Tensor:
        """It is that of the whole already."""
        return own


WHOLE = WholeLayout()


@frozen
class Entry:
    """A tensor that leaves under a name: as this process holds it, None where it holds nothing of it.

    shape, dtype: the whole's. spread: how it lies, None where it is whole on every process.
    """

    name: str
    tensor: Tensor | None
    shape: tuple[int, ...]
    dtype: torch.dtype
    spread: Spread | None = None

    @property
    def size(self) -> int:
        """In bytes, of the whole."""
        return prod(self.shape) * self.dtype.itemsize


def entry_of(name: str, tensor: Tensor, parameter: Tensor, layout: TorchLayout) -> Entry:
    """A parameter, or a moment of one."""
    spread = layout.spread(tensor, parameter)
    return Entry(name, tensor, tuple(tensor.shape) if spread is None else spread.shape, tensor.dtype, spread)


def dealt_parts(entries: Sequence[Entry], layout: TorchLayout, writers: int | None = None) -> Iterator[Part]:
    """A part for each tensor: the whole on the process that it falls to by `deal`, and nothing of it on the others.

    They fall to the first `writers` processes, to all where it is None.
    The tensors come together one at a time, in the host memory of the process that each falls to. Collective.
    """
    owners = assign_to_ranks([entry.size for entry in entries], writers or layout.world_size)
    for entry, owner in zip(entries, owners, strict=True):
        own = entry.tensor
        if own is not None and entry.spread is not None:
            own = layout.local(own)
        yield dealt_part(entry, own, owner, layout.rank)


def dealt_part(entry: Entry, own: Tensor | None, owner: int, rank: int) -> Part:
    """The part that the process `rank` has of a tensor that falls to `owner`; `own` is what it holds. Collective."""
    if entry.spread is not None:
        whole = _gathered(entry, entry.spread, own, owner, rank)
    else:
        whole = _copied(own) if owner == rank else None
    if whole is not None:
        return tensor_part(entry.name, whole)
    return Part(entry.name, DTYPES[entry.dtype], entry.shape, 0, 0, _nothing)


def _copied(tensor: Tensor | None) -> Tensor | None:
    """In host memory of its own: what leaves stays as it is now."""
    return None if tensor is None else tensor.detach().to("cpu", copy=True)


def _nothing() -> memoryview:
    return memoryview(b"")


def _gathered(entry: Entry, spread: Spread, own: Tensor | None, owner: int, rank: int) -> Tensor | None:
    """The whole tensor in host memory on rank `owner`, None on the others, each of which sends it what it holds."""
    runs, device = spread.runs, communicating()
    if owner != rank:
        if runs[rank][1] and own is not None:
            dist.send(own.to(device).view(torch.uint8), owner)
        return None
    whole = torch.empty(prod(entry.shape), dtype=entry.dtype, device=device)
    coming = []
    for sender, (begin, length) in enumerate(runs):
        if length == 0:
            continue
        place = whole[begin : begin + length]
        if sender != owner:
            coming.append(dist.irecv(place.view(torch.uint8), sender))
        elif own is not None:
            place.copy_(own)
    for each in coming:
        if each is not None:
            each.wait()
    return whole.cpu().view(entry.shape)


def communicating() -> torch.device:
    """The device whose tensors the default group carries."""
    return torch.device("cuda", torch.cuda.current_device()) if "nccl" in dist.get_backend() else torch.device("cpu")


def of_all(value: Any) -> list[Any]:
    """What every process says, a JSON-like value, by rank. Collective."""
    device, size = communicating(), dist.get_world_size()
    said = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8).to(device)
    lengths = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(size)]
    dist.all_gather(lengths, torch.tensor([said.numel()], device=device))
    longest = max(int(length) for length in lengths)
    heard = [torch.empty(longest, dtype=torch.uint8, device=device) for _ in range(size)]
    dist.all_gather(heard, pad(said, (0, longest - said.numel())))
    return [json.loads(bytes(each[: int(n)].cpu().numpy())) for each, n in zip(heard, lengths, strict=True)]


def shape_of(tensor: Tensor, parameter: Tensor, layout: TorchLayout) -> tuple[int, ...]:
    """The shape of the whole."""
    spread = layout.spread(tensor, parameter)
    return tuple(tensor.shape) if spread is None else spread.shape
