"""Callbacks with state, and how it is stored in checkpoints and restored."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Self


class ExportableState:
    """Base class of callbacks whose state is part of checkpoints.

    `state` returns JSON: {"args": keywords of the constructor, "attributes": what is set afterwards}.
    """

    def state(self) -> dict[str, Any]:
        """Return everything needed to rebuild this object. Raises NotImplementedError if a class does not define it."""
        raise NotImplementedError(f"{type(self).__name__} has state to save, but does not define state(); define it.")

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the object that `state` describes."""
        rebuilt = cls(**state["args"])
        for name, value in state["attributes"].items():
            setattr(rebuilt, name, value)
        return rebuilt


def is_exportable(callback: object) -> bool:
    """Return whether `callback` has `state()` and its class `from_state()`, of hexloop or of transformers."""
    return callable(getattr(callback, "state", None)) and callable(getattr(type(callback), "from_state", None))


def export_states(callbacks: Iterable[object]) -> dict[str, Any]:
    """Return the state of each callback that has one, by class name; a list of states for several of one class."""
    exported: dict[str, list[Any]] = {}
    for callback in callbacks:
        if is_exportable(callback):
            exported.setdefault(type(callback).__name__, []).append(callback.state())  # type: ignore[attr-defined]
    return {name: states[0] if len(states) == 1 else states for name, states in exported.items()}


def restore_states(callbacks: Iterable[object], exported: Mapping[str, Any]) -> list[object]:
    """Return the callbacks in their order, those with a state in `exported` rebuilt from it.

    Several of one class take their states in order. Warns of states without a callback.
    """
    left = {name: list(states) if isinstance(states, list) else [states] for name, states in exported.items()}
    restored = []
    for callback in callbacks:
        states = left.get(type(callback).__name__)
        restored.append(type(callback).from_state(states.pop(0)) if states and is_exportable(callback) else callback)  # type: ignore[attr-defined]
    if missing := sorted(name for name, states in left.items() if states):
        warnings.warn(
            f"The checkpoint contains the state of callbacks that this run does not have: {', '.join(missing)}; it is "
            "ignored. Add the callbacks to resume them.",
            stacklevel=2,
        )
    return restored
