"""Tiny configurations of transformers' encoders, without dropout."""

from __future__ import annotations

from typing import Any

from transformers import BertConfig

LAYER: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
"""One layer, with the names of most encoders' configurations."""


def bert_config(words: int, positions: int = 32, **further: Any) -> BertConfig:
    """Return the config of a BERT with one layer, a vocabulary size and a maximum length."""
    return BertConfig(vocab_size=words, max_position_embeddings=positions, **LAYER, **further)
