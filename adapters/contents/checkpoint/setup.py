"""What a checkpoint and a run are compared by, before anything is loaded."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from hexloop.domain.state import RunState
from hexloop.ports.state import Part

RUN_SETUP = "run_setup.json"


class Setup(Protocol):
    """How a run is set up, and what of it may be otherwise in a checkpoint that it goes on from."""

    def document(self) -> Mapping[str, Any]:
        """What goes into `run_setup.json`: a JSON object."""
        ...

    def differences(self, saved: Mapping[str, Any], state: RunState, weights: Sequence[Part]) -> Iterable[str]:
        """Why this run cannot go on from a checkpoint with that document (empty where it has none), state and weights.

        Each is a whole sentence; what the user accepts is not among them. Nothing is changed.
        """
        ...

    def left_new(self, saved: Mapping[str, Any]) -> Collection[str]:
        """The names of those who are not to load what the checkpoint holds of them."""
        ...

    def settle(self, saved: Mapping[str, Any], state: RunState) -> None:
        """Everything is loaded: fit what was loaded, and `state`, to what differs."""
        ...


class AnySetup:
    """Nothing is written, and nothing compared."""

    def document(self) -> Mapping[str, Any]:
        """Nothing, so that there is no such file."""
        return {}

    def differences(self, saved: Mapping[str, Any], state: RunState, weights: Sequence[Part]) -> Iterable[str]:
        """Any checkpoint will do."""
        return ()

    def left_new(self, saved: Mapping[str, Any]) -> Collection[str]:
        """Everybody loads."""
        return ()

    def settle(self, saved: Mapping[str, Any], state: RunState) -> None:
        """There is nothing to fit."""
