"""Minimal checkpoint contents without a framework: one blob of bytes for the weights, and the state as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator

from attrs import asdict

from hexloop.domain.errors import CheckpointError
from hexloop.domain.state import RunState
from hexloop.ports.storage import File, OpenFile


def do_nothing() -> None:
    """No-op."""


class SmallContents:
    """Weights that identify their step, in two files, one of them in a subfolder.

    in_between: called when half of the weights have been yielded.
    """

    loads_together = False

    def __init__(self, weights: bytes = b"", in_between: Callable[[], None] = do_nothing) -> None:
        self.weights = weights
        self._in_between = in_between

    def files(self, state: RunState) -> Iterator[File]:
        """Return the weights and the state."""
        yield File("weights/all.bin", self._chunks())
        yield File("state.json", [json.dumps(asdict(state)).encode()])

    def prepare(self) -> Callable[[], None]:
        """No-op: there is no memory to prepare."""
        return do_nothing

    def snapshot(self, state: RunState) -> Callable[[], Iterator[File]]:
        """Keep copies of weights and state."""
        kept = SmallContents(self.weights, self._in_between)
        frozen = json.dumps(asdict(state)).encode()

        def files() -> Iterator[File]:
            yield File("weights/all.bin", kept._chunks())
            yield File("state.json", [frozen])

        return files

    def restore(self, names: Collection[str], open_file: OpenFile) -> RunState:
        """Load the weights and return the state."""
        if "state.json" not in names:
            raise CheckpointError("There is no state.")
        self.restore_weights(names, open_file)
        return RunState(**json.loads(b"".join(open_file("state.json"))))

    def restore_weights(self, names: Collection[str], open_file: OpenFile) -> None:
        """Load the weights."""
        self.weights = b"".join(open_file("weights/all.bin"))

    def _chunks(self) -> Iterator[bytes]:
        middle = len(self.weights) // 2
        yield self.weights[:middle]
        self._in_between()
        yield self.weights[middle:]
