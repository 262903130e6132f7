"""Where the outboxes of runs are, and which process works on which.

A process that uses an outbox holds its lock, which ends with the process. Others that share the folder use one of their
own.

Others may write to an outbox. So a run notes in the user's own state folder where it publishes and logs: what works off
an outbox later, without the run, sends nothing to others unless the user names them.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

from attrs import asdict, define, field, frozen

from hexloop.adapters.storage.local import LocalStorage
from hexloop.app.assembly.storage import as_location, is_elsewhere
from hexloop.domain.errors import IrregularFileError, StorageError
from hexloop.domain.folders import Folder, is_private
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

STATE_HOME = "HEXLOOP_STATE_HOME"
"""The environment variable with the folder for what belongs to runs, but is not in their output folders."""

PUSH_NOTE = ("hub", "repository")
"""The members of a note of a push."""

MOST_NOTE_BYTES = 1 << 20
"""Bytes of notes about a folder that are read."""


def state_home() -> str:
    """Return the user's state folder: `$HEXLOOP_STATE_HOME`, `$XDG_STATE_HOME/hexloop` or `~/.local/state/hexloop`."""
    home = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.environ.get(STATE_HOME) or os.path.join(home, "hexloop")


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


# Destinations


@frozen
class Destinations:
    """What runs in a folder noted.

    pushes: addresses of hubs with the names of repositories. loggers: what makes a tracker's logger, each as JSON.
    """

    pushes: frozenset[tuple[str, str]] = frozenset()
    loggers: frozenset[str] = field(default=frozenset())

    def may_log(self, facts: Mapping[str, Any]) -> bool:
        """Return whether a run noted a logger that is made of these facts."""
        return _as_text(facts) in self.loggers


def destinations_of(folder: str) -> Destinations:
    """Return what runs in a folder noted; nothing if there is no note, or others may have written it."""
    notes = list(_notes_of(folder))
    return Destinations(
        frozenset((each["hub"], each["repository"]) for each in notes if each.keys() >= {*PUSH_NOTE}),
        frozenset(_as_text(each["logger"]) for each in notes if isinstance(each.get("logger"), dict)),
    )


def note_push(folder: str, hub: str, repository: str) -> None:
    """Note that a run in a folder publishes to a repository."""
    if (hub, repository) not in destinations_of(folder).pushes:
        _append(folder, {"hub": hub, "repository": repository})


def note_logger(folder: str, facts: Mapping[str, Any]) -> None:
    """Note that a run in a folder logs to a tracker whose logger is made of these facts, which hold no secrets."""
    if facts and not destinations_of(folder).may_log(facts):
        _append(folder, {"logger": dict(facts)})


def _notes_of(folder: str) -> Iterator[dict[str, Any]]:
    home, name = Folder(state_home()), _name_of(folder)
    with suppress(OSError):
        if not is_private(home.status(name)):
            return
        for line in home.read(name, MOST_NOTE_BYTES).split(b"\n"):
            with suppress(ValueError):
                note = read_json(line)
                if isinstance(note, dict) and all(
                    isinstance(note.get(each, ""), str) for each in ("hub", "repository")
                ):
                    yield note


def _append(folder: str, note: dict[str, Any]) -> None:
    """Add a note. Without a place for it, the user names the destination when an outbox is worked off."""
    with suppress(OSError):
        home = Folder(state_home())
        os.makedirs(home.root, mode=0o700, exist_ok=True)
        descriptor = home.open_lines(_name_of(folder), 0o600)
        try:
            os.write(descriptor, json.dumps(note).encode() + b"\n")
        finally:
            os.close(descriptor)


def _name_of(folder: str) -> str:
    digest = hashlib.blake2b(os.path.realpath(folder).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    return f"destinations/{digest}.jsonl"


def _as_text(facts: Mapping[str, Any]) -> str:
    return json.dumps(facts, sort_keys=True)
