"""A run's training data from a torch loader."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from typing import Any

import torch
from attrs import frozen

from hexloop.adapters.batches.torch.data_state import (
    DataState,
    capture,
    contents,
    is_stateful,
    parts_of,
    state_from,
)
from hexloop.adapters.batches.torch.keyed_rows import begun_again, set_epoch
from hexloop.adapters.batches.torch.loader import OrderedLoader
from hexloop.adapters.batches.torch.rows import row_count
from hexloop.adapters.batches.torch.standing import Progress, no_progress
from hexloop.adapters.batches.torch.stream import StreamLoader
from hexloop.adapters.batches.torch.streams import kept_streams, own_generators, state_of, text_of
from hexloop.adapters.batches.torch.transfer import Transfer
from hexloop.domain.json_documents import json_part, only_value
from hexloop.ports.state import Part

Inspect = Callable[[Any], None]
"""Looks at the first batch that is read, and raises DataError where it cannot be trained on."""


def inspect_nothing(batch: Any) -> None:
    """Any batch will do."""


class LoaderBatches:
    """Answers the Batches port for one of hexloop's own loaders, which can begin anywhere."""

    def __init__(
        self, loader: OrderedLoader | StreamLoader, transfer: Transfer, inspect: Inspect = inspect_nothing
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
        """The batches from `position` on, on the device.

        Raises DataError where the data keep a state that no checkpoint can hold.
        """
        with closing(self.loader.batches_from(epoch, position)) as batches:
            for batch in batches:
                self._inspect(batch)
                self.loader.standing()
                yield self._transfer(batch)
                break
            yield from map(self._transfer, batches)

    def rows(self, batch: Any) -> int:
        """The length of the batch's first tensor."""
        return row_count(batch)

    def export(self) -> Iterator[Part]:
        """How many samples were read for the batches so far, by whom, and the data set's own state."""
        standing = self.loader.standing()
        return iter(()) if standing is None else parts_of("standing", standing)

    def load(self, parts: Iterable[Part]) -> None:
        """Go on from an export; without parts a position says it all. Raises ValueError for somebody else's parts."""
        standing = state_from("standing", parts)
        if standing is not None:
            self.loader.go_on_from(contents(standing))


@frozen
class Saved:
    """Where a loader with a state of its own stood: the pass over the data, whether it was at its end, the state."""

    epoch: int
    ended: bool
    state: DataState


class ForeignBatches:
    """Answers the Batches port for any iterable of batches, taken as it comes.

    One with `state_dict` and `load_state_dict` goes on from its own state. Any other cannot begin anywhere, so the
    batches before a position are read and dropped. First torch's generator, and those that the loader and its samplers
    have of their own, are put back to where they stood when the epoch began, so that the same order is drawn again;
    afterwards the streams that training shares are put back to where the run left them.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        transfer: Transfer,
        inspect: Inspect = inspect_nothing,
        progress: Progress = no_progress,
    ) -> None:
        self.loader: Any = loader
        self._transfer = transfer
        self._inspect = inspect
        self._progress = progress
        self._generators = [torch.default_generator, *own_generators(loader)]
        self._epoch_began_with = self._states()
        self._now: tuple[int, bool] | None = None
        self._saved: Saved | None = None
        self._anew = False  # the loader is at the end of a pass that this process did not read

    def batches_per_epoch(self) -> int | None:
        """The loader's length, where it has one."""
        return length_of(self.loader)

    def samples_per_epoch(self) -> int | None:
        """The data set's length, where the loader has one."""
        return length_of(getattr(self.loader, "dataset", None))

    def epoch(self, epoch: int, position: int) -> Generator[Any, None, None]:
        """The batches from `position` on, on the device.

        Raises DataError where the loader keeps a state that no checkpoint can hold.
        """
        batches = self._opened(epoch, position)
        for batch in batches:
            self._inspect(batch)
            self._loader_state()
            yield self._transfer(batch)
            break
        yield from map(self._transfer, batches)
        self._now = epoch, True

    def rows(self, batch: Any) -> int:
        """The length of the batch's first tensor."""
        return row_count(batch)

    def export(self) -> Iterator[Part]:
        """Where the generators stood when the epoch began, and where they stand; the loader's own state, if any."""
        document: dict[str, Any] = {"began": self._epoch_began_with, "now": self._states()}
        if (saved := self._loader_state()) is not None:
            document |= {"epoch": saved.epoch, "ended": saved.ended}
            yield from parts_of("loader", saved.state)
        yield json_part("generators", document)

    def load(self, parts: Iterable[Part]) -> None:
        """Go on from exported generators. Raises ValueError where this loader has more of them, or fewer."""
        found = {part.name: part for part in parts}
        kept = only_value([found.pop("generators")] if "generators" in found else found.values(), "generators")
        if len(kept["now"]) != len(self._generators):
            raise ValueError(
                f"The saved data loader had {len(kept['now']) - 1} random generators of its own, and this one has "
                f"{len(self._generators) - 1}; resume with the loader that the run was saved with."
            )
        state = state_from("loader", found.values())
        if state is not None and is_stateful(self.loader):
            self._saved = Saved(kept["epoch"], kept["ended"], state)
        self._epoch_began_with = kept["began"]
        for generator, own in zip(self._generators[1:], kept["now"][1:], strict=True):
            generator.set_state(state_of(own))

    def _opened(self, epoch: int, position: int) -> Iterator[Any]:
        """An iterator that goes on where the run stands."""
        saved, self._saved = self._saved, None
        self._now = epoch, False
        if saved is not None and saved.epoch < epoch:
            self._load(saved)
        self._tell_epoch(epoch)
        if position == 0:
            self._epoch_began_with = self._states()
            anew = self._anew or (saved is not None and saved.epoch < epoch)
            self._anew = False
            return self._read(epoch, anew=anew)
        if saved is not None:
            self._load(saved)
            self._anew = saved.ended
            return iter(()) if saved.ended else self._read(epoch, position)
        with kept_streams():
            self._put_back(self._epoch_began_with)
            batches = self._read(epoch)
            pass_over(batches, self._own_rows(position), self._progress)
            return batches

    def _read(self, epoch: int, position: int = 0, anew: bool = False) -> Iterator[Any]:
        """A pass over the loader, which stands at that position. `anew`: it stands at the end of the pass before."""
        return begun_again(self.loader) if anew else iter(self.loader)

    def _own_rows(self, position: int) -> int:
        """How many rows this process has read up to a position."""
        return position

    def _load(self, saved: Saved) -> None:
        """Put the loader where it stood; at the end of a pass it begins the next one as it would have done."""
        self._tell_epoch(saved.epoch)
        with kept_streams():
            self._put_back(self._epoch_began_with)
            self.loader.load_state_dict(contents(saved.state))
            # Some loaders draw random numbers when they take up their state, and do so when they are next asked for it.
            self.loader.state_dict()

    def _loader_state(self) -> Saved | None:
        """The loader's own state, once it was read from."""
        if self._saved is not None or self._now is None or not is_stateful(self.loader):
            return self._saved
        return Saved(*self._now, capture(self.loader, self.loader.state_dict()))

    def _tell_epoch(self, epoch: int) -> None:
        sampler, batch_sampler = (getattr(self.loader, name, None) for name in ("sampler", "batch_sampler"))
        inner = getattr(batch_sampler, "sampler", None)
        holders = [self.loader, sampler, batch_sampler, inner, getattr(self.loader, "dataset", None)]
        for number, holder in enumerate(holders):
            if not any(holder is told for told in holders[:number]):
                set_epoch(holder, epoch)

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


def pass_over(
    batches: Iterator[Any], position: int, progress: Progress = no_progress, count: Callable[[Any], int] = row_count
) -> None:
    """Read and drop the batches that hold the first `position` rows."""
    passed = 0
    while passed < position:
        batch = next(batches, None)
        if batch is None:
            return
        passed += count(batch)
        progress(min(passed, position), position)
