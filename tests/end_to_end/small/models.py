"""A model that takes a fraction of a millisecond, with dropout, and its data."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import Dataset, IterableDataset

FEATURES = 4


class Net(nn.Module):
    """(batch, 4) -> (batch, 1); the output contains "loss" if there are labels."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 1))

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.layers(x)
        return {"logits": logits} if labels is None else {"loss": mse_loss(logits, labels), "logits": logits}


def net(dropout: float = 0.0, kind: type[Net] = Net) -> Net:
    """Return the model with the same weights every time."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return kind(dropout)


def rows(count: int, seed: int = 0) -> list[dict[str, Tensor]]:
    """Return samples of a fixed plane."""
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(count, FEATURES, generator=source)
    labels = x.sum(dim=1, keepdim=True)
    return [{"x": one, "labels": label} for one, label in zip(x, labels, strict=True)]


class Noisy(Dataset[dict[str, Tensor]]):
    """Samples to which each of the three random generators adds noise."""

    def __init__(self, count: int) -> None:
        self.rows = rows(count)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        noise = torch.rand(FEATURES) + float(np.random.rand()) + random.random()
        return {"x": self.rows[index]["x"] + 0.1 * noise, "labels": self.rows[index]["labels"]}


class Stream(IterableDataset[dict[str, Tensor]]):
    """Samples as a stream without a length."""

    def __init__(self, count: int) -> None:
        self.rows = rows(count)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        yield from self.rows
