"""How far the reading of an epoch has come, and how another process goes on from there."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Self

from attrs import asdict, define, evolve, field, frozen

from hexloop.adapters.batches.torch.data_state import DataState, contents

Progress = Callable[[int, int], None]
"""Told that so many of so many rows are passed over; called for the last time when these are equal."""


def no_progress(passed: int, total: int) -> None:
    """Nobody looks on."""


@define
class Standing:
    """What a loop that counts rows does not know of the loader it reads from.

    epoch: the pass over the data. samples: how many of its samples are read. batch_size: samples in a whole batch.
    counts: the batches that each worker gave (one number where there are no workers); last: who gave the last, or -1.
    ended: whether each worker's rows came to their end before its last batch, which is not whole then.
    states: the data set's own state with each worker, as of the last batch that it gave; None where it has none.
    streams: where the random streams stood when the epoch began, for rows that are read here and have no state.
    """

    epoch: int
    batch_size: int
    counts: list[int]
    ended: list[bool]
    states: list[Any]
    samples: int = 0
    last: int = -1
    streams: Any = None

    @classmethod
    def at_the_start(cls, epoch: int, batch_size: int, readers: int) -> Self:
        """Nothing is read yet by any of the readers: the workers, or this process."""
        return cls(epoch, batch_size, [0] * readers, [False] * readers, [None] * readers)

    @classmethod
    def after(cls, epoch: int, samples: int, batch_size: int, readers: int) -> Self:
        """Where reading stands after so many samples, where nothing else is known of it."""
        standing = cls.at_the_start(epoch, batch_size, readers)
        batches = -(-samples // batch_size)
        standing.counts = [len(range(reader, batches, readers)) for reader in range(readers)]
        standing.samples, standing.last = samples, (batches - 1) % readers if batches else -1
        return standing

    def note(self, reader: int, samples: int, state: Any = None) -> None:
        """A reader gave a batch."""
        self.counts[reader] += 1
        self.ended[reader] = samples < self.batch_size
        self.samples += samples
        self.last = reader
        self.states[reader] = state

    @property
    def plain_states(self) -> list[Any]:
        """The states as the data sets gave them."""
        return [contents(state) if isinstance(state, DataState) else state for state in self.states]

    def document(self) -> dict[str, Any]:
        """Everything by its name."""
        return {**asdict(self, recurse=False), "states": self.plain_states}


@frozen
class Beginning:
    """Where an iteration begins.

    standing: where it stands then. loads: whether the states are to be loaded. anew: whether the pass that the states
    are from is over, so that the data begin again.
    """

    standing: Standing
    loads: bool = False
    anew: bool = False


@define
class Place:
    """Where a loader stands, and where the next iteration is to begin.

    readers: workers, or 1. keeps_readers: whether those of one epoch read the next. begins_anywhere: whether the number
    of samples says where to begin, whoever read them.
    """

    batch_size: int
    readers: int
    keeps_readers: bool
    begins_anywhere: bool
    now: Standing | None = field(default=None, init=False)
    saved: Standing | None = field(default=None, init=False)

    def begin(self, epoch: int, position: int) -> Beginning:
        """Where to begin in `epoch`, by what was saved and else by the `position`; the loader stands there from now on.

        At position 0 of an epoch of which samples were read, the epoch is begun again.
        """
        saved, self.saved = self.saved, None
        beginning = self._from(saved, epoch, position)
        self.now = beginning.standing
        return beginning

    def _from(self, saved: Standing | None, epoch: int, position: int) -> Beginning:
        same_readers = saved is not None and len(saved.counts) == self.readers
        if saved is not None and saved.epoch == epoch and (position or not saved.samples):
            if same_readers and (self.readers == 1 or saved.batch_size == self.batch_size):
                return Beginning(evolve(saved, batch_size=self.batch_size), loads=True)
            if not self.begins_anywhere:
                self._warn_of_other_readers(saved)
            position = saved.samples
        standing = Standing.after(epoch, position, self.batch_size, self.readers)
        if saved is not None and saved.epoch < epoch and self.keeps_readers and same_readers:
            return Beginning(evolve(standing, states=list(saved.states)), loads=True, anew=True)
        return Beginning(standing)

    def _warn_of_other_readers(self, saved: Standing) -> None:
        warnings.warn(
            f"The run was saved with its data read by {len(saved.counts)}, in batches of {saved.batch_size}, and goes "
            f"on with {self.readers}, in batches of {self.batch_size}: data that can only be read from the start come "
            "in another order then. Choose the same dataloader_num_workers and batch size to go on exactly.",
            stacklevel=2,
        )
