"""The micro-batches of each optimizer step."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from typing import TypeVar

Batch = TypeVar("Batch")


def windows(batches: Generator[Batch, None, None], accumulation: int) -> Generator[list[Batch], None, None]:
    """The batches in groups of `accumulation`, the last of which may be smaller; reads no batch before its turn."""
    with closing(batches):
        window: list[Batch] = []
        for batch in batches:
            window.append(batch)
            if len(window) == accumulation:
                yield window
                window = []
        if window:
            yield window
