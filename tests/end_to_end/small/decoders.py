"""Tiny language models of transformers, and their data: rows of different lengths, padded to the same."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor

WORDS, LENGTH = 40, 12


def llama(**given: Any) -> Any:
    """Return a decoder with the same weights every time."""
    sizes: dict[str, Any] = {
        "vocab_size": WORDS, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.5,
    }  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**sizes, **given}))


def sentences(count: int) -> list[dict[str, Tensor]]:
    """Return rows of 2 to 12 tokens; in some the first labels do not count, and in the last one none does."""
    draw = torch.Generator().manual_seed(count)
    found = []
    for number in range(count):
        length = 2 + 7 * number % (LENGTH - 1)
        tokens = torch.randint(1, WORDS, (length,), generator=draw)
        ignored = length if number == count - 1 else number % 3
        labels = torch.where(torch.arange(length) < ignored, -100, tokens)
        padding = torch.zeros(LENGTH - length, dtype=torch.long)
        found.append(
            {
                "input_ids": torch.cat([tokens, padding]),
                "attention_mask": torch.cat([torch.ones_like(tokens), padding]),
                "labels": torch.cat([labels, padding - 100]),
            }
        )
    return found
