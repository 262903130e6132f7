"""Classify docstrings by the package of the standard library that they come from, with a tiny transformers model."""

from __future__ import annotations

import ast
import sysconfig
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from hexloop import EvalPrediction

PACKAGES = ("asyncio", "email", "http", "importlib", "logging", "multiprocessing", "unittest", "xml")
"""The classes, in the order of their labels."""

SHORTEST = 40
"""Characters; shorter docstrings are skipped."""

HELD_OUT_EVERY = 5
"""One in this many docstrings of each package is held out."""

PADDING, UNKNOWN, START = "[PAD]", "[UNK]", "[CLS]"


class Docstrings:
    """A map-style dataset of docstrings as token ids, with the number of the package they come from."""

    def __init__(self, texts: list[tuple[str, int]], tokenizer: PreTrainedTokenizerFast) -> None:
        encoded = tokenizer([text for text, _ in texts], truncation=True)
        self.rows = [
            {"input_ids": ids, "attention_mask": mask, "labels": label}
            for ids, mask, (_, label) in zip(encoded["input_ids"], encoded["attention_mask"], texts, strict=True)
        ]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, list[int] | int]:
        return self.rows[index]


def train_split(tokenizer: PreTrainedTokenizerFast) -> Docstrings:
    """Return four fifths of each package's docstrings."""
    return Docstrings(texts()[0], tokenizer)


def held_out_split(tokenizer: PreTrainedTokenizerFast) -> Docstrings:
    """Return the other fifth."""
    return Docstrings(texts()[1], tokenizer)


@cache
def texts() -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Return the training part and the held-out part: unique docstrings with labels."""
    training: list[tuple[str, int]] = []
    held_out: list[tuple[str, int]] = []
    seen: set[str] = set()
    for label, package in enumerate(PACKAGES):
        new = [text for text in dict.fromkeys(docstrings(package)) if text not in seen]
        seen.update(new)
        for number, text in enumerate(new):
            part = held_out if number % HELD_OUT_EVERY == HELD_OUT_EVERY - 1 else training
            part.append((text, label))
    return training, held_out


def docstrings(package: str) -> Iterator[str]:
    """Return the docstrings of a package of the standard library, from its source files in alphabetical order.

    Its tests are left out: not every Python comes with them.
    """
    folder = Path(sysconfig.get_path("stdlib"), package)
    for path in sorted(folder.rglob("*.py")):
        if {"test", "tests"} & set(path.relative_to(folder).parts):
            continue
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node) or ""
                if len(text) >= SHORTEST:
                    yield text


@cache
def tokenizer(vocabulary_size: int = 2000, longest: int = 96) -> PreTrainedTokenizerFast:
    """Return a tokenizer for lower-case words and punctuation, with the most frequent ones of the training part.

    longest: tokens kept of a text.
    """
    normalizer = normalizers.Lowercase()
    splitter = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation()])
    counts = Counter(
        word for text, _ in texts()[0] for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))
    )
    # Ties are broken alphabetically, so that a resumed run gives the words the same ids.
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[: vocabulary_size - 3]
    vocabulary = {word: number for number, word in enumerate([PADDING, UNKNOWN, START, *frequent])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    words.normalizer, words.pre_tokenizer = normalizer, splitter
    words.post_processor = processors.TemplateProcessing(
        single=f"{START} $A", special_tokens=[(START, vocabulary[START])]
    )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # its constructor is untyped
        tokenizer_object=words,
        pad_token=PADDING,
        unk_token=UNKNOWN,
        cls_token=START,
        model_max_length=longest,
        model_input_names=["input_ids", "attention_mask"],
    )


def accuracy(evaluated: EvalPrediction) -> dict[str, float]:
    """Return the accuracy, and that of always predicting the most frequent package."""
    labels = np.asarray(evaluated.label_ids)
    return {
        "accuracy": float((evaluated.predictions.argmax(axis=-1) == labels).mean()),
        "majority": float(np.bincount(labels).max() / len(labels)),
    }
