"""The first samples of an evaluation that generates: what went in, what came out, and what was expected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import define, field

INPUT = "input_ids"
IGNORED = -100
"""The label of tokens that do not count."""

NAME = "generated samples"


@define(eq=False)
class GeneratedSamples:
    """Collects rows of token ids from the batches of an evaluation, and decodes them at its end.

    Nothing is decoded during a batch, so that no batch waits for the device. most: how many samples.
    """

    most: int
    _batches: list[tuple[Any, Any, Any]] = field(factory=list, init=False)
    _count: int = field(default=0, init=False)

    def see(self, inputs: Mapping[str, Any], generated: Any, labels: Any) -> None:
        """Take the samples of a batch, as far as they are still wanted."""
        left = self.most - self._count
        if left <= 0:
            return
        given = inputs.get(INPUT)
        rows = [None if each is None else each[:left] for each in (given, generated, labels)]
        self._batches.append((rows[0], rows[1], rows[2]))
        self._count += len(rows[1])

    def table(self, decoder: Any, padding: int | None) -> list[dict[str, str]]:
        """Return a row for each sample, and start again. decoder: a tokenizer, with `batch_decode`."""
        batches, self._batches, self._count = self._batches, [], 0
        rows: list[dict[str, str]] = []
        for batch in batches:
            columns = {
                name: decoder.batch_decode(_sequences(ids, padding), skip_special_tokens=True)
                for name, ids in zip(("input", "generated", "expected"), batch, strict=True)
                if ids is not None
            }
            rows += [dict(zip(columns, texts, strict=True)) for texts in zip(*columns.values(), strict=True)]
        return rows


def _sequences(ids: Any, padding: int | None) -> list[list[int]]:
    """Return token ids as lists; in the place of those that do not count the padding, or nothing."""
    rows: list[list[int]] = ids.tolist()
    if padding is None:
        return [[each for each in row if each != IGNORED] for row in rows]
    return [[padding if each == IGNORED else each for each in row] for row in rows]
