"""Where the outboxes of runs are, and which process works on which.

A process that uses an outbox holds its lock, which ends with the process. Others that share the folder use one of their
own.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

from attrs import asdict, define, field, frozen

from hexloop.adapters.storage.local import LocalStorage
from hexloop.app.wiring.destinations import state_home
from hexloop.app.wiring.storage import as_location, is_elsewhere
from hexloop.domain.errors import IrregularFileError, StorageError
from hexloop.domain.folders import Folder
from hexloop.domain.json_documents import read_json
from hexloop.domain.limits import limits
from hexloop.domain.outbox import Intent, Outbox, intents_in, move_earlier_outbox
from hexloop.domain.run_folder import OUTBOX

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

PUSH = "push"
"""The action of an intent that publishes on a hub."""

HUB = "hub"
"""The name of the outbox for hubs; further ones of processes that share the folder are hub-1, hub-2, ..."""

PUSHED = "pushed"
"""The file with the name of the newest checkpoint whose push was entered."""

DROPPED = "dropped.jsonl"
"""The file with the pushes of an outbox that were dropped because there was no room."""

MOST_DROPPED = 50
"""How many of them are kept."""

MOST_OUTBOXES = 200
"""How many outboxes of a folder are looked at."""

FAR = 1e11
"""Seconds since the epoch that are not a time."""


def state_folder(location: str | os.PathLike[str]) -> str:
    """Return the local folder of a run's outbox: its output folder, or for a URL one in the user's state folder.

    That is `$HEXLOOP_STATE_HOME`, or `$XDG_STATE_HOME/hexloop`, or `~/.local/state/hexloop`.
    """
    whole = as_location(location)
    if not is_elsewhere(whole):
        return whole
    whole = whole.rstrip("/")
    digest = hashlib.blake2b(whole.encode(), digest_size=8).hexdigest()
    name = "".join(letter if letter.isalnum() else "-" for letter in whole.rpartition("/")[2])[:40]
    return os.path.join(state_home(), f"{name}-{digest}")


@define(eq=False)
class HeldOutbox:
    """An outbox that this process works on; others do not until `close`.

    folder: its path in the storage. inside: the same place, through which no link is followed.
    """

    storage: LocalStorage
    outbox: Outbox
    folder: str
    inside: Folder
    _lock: Any = field(repr=False)

    def of(self, path: str) -> Folder:
        """Return a folder of the storage."""
        return Folder(self.inside.root, path)

    def close(self) -> None:
        """Let other processes work on it."""
        self._lock.release()


@frozen
class Dropped:
    """A push that was dropped because there was no room for it. at: seconds since the epoch."""

    number: int
    subject: str
    reason: str
    at: float


def names_in(folder: str) -> list[str]:
    """Return the names of the outboxes for hubs in a folder. Raises StorageError if they are behind a link."""
    with _as_storage_error(folder):
        listed = outbox_in(folder).entries()
    return [each.name for each in listed if each.is_folder and each.name.partition("-")[0] == HUB][:MOST_OUTBOXES]


def open_outbox(folder: str, name: str | None = None) -> HeldOutbox | None:
    """Return an outbox in a folder, with what earlier processes left in it; None if another process uses `name`.

    name: None for one that has intents and no process, or else a new one.
    Raises StorageError or OSError if the folder cannot be written to, or the outbox is behind a link.
    """
    storage = _storage_of(folder)
    for each in [name] if name is not None else _candidates(storage, folder):
        lock = take_lock(folder, each)
        if lock is not None:
            try:
                inside = outbox_in(folder).below(each)
                inside.make(mode=0o700)
                path = f"{OUTBOX}/{each}"
                return HeldOutbox(storage, Outbox(storage, folder=path, actions=[PUSH]), path, inside, lock)
            except BaseException:
                lock.release()
                raise
    return None


def intents_of(folder: str, name: str) -> list[Intent]:
    """Return the intents of an outbox, without opening it."""
    return intents_in(_storage_of(folder), f"{OUTBOX}/{name}", [PUSH])


def dropped_in(folder: str, name: str) -> list[Dropped]:
    """Return the last pushes of an outbox that were dropped because there was no room."""
    found = list[Dropped]()
    with suppress(OSError):
        for line in outbox_in(folder).read(f"{name}/{DROPPED}", limits().note_bytes).splitlines():
            with suppress(ValueError, TypeError):
                found.append(Dropped(**read_json(line)))
    sound = [each for each in found if type(each.number) is int and isinstance(each.subject, str)]
    return [each for each in sound if isinstance(each.reason, str) and type(each.at) is float and each.at < FAR]


def note_dropped(outbox: HeldOutbox, dropped: Dropped) -> None:
    """Note a push that was dropped; without room for that, it is only reported."""
    with suppress(OSError):
        try:
            lines = outbox.inside.read(DROPPED, limits().note_bytes).splitlines()
        except OSError:  # it is missing, or too large
            lines = []
        lines = [*lines[-MOST_DROPPED + 1 :], json.dumps(asdict(dropped)).encode()]
        outbox.inside.replace(DROPPED, b"\n".join(lines) + b"\n", 0o600)


def forget_dropped(folder: str, name: str) -> None:
    """Remove the notes of pushes that were dropped."""
    with suppress(OSError):
        outbox_in(folder).remove(f"{name}/{DROPPED}")


def note_pushed(folder: str, checkpoint: str) -> None:
    """Note the newest checkpoint whose push was entered into an outbox of a folder."""
    with suppress(OSError):  # a checkpoint that is not noted is pushed again, which changes nothing on the hub
        outbox_in(folder).replace(PUSHED, checkpoint.encode())


def pushed_in(folder: str) -> str | None:
    """Return the checkpoint that was noted; None if there is none."""
    try:
        return outbox_in(folder).read(PUSHED, limits().note_bytes).decode()
    except (OSError, ValueError):
        return None


@contextmanager
def _as_storage_error(folder: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        text = f"The outbox of {folder} cannot be used: {error.filename}: {error.strerror}. Remove that, or move it."
        raise IrregularFileError(text) from error


def _candidates(storage: LocalStorage, folder: str) -> Iterator[str]:
    """Yield the names of outboxes: those with intents first."""
    for name in names_in(folder):
        if any(entry.name.endswith(".json") for entry in storage.list(f"{OUTBOX}/{name}")):
            yield name
    yield HUB
    yield from (f"{HUB}-{number}" for number in count(1))


def outbox_in(folder: str) -> Folder:
    """Return the folder of all outboxes, which need not exist."""
    _storage_of(folder)
    return Folder(folder, OUTBOX)


def _storage_of(folder: str) -> LocalStorage:
    storage = LocalStorage(folder)
    with suppress(StorageError):  # what earlier versions left in a folder that cannot be changed stays there
        move_earlier_outbox(storage)
    return storage


def take_lock(folder: str, name: str) -> Any:
    """Return the lock of an outbox, with a method `release`; None if another process or thread has it.

    Raises OSError, also if the outbox, or the file of the lock, is a link.
    """
    outbox, file = outbox_in(folder), f"{name}.lock"
    outbox.make()
    if fcntl is None:
        return _file_lock(outbox.location(file))
    while True:
        with suppress(FileExistsError):
            os.close(outbox.open_new(file, 0o600))
        descriptor = -1
        try:
            descriptor = outbox.open_own(file)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), outbox.status(file)):  # otherwise its last holder removed it
                return _Lock(descriptor)
        except FileNotFoundError:
            pass
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES) and descriptor >= 0:
                return None
            raise
        if descriptor >= 0:
            os.close(descriptor)


@frozen
class _Lock:
    """A lock that is held as long as a file is open, and so ends with the process."""

    descriptor: int

    def release(self) -> None:
        """Let others take it."""
        with suppress(OSError):
            os.close(self.descriptor)


def _file_lock(path: str) -> Any:
    """Return the lock of a file on a system without flock."""
    from filelock import FileLock, Timeout

    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    return lock
