"""Checkpoint stores without a framework, each with its own session like a separate process."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from hexloop.adapters.background import ThreadBackground
from hexloop.domain.checkpoints.commit import CheckpointPolicy
from hexloop.domain.checkpoints.manifest import checkpoint_name
from hexloop.domain.checkpoints.store import CheckpointStore
from hexloop.domain.events import AnyEvent
from hexloop.domain.run_folder import OWN, within_own
from hexloop.domain.state import RunState
from hexloop.ports.storage import Entry, Storage
from tests.unit.checkpoints.small_contents import SmallContents

_sessions = count(1)


def next_session() -> str:
    """Return a session name that sorts after all earlier ones."""
    return f"{next(_sessions):08}"


def make_store(
    storage: Storage, limit: int | None = None, session: str = "", in_background: bool = False, **more: Any
) -> CheckpointStore:
    """Return a store with minimal contents that does not wait for space."""
    background = ThreadBackground() if in_background else None
    options = {"session": session or next_session(), "pauses": (), "background": background, **more}
    return CheckpointStore(storage, SmallContents(), CheckpointPolicy(limit), **options)


def weights_at(run: str, step: int) -> bytes:
    """Return the weights of a run after a step: about 40 bytes."""
    return f"{run}: weights after {step} steps".encode() * 2


def save_at(store: CheckpointStore, state: RunState, step: int) -> list[AnyEvent]:
    """Advance to a step and save there."""
    assert isinstance(store.contents, SmallContents)
    state.step = step
    store.contents.weights = weights_at(state.run, step)
    return list(store.save(state))


def save_all(storage: Storage, run: str, steps: Sequence[int], limit: int | None = None) -> CheckpointStore:
    """Save at each of `steps` in one session of a run, and return its store."""
    store = make_store(storage, limit)
    state = RunState(run=run)
    for step in steps:
        save_at(store, state, step)
    return store


def names(storage: Storage, folder: str = "") -> list[str]:
    """Return the names in a folder, with the paths of those in the folder of hexloop's own files instead of that."""
    found = [entry.name for entry in storage.list(folder)]
    if not folder and OWN in found:
        found.remove(OWN)
        found = [within_own(name) for name in names(storage, OWN)] + found
    return found


def tree(storage: Storage, folder: str = "") -> dict[str, bytes]:
    """Return every file below a folder with its bytes."""
    found: dict[str, bytes] = {}

    def add(entry: Entry, path: str) -> None:
        if entry.is_folder:
            for inner in storage.list(path):
                add(inner, f"{path}/{inner.name}")
        else:
            found[path] = b"".join(storage.read(path))

    for entry in storage.list(folder):
        add(entry, f"{folder}/{entry.name}" if folder else entry.name)
    return found


def checkpoint_names(*steps: int) -> list[str]:
    """Return the names of the checkpoints at these steps, sorted like a listing."""
    return sorted(map(checkpoint_name, steps))
