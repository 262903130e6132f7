"""A digest of the weights of a base, by which a run recognizes the one that its adapters were trained on."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from hexloop.adapters.trainable.torch.serialization import DTYPES
from hexloop.ports.state import JSON, Part

SIZE = 16
"""Bytes of a digest."""

THREADS = 4
"""Threads that read tensors; hashing needs no interpreter lock."""

PIECE = 1 << 26
"""Elements that are copied to host memory at once."""


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """Return the digest of tensors, by their names: of names, dtypes, shapes and all bytes, in no order.

    Tensors of other classes, as quantized ones are, count as the plain tensors that they consist of. They must not
    change meanwhile. Uses BLAKE2b over the digests of the single tensors.
    """
    plain = [each for name, tensor in tensors.items() for each in _plain(name, tensor.detach())]
    with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1), "hexloop-digest") as pool:
        return joined(pool.map(lambda named: _of_tensor(*named), plain))


def digests_of_parts(parts: Iterable[Part], names: Mapping[str, str]) -> list[str]:
    """Return the digests of those whole tensors among the parts that this process has. names: by those of the parts."""
    return [
        _digest(names[part.name], part.dtype, part.shape, [part.read()])
        for part in parts
        if part.dtype != JSON and part.length and part.name in names
    ]


def joined(digests: Iterable[str]) -> str:
    """Return the digest of tensors from those of the single ones."""
    return hashlib.blake2b("".join(sorted(digests)).encode(), digest_size=SIZE).hexdigest()


def _of_tensor(name: str, tensor: Tensor) -> str:
    dtype = DTYPES.get(tensor.dtype, str(tensor.dtype))
    return _digest(name, dtype, tuple(tensor.shape), _bytes_of(tensor))


def _digest(name: str, dtype: str, shape: tuple[int, ...], pieces: Iterable[Any]) -> str:
    found = hashlib.blake2b(f"{name} {dtype} {list(shape)}\n".encode(), digest_size=SIZE)
    for piece in pieces:
        found.update(piece)
    return found.hexdigest()


def _bytes_of(tensor: Tensor) -> Iterator[memoryview]:
    """Yield the bytes of a tensor."""
    flat = tensor.contiguous().reshape(-1)
    for piece in torch.split(flat, PIECE) if flat.numel() else ():
        yield piece.cpu().view(torch.uint8).numpy().data.cast("B")


def _plain(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the plain tensors that a tensor consists of, with names."""
    if type(tensor) in (Tensor, torch.nn.Parameter) or not hasattr(tensor, "__tensor_flatten__"):
        yield name, tensor.as_subclass(Tensor) if type(tensor) is not Tensor else tensor
        return
    inner, _ = tensor.__tensor_flatten__()
    for each in inner:
        yield from _plain(f"{name}.{each}", getattr(tensor, each))
