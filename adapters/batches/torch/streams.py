"""The random generators that reading data may draw from."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def streams() -> list[Any]:
    """Where the streams of python, numpy and torch's processor stand, in arrays and a few numbers."""
    version, words, gauss = random.getstate()
    return [[version, np.array(words, dtype=np.uint32), gauss], list(np.random.get_state()), torch.get_rng_state()]


def put_streams(stand: list[Any]) -> None:
    """Put the three streams where `streams` found them."""
    (version, words, gauss), numpy_state, torch_state = stand
    random.setstate((version, tuple(words.tolist()), gauss))
    np.random.set_state(tuple(numpy_state))
    torch.set_rng_state(torch_state)


@contextmanager
def kept_streams() -> Iterator[None]:
    """Afterwards the streams of python, numpy and torch's processor are where they were."""
    kept = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])
        torch.set_rng_state(kept[2])


def own_generators(loader: Any) -> list[torch.Generator]:
    """The generators of a loader and its samplers, each once, in an order that is the same in every process."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    holders = (loader, getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
    found: dict[int, torch.Generator] = {}
    for holder in holders:
        generator = getattr(holder, "generator", None)
        if isinstance(generator, torch.Generator) and generator is not torch.default_generator:
            found[id(generator)] = generator
    return list(found.values())


def text_of(state: torch.Tensor) -> str:
    """A generator's state as text."""
    return base64.b64encode(state.numpy().tobytes()).decode()


def state_of(text: str) -> torch.Tensor:
    """The generator's state that a text holds."""
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8).clone()
