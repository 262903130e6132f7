"""What a checkpoint holds, as files; where they go, and when they count, is not asked here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Protocol, TypeVar

from hexloop.ports.files import File

State = TypeVar("State")


class OpenFile(Protocol):
    """Gives the bytes of a file of the checkpoint, by its path within it."""

    def __call__(self, path: str, start: int = 0, /) -> Iterator[memoryview]:
        """Those from byte `start` on, in chunks, in order."""
        ...


class Contents(Protocol[State]):
    """Turns a run, its state and whoever keeps something between steps, into files and back."""

    def files(self, state: State) -> Iterator[File]:
        """Every file of a checkpoint of the run as it stands. Collective."""
        ...

    def prepare(self) -> Callable[[], None]:
        """What makes the first snapshot as quick as the others; it may be called in another thread."""
        ...

    def snapshot(self, state: State) -> Callable[[], Iterator[File]]:
        """The run as it stands, kept while it goes on: each call gives every file of that moment. Collective.

        It may be called in another thread, any number of times until the next snapshot is taken.
        """
        ...

    def restore(self, names: Collection[str], open_file: OpenFile) -> State:
        """Put the run where the files say it stood, and give back its state. Collective.

        Raises hexloop's CheckpointError where a file is missing or does not fit this run; nothing is changed then.
        """
        ...

    def restore_weights(self, names: Collection[str], open_file: OpenFile) -> None:
        """Put only the model's weights in force."""
        ...
