"""A model of sequences that takes a fraction of a millisecond, and samples of different lengths."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

WORDS = 100


class Tagger(nn.Module):
    """Predicts a class for each token from it and the mean of its sample, padding left out."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(WORDS, 8), nn.Linear(8, 3)
        self.dropout = nn.Dropout(dropout)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> Any:
        mask = attention_mask.unsqueeze(-1)
        hidden = self.dropout(self.embedding(input_ids)) * mask
        logits = self.output(torch.tanh(hidden + hidden.sum(1, keepdim=True) / mask.sum(1, keepdim=True)))
        if labels is None:
            return {"logits": logits}
        return {"loss": cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def tagger(dropout: float = 0.0) -> Tagger:
    """Return the model with the same weights every time."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return Tagger(dropout)


def sentences(count: int, longest: int = 30, seed: int = 0) -> list[dict[str, list[int]]]:
    """Return samples of 2 to `longest` words, the first of which is different in each of 99 samples."""
    source, made = random.Random(seed), list[dict[str, list[int]]]()
    for number in range(count):
        words = [1 + number % 99, *(source.randrange(1, WORDS) for _ in range(source.randint(1, longest - 1)))]
        made.append({"input_ids": words, "labels": [word % 3 for word in words]})
    return made


def pad(rows: list[Any], multiple: int = 1) -> dict[str, Tensor]:
    """Pad samples on the right, to a multiple of a length."""
    longest = -(-max(len(row["input_ids"]) for row in rows) // multiple) * multiple

    def filled(name: str, value: int) -> Tensor:
        return torch.tensor([list(row[name]) + [value] * (longest - len(row[name])) for row in rows])

    mask = torch.tensor([[1] * len(row["input_ids"]) + [0] * (longest - len(row["input_ids"])) for row in rows])
    return {"input_ids": filled("input_ids", 0), "attention_mask": mask, "labels": filled("labels", -100)}
