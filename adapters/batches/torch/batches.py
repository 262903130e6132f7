"""A run's training data from a torch loader."""

from __future__ import annotations

import base64
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from typing import Any

import torch

from hexloop.adapters.batches.torch.loader import OrderedLoader, StreamLoader, skip_batches
from hexloop.adapters.batches.torch.rows import row_count
from hexloop.adapters.batches.torch.transfer import Transfer
from hexloop.domain.parts import json_part, only_value
from hexloop.ports.state import Part

Inspect = Callable[[Any], None]
"""Looks at the first batch that is read, and raises DataError where it cannot be trained on."""


def _inspect_nothing(batch: Any) -> None:
    """Any batch will do."""


class LoaderBatches:
    """Answers the Batches port for one of hexloop's own loaders, which can begin anywhere."""

    def __init__(
        self, loader: OrderedLoader | StreamLoader, transfer: Transfer, inspect: Inspect = _inspect_nothing
    ) -> None:
        self.loader = loader
        self._transfer = transfer
        self._inspect = inspect

    def batches_per_epoch(self) -> int | None:
        """The loader's length, where it has one."""
        return length_of(self.loader)

    def samples_per_epoch(self) -> int | None:
        """The data set's length, where it has one."""
        return length_of(self.loader.dataset)

    def epoch(self, epoch: int, position: int) -> Generator[Any, None, None]:
        """The batches from `position` on, on the device."""
        with closing(self.loader.batches_from(epoch, position)) as batches:
            for batch in batches:
                self._inspect(batch)
                yield self._transfer(batch)
                break
            yield from map(self._transfer, batches)

    def rows(self, batch: Any) -> int:
        """The length of the batch's first tensor."""
        return row_count(batch)

    def export(self) -> Iterator[Part]:
        """A position says it all."""
        return iter(())

    def load(self, parts: Iterable[Part]) -> None:
        """A position says it all."""


class ForeignBatches:
    """Answers the Batches port for any iterable of batches, taken as it comes.

    It cannot begin anywhere, so the batches before a position are read and dropped. Torch's generator is put back
    first to where it stood when the epoch began, so that a sampler that draws its order from it draws the same again,
    and afterwards to where the run left it.
    """

    def __init__(self, loader: Iterable[Any], transfer: Transfer, inspect: Inspect = _inspect_nothing) -> None:
        self.loader = loader
        self._transfer = transfer
        self._inspect = inspect
        self._epoch_began_with = torch.get_rng_state()

    def batches_per_epoch(self) -> int | None:
        """The loader's length, where it has one."""
        return length_of(self.loader)

    def samples_per_epoch(self) -> int | None:
        """The data set's length, where the loader has one."""
        return length_of(getattr(self.loader, "dataset", None))

    def epoch(self, epoch: int, position: int) -> Generator[Any, None, None]:
        """The batches from `position` on, on the device."""
        for holder in (self.loader, getattr(self.loader, "sampler", None), getattr(self.loader, "dataset", None)):
            set_epoch = getattr(holder, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)
        present = torch.get_rng_state()
        if position == 0:
            self._epoch_began_with = present
        else:
            torch.set_rng_state(self._epoch_began_with)
        batches = skip_batches(self.loader, position)
        for batch in batches:
            if position > 0:
                torch.set_rng_state(present)
            self._inspect(batch)
            yield self._transfer(batch)
            break
        yield from map(self._transfer, batches)

    def rows(self, batch: Any) -> int:
        """The length of the batch's first tensor."""
        return row_count(batch)

    def export(self) -> Iterator[Part]:
        """Where torch's generator stood when the epoch began."""
        yield json_part("epoch_began_with", base64.b64encode(self._epoch_began_with.numpy().tobytes()).decode())

    def load(self, parts: Iterable[Part]) -> None:
        """Begin the next epoch from an exported generator state."""
        state = base64.b64decode(only_value(parts, "epoch_began_with"))
        self._epoch_began_with = torch.frombuffer(bytearray(state), dtype=torch.uint8).clone()


def length_of(data: Any) -> int | None:
    """`len(data)`, or None where it has no length."""
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return None
