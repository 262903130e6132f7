"""Callbacks that keep something between steps, and how it reaches a checkpoint and comes back."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Self


class ExportableState:
    """Base of a callback whose state belongs into checkpoints.

    `state` gives JSON: {"args": what the constructor takes, "attributes": what is set afterwards}.
    """

    def state(self) -> dict[str, Any]:
        """Everything needed to make this object again. Raises NotImplementedError where a class does not say it."""
        raise NotImplementedError(f"{type(self).__name__} is to be saved, but does not say what; define its state().")

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """The object that `state` describes."""
        made = cls(**state["args"])
        for name, value in state["attributes"].items():
            setattr(made, name, value)
        return made


def is_exportable(callback: object) -> bool:
    """Whether `callback` answers `state()` and its class `from_state()`, whichever library it was written for."""
    return callable(getattr(callback, "state", None)) and callable(getattr(type(callback), "from_state", None))


def export_states(callbacks: Iterable[object]) -> dict[str, Any]:
    """The state of each callback that has one, by the name of its class; a list of states where a class comes twice."""
    exported: dict[str, list[Any]] = {}
    for callback in callbacks:
        if is_exportable(callback):
            exported.setdefault(type(callback).__name__, []).append(callback.state())  # type: ignore[attr-defined]
    return {name: states[0] if len(states) == 1 else states for name, states in exported.items()}


def restore_states(callbacks: Iterable[object], exported: Mapping[str, Any]) -> list[object]:
    """The callbacks in their order, those of which `exported` knows made anew from it.

    Several of one class take their states in turn. Warns of states that none of the callbacks takes.
    """
    left = {name: list(states) if isinstance(states, list) else [states] for name, states in exported.items()}
    restored = []
    for callback in callbacks:
        states = left.get(type(callback).__name__)
        restored.append(type(callback).from_state(states.pop(0)) if states and is_exportable(callback) else callback)  # type: ignore[attr-defined]
    if missing := sorted(name for name, states in left.items() if states):
        warnings.warn(
            f"The checkpoint holds the state of callbacks that this run does not have: {', '.join(missing)}; "
            "their state is left aside. Add them to go on where they stood.",
            stacklevel=2,
        )
    return restored
