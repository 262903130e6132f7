"""Reverse rows of digits: the data, a tokenizer for digits, and the share of rows that are reversed exactly."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from hexloop import EvalPrediction

PADDING, END = "<pad>", "</s>"
SHORTEST, LONGEST = 3, 8
"""The number of digits in a row."""


class Reversals:
    """A map-style data set of rows of digits as token ids, with the same digits in reverse as labels."""

    def __init__(self, rows: list[str]) -> None:
        self.rows = rows
        self.inputs = tokenizer()(rows)["input_ids"]
        self.labels = tokenizer()([row[::-1] for row in rows])["input_ids"]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        return {"input_ids": self.inputs[index], "labels": self.labels[index]}


def train_split(count: int, held_out: int) -> Reversals:
    """Return `count` rows, after the first `held_out` that are drawn."""
    return Reversals(rows(held_out + count)[held_out:])


def held_out_split(count: int) -> Reversals:
    """Return the first `count` rows."""
    return Reversals(rows(count))


def rows(count: int, seed: int = 0) -> list[str]:
    """Return the first `count` unique rows of a fixed random order."""
    source = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(source.choices("0123456789", k=source.randint(SHORTEST, LONGEST)))] = None
    return list(found)


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with a token per digit; every row ends with the end token."""
    vocabulary = {word: number for number, word in enumerate([PADDING, END, *"0123456789"])}
    digits = Tokenizer(models.WordLevel(vocabulary, unk_token=PADDING))
    digits.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    digits.decoder = decoders.Fuse()
    digits.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, vocabulary[END])])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # its constructor is untyped
        tokenizer_object=digits,
        pad_token=PADDING,
        eos_token=END,
        model_input_names=["input_ids", "attention_mask"],
    )


def exact_match(evaluated: EvalPrediction) -> dict[str, float]:
    """Return the share of rows that are generated exactly."""
    generated, wanted = (_texts(tokens) for tokens in (evaluated.predictions, evaluated.label_ids))
    return {"exact_match": float(np.mean([one == other for one, other in zip(generated, wanted, strict=True)]))}


def _texts(tokens: np.ndarray[Any, Any]) -> list[str]:
    """Return the digits of each row up to its end token; -100 marks padding."""
    words = tokenizer()
    padding = words.convert_tokens_to_ids(PADDING)
    return [str(words.decode(row, skip_special_tokens=True)) for row in np.where(tokens < 0, padding, tokens)]
