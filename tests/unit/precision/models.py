"""Small models with layers that can multiply in 8 bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss


class Wide(nn.Module):
    """(batch, 4) -> (batch, 1): of its four linear layers, the two in the middle are of 32 x 32."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Linear(4, 32)
        self.inner = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Dropout(dropout), nn.Linear(32, 32))
        self.last = nn.Linear(32, 1)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        """Return the predictions as logits, and the loss if there are labels."""
        logits = self.last(torch.tanh(self.inner(torch.tanh(self.first(x)))))
        return {"logits": logits} if labels is None else {"loss": mse_loss(logits, labels), "logits": logits}


def wide(dropout: float = 0.0) -> Wide:
    """Return the model with the same weights every time."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return Wide(dropout)
