"""Batches of a loader that draws from the random streams of training, as transformers' loaders do, and exact resume.

A run resumes in the middle of an epoch by reading the epoch again up to there, with the streams as they were at its
start. Where samples are read by index in this process, those that were trained on are not read again: only the batch
that the loader reads ahead, with the streams as they were when it was read. The streams of a worker follow from all
samples that it has read, so with workers everything is read again that the present workers had read.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from itertools import islice
from typing import Any

import torch
from torch.utils.data import BatchSampler

from hexloop.adapters.batches.torch import data_state, random_streams
from hexloop.adapters.batches.torch.batches import Inspect, TorchBatches, accept_any
from hexloop.adapters.batches.torch.order import rebalances
from hexloop.adapters.batches.torch.passes import (
    KeptLoaders,
    Pass,
    ReplayDocument,
    is_read_by_index,
    own_generators,
    pass_from,
    refuse_invalid_passes,
    runs_no_user_code,
    samplers_of,
)
from hexloop.adapters.batches.torch.reproduction import shielded
from hexloop.adapters.batches.torch.shares import ALONE, SharingOptions
from hexloop.adapters.batches.torch.structure import Transfer
from hexloop.domain.schemas import structured
from hexloop.ports.state import Part

END = object()

NAME = "replay"
"""The name of the document in a checkpoint."""


class ReplayedBatches(TorchBatches):
    """The batches of any loader, read as transformers' training loop reads it.

    sharing: each rank has such a loader. kept: the evaluation loaders whose workers persist, with what returns one of
    them by name. Raises ValueError in `load` if the checkpoint's run read its data in another way, because then it
    cannot be resumed exactly.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        transfer: Transfer,
        inspect: Inspect = accept_any,
        progress: data_state.Progress = data_state.no_progress,
        sharing: SharingOptions = ALONE,
        kept: tuple[KeptLoaders, Callable[[str], Any]] | None = None,
    ) -> None:
        super().__init__(loader, transfer, inspect, progress, sharing)
        nothing: tuple[KeptLoaders, Callable[[str], Any]] = KeptLoaders(), str
        self._kept, self._kept_loader = kept or nothing
        self._workers = int(getattr(loader, "num_workers", 0))
        self._persistent = self._workers > 0 and bool(getattr(loader, "persistent_workers", False))
        rebalancing = next(filter(rebalances, samplers_of(loader)), None)
        mean_size = rebalancing and rebalancing.effective_batch_size // rebalancing.grad_accum
        if mean_size:  # with batches of several sizes, their mean
            self.rows = lambda _batch: mean_size
        self._pure = runs_no_user_code(loader)
        self._indexed = is_read_by_index(loader)
        self._records = self._workers == 0 and not (self._pure and self._indexed)
        self._generators = own_generators(loader)
        self._passes: list[Pass] = []  # of the present workers, or only the current one
        self._after: random_streams.Streams | None = None
        self._saved: data_state.DataState | None = None

    def load(self, parts: Iterable[Part]) -> None:
        """Resume from an export. Raises ValueError if it is not one, or of a run that read its data in another way."""
        found = list(parts)
        if found and all(part.name != NAME for part in found):
            raise ValueError(
                "the run was not one with reproduce='transformers', and reads its data in another order; resume it "
                "with reproduce=None."
            )
        saved = data_state.state_from_parts(NAME, found)
        if saved is None:
            return
        document = structured(data_state.decode_state(saved), ReplayDocument, NAME)
        then, now = list(document.reading), self._way_of_reading()
        if then != now:
            raise ValueError(
                f"the data were read with {_described(then)}, and this run reads with {_described(now)}; with "
                "reproduce='transformers' both must be the same to resume exactly."
            )
        refuse_invalid_passes(document, self._generators, self.batches_per_epoch())
        for generator, state in zip(self._generators, document.generators, strict=True):
            generator.set_state(state)
        self._kept.restore(document.kept, self._kept_loader)
        self._saved = saved

    def _exported(self) -> Iterator[Part]:
        """Export what has been read and the random streams that reading it again needs."""
        if self._saved is not None:
            return data_state.state_parts(NAME, self._saved)
        if not self._passes:
            return iter(())
        return data_state.state_parts(NAME, data_state.encode_state(self.loader, self._document()))

    # Reading

    def _reading(self, epoch: int, position: int) -> AbstractContextManager[Iterator[Any]]:
        return closing(self._batches(epoch, position))

    def _batches(self, epoch: int, position: int) -> Generator[Any, None, None]:
        """Yield the batches from where the run is, as many as the loader's length states."""
        batches = self._resumed(epoch, position)
        if batches is None:
            batches = self._begin(epoch)
        current, limit = self._passes[-1], self.batches_per_epoch()
        if not self._records:
            for batch in islice(batches, None if limit is None else max(0, limit - current.read)):
                current.read += 1
                yield batch
            return
        while limit is None or current.read < limit:
            batch = self._take(batches, current)
            if batch is END:
                return
            yield batch

    def _begin(self, epoch: int) -> Iterator[Any]:
        """Start a pass, as transformers' loop does."""
        current = Pass(epoch, random_streams.streams(), self._generator_states())
        if not self._persistent:
            self._passes.clear()
        self._passes.append(current)
        self._after = None
        set_epoch(self.loader, epoch)
        return iter(self.loader)

    def _take(self, batches: Iterator[Any], current: Pass) -> Any:
        """Return the next batch, and record what reading it once more would need."""
        before = current.last = random_streams.streams()
        after = None if self._indexed else self._after
        trained = after is not None and not random_streams.are_equal(after, before)
        batch = next(batches, END)
        if not self._indexed:
            self._after = random_streams.streams()
            if trained and not random_streams.are_equal(before, self._after):
                current.interludes[current.read] = before
        current.read += batch is not END
        return batch

    def _document(self) -> dict[str, Any]:
        return {
            "reading": self._way_of_reading(),
            "generators": self._generator_states(),
            "passes": [each.document() for each in self._passes],
            "kept": self._kept.document(),
        }

    def _way_of_reading(self) -> list[Any]:
        """Return what must be the same in a run that resumes."""
        return [self.sharing.ranks.size, self._workers, self._persistent, len(self._generators)]

    def _generator_states(self) -> list[torch.Tensor]:
        return [generator.get_state() for generator in self._generators]

    # Resuming

    def _resumed(self, epoch: int, position: int) -> Iterator[Any] | None:
        """Return the batches after those that were trained on; None to start a pass.

        If the workers persist, reads again what they had read, also if a pass is to be started.
        """
        saved, self._saved = self._saved, None
        if saved is None:
            return None
        document = data_state.decode_state(saved)
        passes = [pass_from(each) for each in document["passes"]]
        continues = position > 0 and passes[-1].epoch == epoch
        if not continues and not self._persistent:
            return None
        if self._persistent and self._pure:  # the workers only have to exist
            del passes[:-1]
            passes[-1].read = passes[-1].read if continues else 1
        self._warn(passes)
        batches: Iterator[Any] = iter(())
        with random_streams.preserved_rng_states():
            for each in passes:
                batches = self._again(each)
            self._passes = passes
            self._after = random_streams.streams() if continues else None
        for generator, state in zip(self._generators, document["generators"], strict=True):
            generator.set_state(state)
        return batches if continues else None

    def _again(self, earlier: Pass) -> Iterator[Any]:
        """Return the batches of a pass after those that were read in it."""
        random_streams.set_streams(earlier.start)
        for generator, state in zip(self._generators, earlier.generators, strict=True):
            generator.set_state(state)
        set_epoch(self.loader, earlier.epoch)
        if self._indexed and not self._persistent and (self._workers == 0 or self._pure):
            return self._skipping(earlier)
        batches: Iterator[Any] = iter(self.loader)
        for number in range(earlier.read):
            if (states := earlier.interludes.get(number)) is not None:
                random_streams.set_streams(states)
            if next(batches, END) is END:
                break
            self._progress(number + 1, earlier.read)
        return batches

    def _skipping(self, earlier: Pass) -> Iterator[Any]:
        """Return the batches after those that were read, which are not read again except for the last one."""
        from accelerate.data_loader import skip_first_batches

        skipped = shielded(skip_first_batches(self.loader, max(earlier.read - 1, 0)))
        sampler = skipped.batch_sampler
        if earlier.last is not None and earlier.read > 1:
            sampler.batch_sampler = RestoringSampler(sampler.batch_sampler, earlier.read, earlier.last)
        batches: Iterator[Any] = iter(skipped)
        next(batches, END)
        return batches

    def _warn(self, passes: list[Pass]) -> None:
        """Warn if batches have to be read again although they were trained on."""
        count = sum(each.read for each in passes)
        if count == 0 or (self._indexed and (self._pure or self._workers == 0)):
            return
        if self._workers:
            why = "the random streams of loader workers follow from all samples that they have read"
            instead = " (a run with dataloader_num_workers=0 reads none again)"
            if self._persistent:
                instead = " (a run with dataloader_persistent_workers=False reads only those of one epoch again)"
        else:
            why, instead = "this loader can only be read from its start", ""
        warnings.warn(
            f"To resume exactly with reproduce='transformers', {count} batches that were trained on are read once more "
            f"before the first step, because {why}{instead}.",
            stacklevel=2,
        )


class RestoringSampler(BatchSampler):
    """A batch sampler that sets the random streams before the batch with the number `at`, from 0."""

    def __init__(self, batch_sampler: Any, at: int, states: random_streams.Streams) -> None:
        self.batch_sampler, self._at, self._states = batch_sampler, at, states

    def __iter__(self) -> Iterator[list[Any]]:
        batches = iter(self.batch_sampler)
        number = 0
        while True:
            if number == self._at:
                random_streams.set_streams(self._states)
            try:
                batch = next(batches)
            except StopIteration:
                return
            yield batch
            number += 1

    def __len__(self) -> int:
        return len(self.batch_sampler)


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell a loader and the batch sampler that accelerate has wrapped the epoch, as transformers' loop does."""
    if hasattr(loader, "set_epoch"):
        loader.set_epoch(epoch)
    wrapped = getattr(getattr(loader, "batch_sampler", None), "batch_sampler", None)
    if wrapped is not None and hasattr(wrapped, "set_epoch"):
        wrapped.set_epoch(epoch)


def _described(reading: Sequence[Any]) -> str:
    world, workers, persistent, generators = reading
    kind = "persistent loader workers" if persistent else "loader workers"
    return f"{world} processes, {workers} {kind} and {generators} generators of the loader"
