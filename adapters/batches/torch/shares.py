"""A process's share of a batch that several processes compute between them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from attrs import define, frozen

from hexloop.adapters.batches.torch.keyed import seed_streams
from hexloop.domain.errors import DataError
from hexloop.domain.order.slices import ALL, Shard
from hexloop.ports.batches import Padding

APART = 0x9E3779B97F4A7C15
"""Tells the random streams of the processes apart that have read the same rows. Odd, so that no multiple repeats."""


@frozen
class Share:
    """What a process computes of a batch of `samples` over all processes; Padding where none of them is its own.

    witness: what the first of these rows makes by itself, whoever's it is; None where nobody has asked.
    """

    batch: Any
    samples: int
    witness: Any = None


class Divided(NamedTuple):
    """A batch for each process, whether it counts, and the witness. A tuple, through which torch pins memory."""

    batches: list[Any]
    counted: list[bool]
    witness: Any


@define
class Division:
    """Makes of the rows of one global batch a batch for each of some processes.

    size: the rows of a whole global batch. A process without rows gets the first one, which is not to be counted.
    testifies: the first time there is a witness.
    """

    collate: Callable[[list[Any]], Any]
    size: int
    shards: Sequence[Shard] = (ALL,)
    testifies: bool = False

    def __call__(self, rows: list[Any], key: int | None = None) -> Divided:
        """The batches.

        key: of the rows' random streams; a collate function that draws then draws otherwise in each process.
        """
        batches, counted, witness = [], [], None
        if self.testifies:
            self.testifies, witness = False, self.collate(rows[:1])
        for shard in self.shards:
            mine = shard.of(range(len(rows)), self.size)
            if key is not None and shard.world_size > 1:
                seed_streams((key ^ (shard.rank + 1) * APART) & 0xFFFFFFFFFFFFFFFF)
            batches.append(self.collate(rows[mine.start : mine.stop] or rows[:1]))
            counted.append(bool(mine))
        return Divided(batches, counted, witness)


def shares_of(batches: Sequence[Any], counted: Sequence[bool], samples: int, witness: Any = None) -> tuple[Share, ...]:
    """The shares of a batch of so many samples, by process. Raises DataError; see `as_padding`."""
    return tuple(
        Share(batch if counts else as_padding(batch), samples, witness)
        for batch, counts in zip(batches, counted, strict=True)
    )


def as_padding(batch: Any) -> Padding:
    """The batch, not to be counted. Raises DataError where that could not be told."""
    if not isinstance(batch, Mapping):
        raise DataError(
            "The last batch of an epoch has fewer samples than there are processes, and the data_collator returns "
            f"a value of type {type(batch).__name__}, which cannot be told from one that counts; let it return a "
            "dictionary, or set dataloader_drop_last=True."
        )
    return Padding(batch)


class SampleCounts:
    """How many samples over all processes each of the batches stands for that were handed out last.

    They are asked for in the order in which they were handed out; those before it are forgotten.
    usual: what a batch stands for that was never noted.
    """

    def __init__(self, usual: int) -> None:
        self._usual = usual
        self._noted: deque[tuple[Any, int]] = deque()

    def note(self, batch: Any, samples: int) -> None:
        """A batch is handed out."""
        if samples != self._usual:
            self._noted.append((batch, samples))

    def of(self, batch: Any) -> int:
        """The samples of the whole batch."""
        for number, (noted, samples) in enumerate(self._noted):
            if noted is batch:
                for _ in range(number):
                    self._noted.popleft()
                return samples
        return self._usual
