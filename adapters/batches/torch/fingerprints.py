"""Fingerprints of a batch and of the random streams, by which two runs are compared."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor


def batch_fingerprint(batch: Any) -> str | None:
    """Return 16 hexadecimal digits (xxh3-64) of the values, types and shapes in a nested batch.

    None if a tensor is not in host memory: reading it would wait for its device.
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


def random_fingerprint(device: str) -> str:
    """Return 16 hexadecimal digits (xxh3-64) of the random streams of Python, numpy, torch's CPU and `device`.

    The streams are those in a checkpoint, but they are not converted to a document: this takes microseconds, and is
    done with every log.
    """
    digest = xxhash.xxh3_64()
    _, words, gauss = random.getstate()
    digest.update(array("Q", words))
    digest.update(repr(gauss).encode())
    state: Any = np.random.get_state(legacy=True)
    digest.update(state[1].data)
    digest.update(repr(state[2:]).encode())
    digest.update(torch.get_rng_state().numpy().data)
    if device.startswith("cuda"):
        digest.update(torch.cuda.get_rng_state(device).numpy().data)
    elif device == "mps":
        digest.update(torch.mps.get_rng_state().numpy().data)
    return digest.hexdigest()


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a nested value, in an order that does not depend on the insertion order of its mappings."""
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
