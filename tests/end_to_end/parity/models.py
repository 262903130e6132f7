"""The models that both libraries train: a convolutional net, a plain GPT, and transformers' GPT-2."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from transformers import GPT2Config, GPT2LMHeadModel

IMAGE_SIDE, CLASSES = 8, 5
VOCABULARY, CONTEXT = 61, 24
WIDTH, HEADS = 32, 4

UNDETERMINED: Mapping[str, slice] = {
    "blocks.0.attention.key.bias": slice(None),
    "blocks.1.attention.key.bias": slice(None),
    "transformer.h.0.attn.c_attn.bias": slice(WIDTH, 2 * WIDTH),
    "transformer.h.1.attn.c_attn.bias": slice(WIDTH, 2 * WIDTH),
}
"""Parameters that do not affect the loss, so that their gradient is rounding noise, which Adam scales up.

A key bias adds the same number to every score of a query, which softmax cancels.
"""


class Recomputing(nn.Module):
    """A module whose blocks can be recomputed in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.recomputes = False
        self.config = SimpleNamespace()  # transformers reads it before it smooths labels

    def activation_checkpointing_enable(self, **options: Any) -> None:
        self.recomputes = True

    def through(self, block: nn.Module, hidden: Tensor) -> Tensor:
        if self.recomputes and self.training:
            return checkpoint(block, hidden, use_reentrant=False)  # type: ignore[no-any-return]
        return block(hidden)  # type: ignore[no-any-return]


class ConvolutionalNet(Recomputing):
    """Two convolutions with group norms, and a classifier on their mean: (batch, 1, 8, 8) -> (batch, 5)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU())
        self.classifier = nn.Linear(16, CLASSES)

    def forward(self, pixels: Tensor | None = None, labels: Tensor | None = None) -> dict[str, Tensor]:
        hidden = self.through(self.second, self.through(self.first, pixels))  # type: ignore[arg-type]
        logits = self.classifier(hidden.mean(dim=(2, 3)))
        return {"logits": logits} if labels is None else {"loss": cross_entropy(logits, labels), "logits": logits}


class Attention(nn.Module):
    """Causal self-attention with separate projections for queries, keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        rows, positions, _ = hidden.shape

        def heads(projection: nn.Linear) -> Tensor:
            return projection(hidden).view(rows, positions, HEADS, -1).transpose(1, 2)  # type: ignore[no-any-return]

        mixed = scaled_dot_product_attention(heads(self.query), heads(self.key), heads(self.value), is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(rows, positions, WIDTH))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention and a two-layer net, each after a layer norm and with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.net_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.attention(self.attention_norm(hidden))
        return hidden + self.narrow(relu(self.widen(self.net_norm(hidden))))  # type: ignore[no-any-return]


class PlainGPT(Recomputing):
    """A GPT in plain torch; its loss is the mean over the labels that are not -100, aligned with their inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, input_ids: Tensor | None = None, labels: Tensor | None = None) -> dict[str, Tensor]:
        assert input_ids is not None
        hidden = self.tokens(input_ids) + self.positions.weight[: input_ids.shape[1]]
        for block in self.blocks:
            hidden = self.through(block, hidden)
        logits: Tensor = self.head(self.norm(hidden))
        if labels is None:
            return {"logits": logits}
        return {"loss": cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def gpt2() -> GPT2LMHeadModel:
    """Return transformers' GPT-2, small and without dropout."""
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=CONTEXT,
            n_embd=WIDTH,
            n_layer=2,
            n_head=HEADS,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
        )
    )


MAKERS = {"convolution": ConvolutionalNet, "plain GPT": PlainGPT, "GPT-2": gpt2}


def make_model(name: str) -> nn.Module:
    """Return the model of that name, with the same weights every time."""
    torch.manual_seed(0)
    return MAKERS[name]()


def summed(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """A user's loss, divided by the given count of items."""
    logits = outputs["logits"].flatten(0, -2)
    loss: Tensor = cross_entropy(logits, labels.flatten(), reduction="sum") / num_items_in_batch
    return loss
