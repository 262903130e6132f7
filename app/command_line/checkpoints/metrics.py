"""What a checkpoint's run had measured when it was written."""

from __future__ import annotations

from hexloop.adapters.contents.checkpoint.documents import state_from_chunks
from hexloop.domain.checkpoints.names import checkpoint_name
from hexloop.domain.checkpoints.selection import STATE
from hexloop.domain.errors import CheckpointError, StorageError
from hexloop.domain.state import RunState
from hexloop.ports.storage import Storage

PREFIX = "eval_"
NO_METRICS = ("runtime", "per_second")
"""Ends of the names of readings of the clock."""


def read_state(storage: Storage, name: str) -> RunState | None:
    """Where the run stood; None where the checkpoint does not hold it, or holds what this hexloop cannot read."""
    try:
        return state_from_chunks(storage.read(f"{name}/{STATE}"))
    except (CheckpointError, StorageError):
        return None


def metric_of(state: RunState) -> tuple[str, float] | None:
    """The metric of the evaluation at the state's own step; None where there was none.

    The one by which the best checkpoint is chosen, where that is known, else the loss, else the first.
    """
    measured = _measured(state, state.step)
    for name in (_chosen(state), "eval_loss", *measured):
        if name in measured:
            return name, measured[name]
    return None


def best_of(state: RunState) -> str | None:
    """The checkpoint of the best evaluation, by its name; None where there was no evaluation that counts."""
    return state.best_checkpoint or (None if state.best_step is None else checkpoint_name(state.best_step))


def _chosen(state: RunState) -> str:
    """The metric whose value was the best one, at the step at which that was."""
    if state.best_step is None:
        return ""
    measured = _measured(state, state.best_step)
    return next((name for name, value in measured.items() if value == state.best_metric), "")


def _measured(state: RunState, step: int) -> dict[str, float]:
    return {
        name: value
        for entry in state.history
        if entry.get("step") == step
        for name, value in entry.items()
        if name.startswith(PREFIX) and not name.endswith(NO_METRICS) and isinstance(value, int | float)
    }
