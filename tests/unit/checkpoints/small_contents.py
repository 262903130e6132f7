"""The contents of a checkpoint without a framework: one blob of bytes for the weights, the state as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator

from attrs import asdict

from hexloop.domain.errors import CheckpointError
from hexloop.domain.state import RunState
from hexloop.ports.contents import OpenFile
from hexloop.ports.files import File


def nothing_happens() -> None:
    """For a save in which nothing happens."""


class SmallContents:
    """Weights that can be told apart by step, in two files, one of them in a folder of its own.

    in_between: called when half of the weights have been handed out.
    """

    def __init__(self, weights: bytes = b"", in_between: Callable[[], None] = nothing_happens) -> None:
        self.weights = weights
        self._in_between = in_between

    def files(self, state: RunState) -> Iterator[File]:
        """The weights and the state."""
        yield File("weights/all.bin", self._chunks())
        yield File("state.json", [json.dumps(asdict(state)).encode()])

    def prepare(self) -> Callable[[], None]:
        """There is no memory to make room in."""
        return nothing_happens

    def snapshot(self, state: RunState) -> Callable[[], Iterator[File]]:
        """Keep weights and state as they are."""
        kept = SmallContents(self.weights, self._in_between)
        frozen = json.dumps(asdict(state)).encode()

        def files() -> Iterator[File]:
            yield File("weights/all.bin", kept._chunks())
            yield File("state.json", [frozen])

        return files

    def restore(self, names: Collection[str], open_file: OpenFile) -> RunState:
        """Take the weights and give the state back."""
        if "state.json" not in names:
            raise CheckpointError("There is no state.")
        self.restore_weights(names, open_file)
        return RunState(**json.loads(b"".join(open_file("state.json"))))

    def restore_weights(self, names: Collection[str], open_file: OpenFile) -> None:
        """Take the weights."""
        self.weights = b"".join(open_file("weights/all.bin"))

    def _chunks(self) -> Iterator[bytes]:
        middle = len(self.weights) // 2
        yield self.weights[:middle]
        self._in_between()
        yield self.weights[middle:]
