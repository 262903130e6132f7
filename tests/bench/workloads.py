"""Benchmark workloads: the small classifier of the hand-written loop, and a GPT of 4 layers and width 128."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.utils.data import Dataset

from tests.reference import bare_loop

VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS = 256, 64, 128, 4, 4


class Block(nn.Module):
    """Causal attention and a two-layer net, each after a layer norm and with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_net = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        rows, positions, _ = hidden.shape
        projected = self.project(self.before_attention(hidden))
        query, key, value = projected.view(rows, positions, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).reshape(rows, positions, WIDTH))
        added: Tensor = hidden + self.narrow(gelu(self.widen(self.before_net(hidden))))
        return added


class GPT(nn.Module):
    """Maps tokens of shape (batch, 64) to the mean cross entropy of each next token."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits: Tensor = self.head(self.norm(self.blocks(self.tokens(x) + self.positions.weight)))
        return {"loss": cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


class Texts(Dataset[dict[str, Tensor]]):
    """`length` rows of random tokens, from a table of 512."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.table = torch.randint(0, VOCABULARY, (512, CONTEXT + 1), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = self.table[index % 512]
        return {"x": row[:-1], "labels": row[1:]}


@frozen
class Workload:
    """A model, its data, and the numbers of steps of the short and the long run."""

    model: Callable[[], nn.Module]
    dataset: Callable[[int], Any]
    short: int
    long: int


WORKLOADS = {
    "TinyMLP": Workload(bare_loop.TinyMLP, bare_loop.Rows, 500, 4000),
    "GPT": Workload(GPT, Texts, 10, 110),
}

BATCH = 8
RATE = 1e-3
collate: Callable[[list[Any]], Any] = bare_loop.stack


def make(name: str) -> tuple[nn.Module, Any]:
    """Return a model and enough data for the long run, in one epoch."""
    workload = WORKLOADS[name]
    return workload.model(), workload.dataset((workload.long + 1) * BATCH)
