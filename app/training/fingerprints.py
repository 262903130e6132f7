"""Fingerprints by which two runs are told apart: of a batch, and of the random streams."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor

from hexloop.ports.device import Device


def batch_fingerprint(batch: Any) -> str | None:
    """16 hexadecimal digits (xxh3-64) of the values, types and shapes in a batch, whatever they are nested in.

    None where a tensor is not in the processor's memory: to read it would make the program wait for its device.
    """
    digest = xxhash.xxh3_64()
    for name, leaf in _leaves("", batch):
        if isinstance(leaf, Tensor):
            if leaf.device.type != "cpu":
                return None
            digest.update(f"{name} {leaf.dtype} {tuple(leaf.shape)}\n".encode())
            digest.update(leaf.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        elif isinstance(leaf, np.ndarray) and leaf.dtype != object:
            digest.update(f"{name} {leaf.dtype} {leaf.shape}\n".encode())
            digest.update(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data)
        else:
            plain = leaf is None or isinstance(leaf, str | bytes | int | float)
            digest.update(f"{name} {repr(leaf) if plain else type(leaf).__name__}\n".encode())
    return digest.hexdigest()


def random_fingerprint(device: Device) -> str:
    """16 hexadecimal digits (xxh3-64) of every random stream of a run, as it stands."""
    digest = xxhash.xxh3_64()
    for part in device.export():
        digest.update(part.name.encode())
        digest.update(part.read())
    return digest.hexdigest()


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What is in a nested value, in an order that does not depend on how its mappings were filled."""
    inner: Iterable[tuple[Any, Any]]
    if isinstance(value, Mapping):
        inner = sorted(value.items(), key=lambda item: str(item[0]))
    elif isinstance(value, list | tuple):
        inner = enumerate(value)
    else:
        yield name, value
        return
    for key, each in inner:
        yield from _leaves(f"{name}/{key}", each)
