"""A run's training data from a torch loader."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from typing import Any

import torch

from hexloop.adapters.batches.torch.loader import OrderedLoader, StreamLoader, pass_over
from hexloop.adapters.batches.torch.rows import row_count
from hexloop.adapters.batches.torch.streams import kept_streams, own_generators, state_of, text_of
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

    It cannot begin anywhere, so the batches before a position are read and dropped. First torch's generator, and those
    that the loader and its samplers have of their own, are put back to where they stood when the epoch began, so that
    the same order is drawn again; afterwards the streams that training shares are put back to where the run left them.
    """

    def __init__(self, loader: Iterable[Any], transfer: Transfer, inspect: Inspect = _inspect_nothing) -> None:
        self.loader = loader
        self._transfer = transfer
        self._inspect = inspect
        self._generators = [torch.default_generator, *own_generators(loader)]
        self._epoch_began_with = self._states()

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
        if position == 0:
            self._epoch_began_with = self._states()
            batches = iter(self.loader)
        else:
            with kept_streams():
                self._put_back(self._epoch_began_with)
                batches = iter(self.loader)
                pass_over(batches, position)
        for batch in batches:
            self._inspect(batch)
            yield self._transfer(batch)
            break
        yield from map(self._transfer, batches)

    def rows(self, batch: Any) -> int:
        """The length of the batch's first tensor."""
        return row_count(batch)

    def export(self) -> Iterator[Part]:
        """Where the generators stood when the epoch began, and where they stand."""
        yield json_part("generators", {"began": self._epoch_began_with, "now": self._states()})

    def load(self, parts: Iterable[Part]) -> None:
        """Go on from exported generators. Raises ValueError where this loader has more of them, or fewer."""
        kept = only_value(parts, "generators")
        if len(kept["now"]) != len(self._generators):
            raise ValueError(
                f"The saved data loader had {len(kept['now']) - 1} random generators of its own, and this one has "
                f"{len(self._generators) - 1}; resume with the loader that the run was saved with."
            )
        self._epoch_began_with = kept["began"]
        for generator, state in zip(self._generators[1:], kept["now"][1:], strict=True):
            generator.set_state(state_of(state))

    def _states(self) -> list[str]:
        return [text_of(generator.get_state()) for generator in self._generators]

    def _put_back(self, states: list[str]) -> None:
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state_of(state))


def length_of(data: Any) -> int | None:
    """`len(data)`, or None where it has no length."""
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return None
