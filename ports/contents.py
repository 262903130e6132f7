"""The files of a checkpoint. Where they are stored, and when they are valid, is decided elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Protocol, TypeVar

from hexloop.ports.storage import File

State = TypeVar("State")


class OpenFile(Protocol):
    """Opens a file of the checkpoint by its relative path."""

    def __call__(self, path: str, start: int = 0, /) -> Iterator[memoryview]:
        """Yield the bytes from byte `start` on, in order, in chunks."""


class Contents(Protocol[State]):
    """Converts the state of a run and of its components to files and back."""

    @property
    def loads_together(self) -> bool:
        """Whether loading is collective, so that ranks wait within it for each other."""

    def files(self, state: State) -> Iterator[File]:
        """Return every file of a checkpoint of the current state. Collective."""

    def prepare(self) -> Callable[[], None]:
        """Return a function that makes the first snapshot as fast as the others; it may be called in another thread."""

    def snapshot(self, state: State) -> Callable[[], Iterator[File]]:
        """Copy the current state, so that the run can continue; each call of the result yields every file of it.
        Collective.

        The result may be called in another thread, repeatedly until the next snapshot is taken.
        """

    def restore(self, names: Collection[str], open_file: OpenFile) -> State:
        """Restore the run from the files and return its state. Collective.

        Raises CheckpointError, changing nothing, if a file is missing or does not fit this run.
        """

    def restore_weights(self, names: Collection[str], open_file: OpenFile) -> None:
        """Load only the model's weights."""
