"""What callers read from loaders that accelerate prepared, for hexloop's own loaders."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from torch.utils.data import DataLoader


class PreparedLoader(DataLoader[Any]):
    """A torch DataLoader with the attributes of a loader that accelerate prepared.

    total_batch_size: samples of a batch of all processes together.
    """

    total_batch_size: int
    _taken: int | None = None
    """Batches taken in the current or last pass of `iter(loader)`; None before one, and where a run reads."""

    _exhausted = False

    @property
    def total_dataset_length(self) -> int:
        """The samples of all processes together. Raises TypeError if the dataset has no length."""
        dataset = self.user_dataset
        return int(dataset.total_length if hasattr(dataset, "total_length") else len(dataset))

    @property
    def remainder(self) -> int:
        """The samples of the last batch, 0 if it is a whole one; -1 before the first pass and where it is not known."""
        length = self._length()
        if length is None or self._leaves_out_rest or not self._has_begun:
            return -1
        return length % self.total_batch_size

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the last batch of the pass has been taken. Of data without a length, only once the pass is over."""
        length = self._length()
        if length is None:
            return self._exhausted
        rest = length % self.total_batch_size if self._leaves_out_rest else 0
        return self._has_begun and self._samples_taken >= length - rest

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be that of `epoch`. A run does this itself."""
        batches: Any = self.batch_sampler
        followers: list[Any] = [batches, getattr(batches, "sampler", None), self.user_dataset]
        for each in followers:
            if hasattr(each, "set_epoch"):
                each.set_epoch(epoch)

    @property
    def user_dataset(self) -> Any:
        """The dataset that the user passed."""
        return self.dataset

    def counted(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of a pass, and count them."""
        self._taken, self._exhausted = 0, False
        self.begin()
        try:
            for batch in batches:
                self._taken += 1
                yield batch
            self._exhausted = True
        finally:
            self.end()

    def begin(self) -> None:
        """Let accelerate's `GradientState`, if there is one, have this loader as the one that is read."""
        if not any(self is each for each in _passes()):
            _PASSES.append(weakref.ref(self))
        announce_passes()

    def end(self) -> None:
        """Undo `begin`."""
        _PASSES[:] = [weakref.ref(each) for each in _passes() if each is not self]
        state = _gradient_state()
        if state is not None:
            state.dataloader_references = [each for each in state.dataloader_references if each is not self]

    @property
    def _has_begun(self) -> bool:
        return self._taken is not None

    @property
    def _samples_taken(self) -> int:
        """The samples of the batches taken in this pass, or more after an incomplete batch."""
        return (self._taken or 0) * self.total_batch_size

    @property
    def _leaves_out_rest(self) -> bool:
        return bool(getattr(self.batch_sampler, "drop_last", self.drop_last))

    def _length(self) -> int | None:
        with suppress(TypeError):
            return self.total_dataset_length
        return None


class SampledLoader(PreparedLoader):
    """A loader in the order of the user's sampler. total_batch_size: see `PreparedLoader`."""

    def __init__(self, dataset: Any, total_batch_size: int, **options: Any) -> None:
        super().__init__(dataset, **options)
        self.total_batch_size = total_batch_size

    def __iter__(self) -> Any:
        return self.counted(super().__iter__())


# Passes in progress

_PASSES: list[weakref.ref[PreparedLoader]] = []
"""The loaders that are being read; the last one is read at the moment."""


def _passes() -> list[PreparedLoader]:
    return [loader for loader in (reference() for reference in _PASSES) if loader is not None]


def announce_passes() -> None:
    """Let accelerate's `GradientState`, if there is one, have the loaders that are being read."""
    state = _gradient_state()
    if state is not None:
        known = state.dataloader_references
        state.dataloader_references = [*known, *(each for each in _passes() if not any(each is one for one in known))]


def _gradient_state() -> Any:
    """Return accelerate's `GradientState`; None if it is not imported, or has no state yet."""
    kind = getattr(sys.modules.get("accelerate.state"), "GradientState", None)
    return kind() if kind is not None and kind._shared_state else None
