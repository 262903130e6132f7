"""The English text that every Python carries: the topics of its interactive help, split once for all into two parts.

The topics repeat each other (a statement's topic stands again inside its chapter), so each paragraph is kept only where
it comes first: no paragraph that is held out stands in the training part. Tables and grammars are no English and are
left out.
"""

from __future__ import annotations

import itertools
import re
from pydoc_data.topics import topics

BLOCK = 4_000
"""Bytes of consecutive paragraphs that stay together, so that held-out text is coherent."""

HELD_OUT_EVERY = 10
"""One in this many blocks is held out."""

NO_ENGLISH = re.compile(r"^\s*(\+[-=]{3}|\|\s)|::=", re.MULTILINE)
"""Matches table rules and rows, and grammar definitions."""


def corpus() -> str:
    """Return all topics in alphabetical order."""
    return "\n\n".join(text.strip("\n") for _, text in sorted(topics.items()))


def unique_paragraphs(text: str) -> list[str]:
    """Yield the English paragraphs of `text` in order, without duplicates that differ only in line breaks."""
    first_seen: dict[str, str] = {}
    for paragraph in re.split(r"\n(?:[ \t]*\n)+", text.strip("\n")):
        words = " ".join(paragraph.split())
        if words and not NO_ENGLISH.search(paragraph):
            first_seen.setdefault(words, paragraph)
    return list(first_seen.values())


def split(text: str, block: int = BLOCK, held_out_every: int = HELD_OUT_EVERY) -> tuple[str, str]:
    """Split `text` into training and held-out parts: the last of every `held_out_every` blocks is held out.

    A block is a run of whole paragraphs that begin within the same `block` bytes of the text.
    """
    paragraphs = unique_paragraphs(text)
    sizes = [len(paragraph.encode()) + 2 for paragraph in paragraphs]
    starts = itertools.accumulate(sizes, initial=0)
    parts: tuple[list[str], list[str]] = ([], [])
    for paragraph, start in zip(paragraphs, starts, strict=False):
        held_out = start // block % held_out_every == held_out_every - 1
        parts[held_out].append(paragraph)
    training, held_out_part = ("\n\n".join(part) + "\n" for part in parts)
    return training, held_out_part


def training_text() -> str:
    """Return the training part."""
    return split(corpus())[0]


def held_out_text() -> str:
    """Return the held-out part."""
    return split(corpus())[1]
