"""What each rank has of an evaluation batch, and how much of it counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from attrs import frozen
from torch import Tensor

from hexloop.adapters.evaluator.torch.predictions import map_tensors

Part = tuple[Any, int, Tensor | None]
"""What a rank has of a batch: nested tensors, the number of rows, and the mean loss, if any."""


class RankGatherer(Protocol):
    """Gathers what each rank has of a batch.

    Each rank calls `parts` for each of its batches, and then `finish`; or, at any time, `fail`. An error is raised on
    all ranks if one has fewer batches or failed.
    """

    def parts(self, values: Any, rows: int, loss: Tensor | None) -> list[Part]:
        """Return what every rank has of the batch, given what this one has."""
        ...

    def finish(self) -> None:
        """Check that no rank has another batch."""
        ...

    def fail(self, error: Exception) -> None:
        """Report to the other ranks that this one failed."""
        ...

    def loss_weights(self, rows: Sequence[int]) -> list[int]:
        """Return the weight of each rank's mean loss, given the rows of each rank that `parts` returned."""
        return weights_by_rows(rows)


def weights_by_rows(rows: Sequence[int]) -> list[int]:
    """Return the rows of each rank. A batch of a single rank whose rows cannot be counted weighs as one row."""
    return [max(rows[0], 1)] if len(rows) == 1 else list(rows)


class SingleRank(RankGatherer):
    """The gatherer of a single process."""

    def parts(self, values: Any, rows: int, loss: Tensor | None) -> list[Part]:
        """Return this rank's values."""
        return [(values, rows, loss)]

    def finish(self) -> None:
        """No-op."""

    def fail(self, error: Exception) -> None:
        """No-op."""


@frozen
class TruncatedRanks(RankGatherer):
    """What transformers keeps of a batch: the first rows of all ranks together, as many as accelerate says.

    ranks: gathers. kept: returns how many rows of the current batch to keep, None for all. batch_size: the weight of a
    rank's loss, in rows, before the loss is cut off in the same way; that of a smaller batch is the same.
    """

    _ranks: RankGatherer
    _kept: Callable[[], int | None]
    _batch_size: int

    def parts(self, values: Any, rows: int, loss: Tensor | None) -> list[Part]:
        """Return the values of every rank without the rows that are cut off."""
        found = self._ranks.parts(values, rows, loss)
        counts = first_of([count for _, count, _ in found], self._kept())
        return [
            (each if kept == count else first_rows(each, kept), kept, its_loss)
            for (each, count, its_loss), kept in zip(found, counts, strict=True)
        ]

    def finish(self) -> None:
        """Check that no rank has another batch."""
        self._ranks.finish()

    def fail(self, error: Exception) -> None:
        """Report to the other ranks that this one failed."""
        self._ranks.fail(error)

    def loss_weights(self, rows: Sequence[int]) -> list[int]:
        """Return the batch size for each rank, cut off as rows are."""
        return first_of([self._batch_size] * len(rows), self._kept())


def first_of(counts: Sequence[int], kept: int | None) -> list[int]:
    """Return how many of each count belong to the first `kept` of all; with None, all of them."""
    if kept is None:
        return list(counts)
    found = []
    for count in counts:
        found.append(min(count, kept))
        kept -= found[-1]
    return found


def first_rows(values: Any, rows: int) -> Any:
    """Return the first rows of nested tensors."""
    return map_tensors(lambda tensor: tensor[:rows] if tensor.ndim else tensor, values)
