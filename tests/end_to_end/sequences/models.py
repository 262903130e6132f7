"""Tiny encoder-decoders, and sequences that they learn to reverse."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import BartConfig, BartForConditionalGeneration, T5Config, T5ForConditionalGeneration

PADDING, START, END, FIRST = 0, 1, 2, 3
VOCABULARY = 13


def t5() -> T5ForConditionalGeneration:
    """Return a T5 of two layers without dropout, with the same weights every time."""
    torch.manual_seed(0)
    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=VOCABULARY,
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=2,
            num_heads=4,
            dropout_rate=0.0,
            pad_token_id=PADDING,
            eos_token_id=END,
            decoder_start_token_id=PADDING,  # type: ignore[call-arg]  # accepted, but not declared
        )
    )


def bart() -> BartForConditionalGeneration:
    """Return a BART of one layer without dropout, with the same weights every time."""
    torch.manual_seed(0)
    return BartForConditionalGeneration(
        BartConfig(
            vocab_size=VOCABULARY,
            d_model=32,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            max_position_embeddings=64,
            dropout=0.0,
            pad_token_id=PADDING,
            bos_token_id=START,
            eos_token_id=END,
            decoder_start_token_id=START,
            forced_eos_token_id=None,
        )
    )


MODELS = {"T5": t5, "BART": bart}


def digits(count: int, longest: int = 6, seed: int = 0) -> list[dict[str, list[int]]]:
    """Return rows of 2 to `longest` digits as tokens, with their reverse as labels, both with the end token."""
    source = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        length = int(torch.randint(2, longest + 1, (), generator=source))
        row = torch.randint(FIRST, VOCABULARY, (length,), generator=source).tolist()
        found.append({"input_ids": [*row, END], "labels": [*reversed(row), END]})
    return found


def padded(rows: list[dict[str, list[int]]]) -> dict[str, Tensor]:
    """Return a batch: inputs padded with the padding token, labels with -100."""
    inputs = _filled([row["input_ids"] for row in rows], PADDING)
    batch = {"input_ids": inputs, "attention_mask": (inputs != PADDING).long()}
    if "labels" in rows[0]:
        batch["labels"] = _filled([row["labels"] for row in rows], -100)
    return batch


def padded_with_decoder_inputs(rows: list[dict[str, list[int]]]) -> dict[str, Tensor]:
    """Return a batch that also contains decoder inputs, which are the labels shifted right."""
    batch = padded(rows)
    shifted = batch["labels"].roll(1, dims=-1)
    shifted[:, 0] = PADDING
    batch["decoder_input_ids"] = shifted.masked_fill(shifted == -100, PADDING)
    return batch


def _filled(rows: list[list[int]], filler: int) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [filler] * (longest - len(row)) for row in rows])


def exact_match(evaluated: Any) -> dict[str, float]:
    """Return the fraction of rows whose tokens up to the end token equal the label's, and the mean length."""
    pairs = list(zip(evaluated.predictions, evaluated.label_ids, strict=True))
    right = [_until_end(tokens[1:]) == _until_end(label) for tokens, label in pairs]
    lengths = [len(_until_end(tokens[1:])) for tokens, _ in pairs]
    return {"exact_match": sum(right) / len(right), "length": sum(lengths) / len(lengths)}


def _until_end(tokens: Any) -> list[int]:
    found: list[int] = tokens.tolist()
    return found[: found.index(END)] if END in found else found
