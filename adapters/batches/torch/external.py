"""What a loader of somebody else's is: how it chooses rows, and whether each process gets its own already."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

import torch
from attrs import frozen
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from hexloop.adapters.batches.torch.batches import Inspect, accept_any, length_of
from hexloop.adapters.batches.torch.data_state import (
    DataState,
    Progress,
    decode_state,
    encode_state,
    is_stateful,
    no_progress,
    state_from_parts,
    state_parts,
)
from hexloop.adapters.batches.torch.loader import is_iterable
from hexloop.adapters.batches.torch.random_streams import (
    decode_rng_state,
    encode_rng_state,
    loader_generators,
    preserved_rng_states,
)
from hexloop.adapters.batches.torch.stream import restarted, set_epoch
from hexloop.adapters.batches.torch.structure import Transfer, row_count
from hexloop.domain.json_documents import json_part, only_value
from hexloop.ports.state import Part


def reads_by_index(loader: Any) -> bool:
    """Whether the loader is torch's own, and a batch sampler says which rows of its data make a batch."""
    return type(loader) is DataLoader and loader.batch_sampler is not None and not is_iterable(loader.dataset)


def is_sharded_already(loader: Any) -> bool:
    """Whether each process's loader gives it its own batches: by a DistributedSampler, or as accelerate made it."""
    prepared = any(kind.__module__.startswith("accelerate.") for kind in type(loader).__mro__)
    return prepared or distributed_sampler(loader) is not None


def distributed_sampler(loader: Any) -> DistributedSampler[Any] | None:
    """The sampler by which the loader takes a part of the data, if it does."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    for sampler in (getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)):
        if isinstance(sampler, DistributedSampler) and sampler.num_replicas > 1:
            return sampler
    return None


def unsharded_batches(loader: Any) -> BatchSampler | None:
    """The batches of all rows, each once, of which a DistributedSampler gives this process some, and some twice.

    None where the loader does not put batches together as torch does by itself.
    """
    sampler = distributed_sampler(loader)
    if sampler is None or type(loader.batch_sampler) is not BatchSampler or not reads_by_index(loader):
        return None
    whole: DistributedSampler[Any] = DistributedSampler(sampler.dataset, 1, 0, sampler.shuffle, sampler.seed)
    whole.set_epoch(sampler.epoch)
    return BatchSampler(whole, loader.batch_sampler.batch_size, drop_last=False)


@frozen
class SavedLoaderState:
    """Where a loader with a state of its own stood: the pass over the data, whether it was at its end, the state."""

    epoch: int
    ended: bool
    state: DataState


class ExternalBatches:
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
        inspect: Inspect = accept_any,
        progress: Progress = no_progress,
    ) -> None:
        self.loader: Any = loader
        self._transfer = transfer
        self._inspect = inspect
        self._progress = progress
        self._generators = [torch.default_generator, *loader_generators(loader)]
        self._epoch_began_with = self._states()
        self._now: tuple[int, bool] | None = None
        self._saved: SavedLoaderState | None = None
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
            yield from state_parts("loader", saved.state)
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
        state = state_from_parts("loader", found.values())
        if state is not None and is_stateful(self.loader):
            self._saved = SavedLoaderState(kept["epoch"], kept["ended"], state)
        self._epoch_began_with = kept["began"]
        for generator, own in zip(self._generators[1:], kept["now"][1:], strict=True):
            generator.set_state(decode_rng_state(own))

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
        with preserved_rng_states():
            self._put_back(self._epoch_began_with)
            batches = self._read(epoch)
            skip_rows(batches, self._own_rows(position), self._progress)
            return batches

    def _read(self, epoch: int, position: int = 0, anew: bool = False) -> Iterator[Any]:
        """A pass over the loader, which stands at that position. `anew`: it stands at the end of the pass before."""
        return restarted(self.loader) if anew else iter(self.loader)

    def _own_rows(self, position: int) -> int:
        """How many rows this process has read up to a position."""
        return position

    def _load(self, saved: SavedLoaderState) -> None:
        """Put the loader where it stood; at the end of a pass it begins the next one as it would have done."""
        self._tell_epoch(saved.epoch)
        with preserved_rng_states():
            self._put_back(self._epoch_began_with)
            self.loader.load_state_dict(decode_state(saved.state))
            # Some loaders draw random numbers when they take up their state, and do so when they are next asked for it.
            self.loader.state_dict()

    def _loader_state(self) -> SavedLoaderState | None:
        """The loader's own state, once it was read from."""
        if self._saved is not None or self._now is None or not is_stateful(self.loader):
            return self._saved
        return SavedLoaderState(*self._now, encode_state(self.loader, self.loader.state_dict()))

    def _tell_epoch(self, epoch: int) -> None:
        sampler, batch_sampler = (getattr(self.loader, name, None) for name in ("sampler", "batch_sampler"))
        inner = getattr(batch_sampler, "sampler", None)
        holders = [self.loader, sampler, batch_sampler, inner, getattr(self.loader, "dataset", None)]
        for number, holder in enumerate(holders):
            if not any(holder is told for told in holders[:number]):
                set_epoch(holder, epoch)

    def _states(self) -> list[str]:
        return [encode_rng_state(generator.get_state()) for generator in self._generators]

    def _put_back(self, states: list[str]) -> None:
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(decode_rng_state(state))


def skip_rows(
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
