"""Where the outboxes of runs are, and which process works on which.

A process that uses an outbox holds its lock, which ends with the process. Others that share the folder use one of their
own.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from attrs import define, field

from hexloop.adapters.storage.local import LocalStorage
from hexloop.app.wiring.storage import as_location, is_elsewhere
from hexloop.domain.errors import StorageError
from hexloop.domain.json_documents import read_bytes
from hexloop.domain.limits import limits
from hexloop.domain.outbox import Intent, Outbox, move_earlier_outbox, read_intent
from hexloop.domain.run_folder import OUTBOX

PUSH = "push"
"""The action of an intent that publishes on a hub."""

HUB = "hub"
"""The name of the outbox for hubs; further ones of processes that share the folder are hub-1, hub-2, ..."""

PUSHED = f"{OUTBOX}/pushed"
"""The file with the name of the newest checkpoint whose push was entered."""

STATE_HOME = "HEXLOOP_STATE_HOME"
"""The environment variable with the folder for what belongs to runs whose output is not in a local folder."""


def state_folder(location: str | os.PathLike[str]) -> str:
    """Return the local folder of a run's outbox: its output folder, or for a URL one in the user's state folder.

    That is `$HEXLOOP_STATE_HOME`, or `$XDG_STATE_HOME/hexloop`, or `~/.local/state/hexloop`.
    """
    whole = as_location(location)
    if not is_elsewhere(whole):
        return whole
    whole = whole.rstrip("/")
    home = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    digest = hashlib.blake2b(whole.encode(), digest_size=8).hexdigest()
    name = "".join(letter if letter.isalnum() else "-" for letter in whole.rpartition("/")[2])[:40]
    return os.path.join(os.environ.get(STATE_HOME) or os.path.join(home, "hexloop"), f"{name}-{digest}")


@define(eq=False)
class HeldOutbox:
    """An outbox that this process works on; others do not until `close`."""

    storage: LocalStorage
    outbox: Outbox
    folder: str
    _lock: Any = field(repr=False)

    def local_path(self, path: str) -> Path:
        """Return where a path of the storage is on this machine."""
        return Path(str(self.storage.capabilities.local_folder), path)

    def close(self) -> None:
        """Let other processes work on it."""
        self._lock.release()


def names_in(folder: str) -> list[str]:
    """Return the names of the outboxes for hubs in a folder."""
    listed = _storage_of(folder).list(OUTBOX)
    return sorted(entry.name for entry in listed if entry.is_folder and entry.name.partition("-")[0] == HUB)


def open_outbox(folder: str, name: str | None = None) -> HeldOutbox | None:
    """Return an outbox in a folder, with what earlier processes left in it; None if another process uses `name`.

    name: None for one that has intents and no process, or else a new one.
    Raises StorageError or OSError if the folder cannot be written to.
    """
    storage = LocalStorage(folder)
    for each in [name] if name is not None else _candidates(storage, folder):
        lock = take_lock(folder, each)
        if lock is not None:
            try:
                path = f"{OUTBOX}/{each}"
                return HeldOutbox(storage, Outbox(storage, folder=path, actions=[PUSH]), path, lock)
            except BaseException:
                lock.release()
                raise
    return None


def intents_in(folder: str, name: str) -> list[Intent]:
    """Return the intents of an outbox, without opening it."""
    storage, path = LocalStorage(folder), f"{OUTBOX}/{name}"
    found = [read_intent(storage, f"{path}/{each.name}", [PUSH]) for each in storage.list(path) if not each.is_folder]
    latest: dict[int, Intent] = {}
    for intent in sorted((each for each in found if each is not None), key=lambda each: (each.number, each.revision)):
        latest[intent.number] = intent
    return list(latest.values())


def note_pushed(folder: str, checkpoint: str) -> None:
    """Note the newest checkpoint whose push was entered into an outbox of a folder."""
    storage = LocalStorage(folder)
    with suppress(StorageError):
        storage.remove(PUSHED)
    with suppress(StorageError):  # a checkpoint that is not noted is pushed again, which changes nothing on the hub
        storage.write(PUSHED, [checkpoint.encode()])


def pushed_in(folder: str) -> str | None:
    """Return the checkpoint that was noted; None if there is none."""
    try:
        return read_bytes(LocalStorage(folder).read(PUSHED), limits().note_bytes).decode()
    except (StorageError, ValueError):
        return None


def _candidates(storage: LocalStorage, folder: str) -> Iterator[str]:
    """Yield the names of outboxes: those with intents first."""
    for name in names_in(folder):
        if any(not entry.is_folder for entry in storage.list(f"{OUTBOX}/{name}")):
            yield name
    yield HUB
    yield from (f"{HUB}-{number}" for number in count(1))


def outbox_in(folder: str) -> Path:
    """Return the path of the folder of all outboxes, which need not exist."""
    _storage_of(folder)
    return Path(folder, OUTBOX)


def _storage_of(folder: str) -> LocalStorage:
    storage = LocalStorage(folder)
    with suppress(StorageError):  # what earlier versions left in a folder that cannot be changed stays there
        move_earlier_outbox(storage)
    return storage


def take_lock(folder: str, name: str) -> Any:
    """Return the lock of an outbox; None if another process or thread has it."""
    from filelock import FileLock, Timeout

    _storage_of(folder)
    os.makedirs(os.path.join(folder, OUTBOX), exist_ok=True)
    lock = FileLock(os.path.join(folder, OUTBOX, f"{name}.lock"), thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    return lock
