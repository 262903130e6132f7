"""Random augmentation that depends on a sample's position alone, not on the worker or process that draws it."""

from __future__ import annotations

import random
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset

from hexloop.domain.order.keys import sample_keys


class KeyedIndex(NamedTuple):
    """Which sample, and the key of its random streams. (A tuple, as one is made for every sample.)"""

    sample: int
    key: int


class KeyedDataset(Dataset[Any]):
    """`dataset`, each of whose samples is drawn with python's, numpy's and torch's streams seeded by its key."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, of: KeyedIndex) -> Any:
        sample, key = of
        seed_streams(key)
        return self.dataset[sample]


def seed_streams(key: int) -> None:
    """Seed the three streams from a 64-bit key. (The default generator is seeded alone: that is 20 times as fast.)"""
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    torch.default_generator.manual_seed(key)


def keyed_indices(indices: list[int], seed: int, epoch: int, start: int) -> list[KeyedIndex]:
    """The samples of the positions from `start` on, each with the key of its position."""
    return list(map(KeyedIndex, indices, sample_keys(seed, epoch, count(start))))
