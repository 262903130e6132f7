"""Batches from a loader of another library, or from any iterable of batches."""

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
    decode_valid_rng_state,
    encode_rng_state,
    loader_generators,
    preserved_rng_states,
)
from hexloop.adapters.batches.torch.stream import restarted, set_epoch
from hexloop.adapters.batches.torch.structure import Transfer, row_count
from hexloop.domain.json_documents import json_part, only_value
from hexloop.ports.state import Part


@frozen
class SavedLoaderState:
    """The saved state of a loader: the epoch, whether the loader was at its end, and the loader's `state_dict`."""

    epoch: int
    ended: bool
    state: DataState


class ExternalBatches:
    """Implements the Batches port for any iterable of batches.

    A loader with `state_dict` and `load_state_dict` resumes from its own state. Any other cannot start in the middle of
    an epoch, so the batches before a position are read and dropped. Before that, torch's generator and those of the
    loader and its samplers are set to their states at the start of the epoch, so that the loader draws the same order
    again; afterwards the random streams of training are restored.
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
        self._epoch_start_states = self._generator_states()
        self._current: tuple[int, bool] | None = None  # the epoch, and whether it is at its end
        self._saved: SavedLoaderState | None = None
        self._new_pass = False  # the loader is at the end of a pass that another process has read

    def batches_per_epoch(self) -> int | None:
        """Return the loader's length; None if it has none."""
        return length_of(self.loader)

    def samples_per_epoch(self) -> int | None:
        """Return the length of the loader's dataset; None if it has none."""
        return length_of(getattr(self.loader, "dataset", None))

    def epoch(self, epoch: int, position: int) -> Generator[Any, None, None]:
        """Yield the batches from `position` on, on the device.

        Raises DataError if the loader has a state that cannot be stored in a checkpoint.
        """
        batches = self._open(epoch, position)
        for batch in batches:
            self._inspect(batch)
            self._loader_state()
            yield self._transfer(batch)
            break
        yield from map(self._transfer, batches)
        self._current = epoch, True

    def rows(self, batch: Any) -> int:
        """Return the length of the batch's first tensor."""
        return row_count(batch)

    def export(self) -> Iterator[Part]:
        """Export the states of the generators, now and at the start of the epoch, and the loader's state, if any."""
        document: dict[str, Any] = {"began": self._epoch_start_states, "now": self._generator_states()}
        if (saved := self._loader_state()) is not None:
            document |= {"epoch": saved.epoch, "ended": saved.ended}
            yield from state_parts("loader", saved.state)
        yield json_part("generators", document)

    def load(self, parts: Iterable[Part]) -> None:
        """Resume from an export. Raises ValueError if this loader has a different number of generators."""
        found = {part.name: part for part in parts}
        document = only_value([found.pop("generators")] if "generators" in found else found.values(), "generators")
        if len(document["now"]) != len(self._generators):
            raise ValueError(
                f"The saved data loader had {len(document['now']) - 1} random generators of its own, and this one has "
                f"{len(self._generators) - 1}; resume with the loader that the run was saved with."
            )
        state = state_from_parts("loader", found.values())
        if state is not None and is_stateful(self.loader):
            self._saved = SavedLoaderState(document["epoch"], document["ended"], state)
        states = list(map(decode_valid_rng_state, document["now"], self._generators))
        list(map(decode_valid_rng_state, document["began"], self._generators))
        self._epoch_start_states = document["began"]
        for generator, own in zip(self._generators[1:], states[1:], strict=True):
            generator.set_state(own)

    def _open(self, epoch: int, position: int) -> Iterator[Any]:
        """Return an iterator from where the run resumes."""
        saved, self._saved = self._saved, None
        self._current = epoch, False
        if saved is not None and saved.epoch < epoch:
            self._load_state(saved)
        self._set_epoch(epoch)
        if position == 0:
            self._epoch_start_states = self._generator_states()
            new_pass = self._new_pass or (saved is not None and saved.epoch < epoch)
            self._new_pass = False
            return self._read(epoch, new_pass=new_pass)
        if saved is not None:
            self._load_state(saved)
            self._new_pass = saved.ended
            return iter(()) if saved.ended else self._read(epoch, position)
        with preserved_rng_states():
            self._restore_generators(self._epoch_start_states)
            batches = self._read(epoch)
            skip_rows(batches, self._own_rows(position), self._progress)
            return batches

    def _read(self, epoch: int, position: int = 0, new_pass: bool = False) -> Iterator[Any]:
        """Iterate over the loader, which is at `position`; with `new_pass` at the end of the previous pass."""
        return restarted(self.loader) if new_pass else iter(self.loader)

    def _own_rows(self, position: int) -> int:
        """Return the number of rows that this rank has read up to a position."""
        return position

    def _load_state(self, saved: SavedLoaderState) -> None:
        """Load the loader's state; at the end of a pass it then starts the next one as it would have done."""
        self._set_epoch(saved.epoch)
        with preserved_rng_states():
            self._restore_generators(self._epoch_start_states)
            self.loader.load_state_dict(decode_state(saved.state))
            # Some loaders draw random numbers to apply a loaded state, as late as the next call of state_dict().
            self.loader.state_dict()

    def _loader_state(self) -> SavedLoaderState | None:
        """Return the loader's own state; None if it has none or has not been read."""
        if self._saved is not None or self._current is None or not is_stateful(self.loader):
            return self._saved
        return SavedLoaderState(*self._current, encode_state(self.loader, self.loader.state_dict()))

    def _set_epoch(self, epoch: int) -> None:
        sampler, batch_sampler = (getattr(self.loader, name, None) for name in ("sampler", "batch_sampler"))
        inner = getattr(batch_sampler, "sampler", None)
        objects = [self.loader, sampler, batch_sampler, inner, getattr(self.loader, "dataset", None)]
        for number, each in enumerate(objects):
            if not any(each is earlier for earlier in objects[:number]):
                set_epoch(each, epoch)

    def _generator_states(self) -> list[str]:
        return [encode_rng_state(generator.get_state()) for generator in self._generators]

    def _restore_generators(self, states: list[str]) -> None:
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(decode_rng_state(state))


def skip_rows(
    batches: Iterator[Any], position: int, progress: Progress = no_progress, count: Callable[[Any], int] = row_count
) -> None:
    """Read and drop the batches with the first `position` rows."""
    skipped = 0
    while skipped < position:
        batch = next(batches, None)
        if batch is None:
            return
        skipped += count(batch)
        progress(min(skipped, position), position)


# What kind of loader it is


def reads_by_index(loader: Any) -> bool:
    """Return whether the loader is torch's own DataLoader with a batch sampler that chooses rows by index."""
    return type(loader) is DataLoader and loader.batch_sampler is not None and not is_iterable(loader.dataset)


def is_sharded_already(loader: Any) -> bool:
    """Return whether each rank's loader returns that rank's batches: with a DistributedSampler, or from accelerate."""
    prepared = any(kind.__module__.startswith("accelerate.") for kind in type(loader).__mro__)
    return prepared or distributed_sampler(loader) is not None


def distributed_sampler(loader: Any) -> DistributedSampler[Any] | None:
    """Return the sampler by which the loader reads only a part of the data; None if there is none."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    for sampler in (getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)):
        if isinstance(sampler, DistributedSampler) and sampler.num_replicas > 1:
            return sampler
    return None


def unsharded_batches(loader: Any) -> BatchSampler | None:
    """Return batches of all rows, each once, for a loader with a DistributedSampler, which repeats some rows.

    None if the loader does not build its batches with torch's standard BatchSampler.
    """
    sampler = distributed_sampler(loader)
    if sampler is None or type(loader.batch_sampler) is not BatchSampler or not reads_by_index(loader):
        return None
    whole: DistributedSampler[Any] = DistributedSampler(sampler.dataset, 1, 0, sampler.shuffle, sampler.seed)
    whole.set_epoch(sampler.epoch)
    return BatchSampler(whole, loader.batch_sampler.batch_size, drop_last=False)
