"""Random augmentation that depends on a sample's position alone, not on the worker or process that draws it."""

from __future__ import annotations

import base64
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from hexloop.domain.order.permutation import sample_keys


class KeyedIndex(NamedTuple):
    """Which sample, and the key of its random streams. (A tuple, as one is made for every sample.)"""

    sample: int
    key: int


class KeyedDataset(Dataset[Any]):
    """`dataset`, each of whose samples is drawn with python's, numpy's and torch's streams seeded by its key.

    The streams that the last sample of a batch leaves behind are those that the batch is put together with. Where
    reading draws nothing, that is all that its keys are for.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, of: KeyedIndex) -> Any:
        sample, key = of
        seed_streams(key)
        return self.dataset[sample]

    def __getitems__(self, batch: Sequence[KeyedIndex]) -> Sequence[Any]:
        """The samples of a batch; all at once where they lie there ready, and the data set can do so."""
        if not batch or not only_stored(self.dataset):  # asked each time, as a transform may be set meanwhile
            return [self[index] for index in batch]
        seed_streams(batch[-1].key)
        samples = [index.sample for index in batch]
        fetch = getattr(self.dataset, "__getitems__", None)
        found: Sequence[Any] = fetch(samples) if fetch else [self.dataset[sample] for sample in samples]
        return found


def only_stored(dataset: Any) -> bool:
    """Whether reading a sample runs no code of the user's, which might draw at random."""
    if type(dataset) is Subset:
        return only_stored(dataset.dataset)
    if (tables := sys.modules.get("datasets")) is not None and type(dataset) is tables.Dataset:
        return bool(dataset.format["type"] != "custom")
    return type(dataset) in (list, tuple, TensorDataset)


def seed_streams(key: int) -> None:
    """Seed the three streams from a 64-bit key. (The default generator is seeded alone: that is 20 times as fast.)"""
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    torch.default_generator.manual_seed(key)


def keyed_indices(indices: list[int], seed: int, epoch: int, start: int) -> list[KeyedIndex]:
    """The samples of the positions from `start` on, each with the key of its position."""
    return list(map(KeyedIndex, indices, sample_keys(seed, epoch, count(start))))


def rng_states() -> list[Any]:
    """Where the streams of python, numpy and torch's processor stand, in arrays and a few numbers."""
    version, words, gauss = random.getstate()
    return [[version, np.array(words, dtype=np.uint32), gauss], list(np.random.get_state()), torch.get_rng_state()]


def restore_rng_states(stand: list[Any]) -> None:
    """Put the three streams where `streams` found them."""
    (version, words, gauss), numpy_state, torch_state = stand
    random.setstate((version, tuple(words.tolist()), gauss))
    np.random.set_state(tuple(numpy_state))
    torch.set_rng_state(torch_state)


@contextmanager
def preserved_rng_states() -> Iterator[None]:
    """Afterwards the streams of python, numpy and torch's processor are where they were."""
    kept = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])
        torch.set_rng_state(kept[2])


def loader_generators(loader: Any) -> list[torch.Generator]:
    """The generators of a loader and its samplers, each once, in an order that is the same in every process."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    holders = (loader, getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
    found: dict[int, torch.Generator] = {}
    for holder in holders:
        generator = getattr(holder, "generator", None)
        if isinstance(generator, torch.Generator) and generator is not torch.default_generator:
            found[id(generator)] = generator
    return list(found.values())


def encode_rng_state(state: torch.Tensor) -> str:
    """A generator's state as text."""
    return base64.b64encode(state.numpy().tobytes()).decode()


def decode_rng_state(text: str) -> torch.Tensor:
    """The generator's state that a text holds."""
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8).clone()
