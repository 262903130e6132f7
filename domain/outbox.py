"""A durable queue of what is still to be done at a destination, such as another storage or a hub.

An intent is written before the attempt, so that a process that dies leaves it to the next one.
`hexloop.domain.delivery` works a queue off in the background.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, TypeVar

from attrs import asdict, evolve, field, frozen

from hexloop.domain.checkpoints.manifest import stays_inside
from hexloop.domain.errors import IrregularFileError, MissingFileError, StorageError
from hexloop.domain.json_documents import read_bytes, read_json
from hexloop.domain.limits import limits
from hexloop.domain.ranges import Between, Holding
from hexloop.domain.redaction import printable, redact, redacted
from hexloop.domain.run_folder import EARLIER, OUTBOX
from hexloop.domain.schemas import structured
from hexloop.ports.storage import Entry, Storage

Number = Annotated[int, Between(0, (1 << 62) - 1)]
"""A number of an intent: it takes 20 digits in the name of a file, and has others after it."""

Place = Annotated[str, Holding("a path inside", lambda path: not path or stays_inside(path))]

MOST_INTENTS = 2_000
"""How many files with intents are looked at."""

MOST_BYTES = 32 << 20
"""How many bytes of them are read."""

logger = logging.getLogger("hexloop.outbox")

Result = TypeVar("Result")


@frozen
class Intent:
    """One operation on the destination. Intents are carried out in the order of their numbers, nanoseconds since the
    epoch.

    Args:
        number: when it was written, in nanoseconds since the epoch.
        action: what to do to `path`, a name at the destination, with `source`, a path of the storage that has the
            queue; `target` and `details` are further facts.
        path: a name at the destination.
        source: a path of the storage that has the queue.
        target: a second name at the destination, such as that to which something is moved.
        revision: how often the intent was written.
        details: further facts of the action.
        failures: how often it was attempted in vain.
        problem: why it was.
        refused: whether the destination will not accept it, so that it waits for the user.
    """

    number: Number
    action: str
    path: Place
    source: Place = ""
    target: Place = ""
    revision: Number = 0
    details: Mapping[str, Any] = field(factory=dict)
    failures: Number = 0
    problem: str = ""
    refused: bool = False

    @property
    def name(self) -> str:
        """The name of its file, by which the user refers to it."""
        return f"{self.number:020}-{self.revision}.json"


def is_within(path: str, folder: str) -> bool:
    """Return whether a path is a folder or inside it.

    Args:
        path: a path.
        folder: a folder.
    """
    return path == folder or path.startswith(f"{folder}/")


class Outbox:
    """The pending intents, in order. Thread-safe.

    An intent is written before its operation happens in `storage`, and activated afterwards: a process that dies in
    between leaves an intent without a source, which the next process drops.

    Args:
        storage: where the queue is, and what is to be delivered.
        takes_over: whether this process continues what earlier ones left pending.
        folder: where the intents are.
        actions: the known actions; a file with another one is dropped.
        clock: tells the time.
    """

    def __init__(
        self,
        storage: Storage,
        takes_over: bool = True,
        folder: str = OUTBOX,
        actions: Collection[str] = (),
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._storage, self._folder, self._actions, self._clock = storage, folder, frozenset(actions), clock
        self.changed = threading.Condition(threading.RLock())
        self._intents: dict[int, Intent] = {}
        self._waiting: set[int] = set()
        self._attempted: int | None = None
        if takes_over:
            self._intents = {intent.number: intent for intent in self._left_behind()}
        self._latest = max(self._intents, default=0)

    def pending(self) -> tuple[Intent, ...]:
        """Return all pending intents, in order."""
        with self.changed:
            return tuple(intent for _, intent in sorted(self._intents.items()))

    def deliverable(self) -> tuple[Intent, ...]:
        """Return the pending intents that the destination has not refused, in order."""
        return tuple(intent for intent in self.pending() if not intent.refused)

    def waiting(self) -> tuple[Intent, ...]:
        """Return the pending intents that are not being carried out, in order."""
        with self.changed:
            return tuple(intent for intent in self.pending() if intent.number != self._attempted)

    def first(self) -> Intent | None:
        """Return the next deliverable intent; None if there is none or it is not active yet."""
        with self.changed:
            intent = next(iter(self.deliverable()), None)
            return None if intent is None or intent.number in self._waiting else intent

    def current(self, intent: Intent) -> Intent:
        """Return the latest revision of the intent.

        Args:
            intent: one of the queue.
        """
        with self.changed:
            return self._intents[intent.number]

    def begin(self, intent: Intent) -> None:
        """Note that the intent is being carried out, so that no later one replaces it; until `done` or `fail`.

        Args:
            intent: one of the queue.
        """
        with self.changed:
            self._attempted = intent.number

    def during(
        self,
        act: Callable[[], Result],
        action: str,
        path: str,
        source: str = "",
        target: str = "",
        details: Mapping[str, Any] | None = None,
    ) -> Result:
        """Write an intent, call `act`, and activate the intent; drop it if `act` fails.

        Args:
            act: the operation on the storage; the intent is dropped if it fails.
            action: the name of the operation.
            path: a name at the destination.
            source: a path of the storage that has the queue.
            target: a second name at the destination, such as that to which something is moved.
            details: further facts.
        """
        with self.changed:
            details = redacted(dict(details or {}))
            intent = Intent(self._next_number(), str(action), path, source, target, details=details)
            self._intents[intent.number] = intent
            self._waiting.add(intent.number)
        try:
            self._store(intent)
            result = act()
        except BaseException:
            self.done(intent)
            raise
        with self.changed:
            self._waiting.discard(intent.number)
            self.changed.notify_all()
        return result

    def add(self, action: str, path: str, target: str = "") -> None:
        """Write and activate an intent.

        Args:
            action: the name of the operation.
            path: a name at the destination.
            target: a second name at the destination, such as that to which something is moved.
        """
        self.during(lambda: None, action, path, target=target)

    def put(
        self,
        action: str,
        path: str,
        details: Mapping[str, Any],
        source: str = "",
        replaces: Callable[[Intent], bool] = lambda intent: False,
    ) -> Intent:
        """Write and activate an intent whose source exists already, then drop those that it replaces; return it.

        One that is being carried out is completed first, so that a destination slower than the run is not starved.

        Args:
            action: the name of the operation.
            path: a name at the destination.
            details: further facts.
            source: where the data are in the storage; None if there are none.
            replaces: returns whether an intent is dropped for this one.
        """
        with self.changed:
            old = [each for each in self.waiting() if replaces(each)]
            self.during(lambda: None, action, path, source, details=details)
            new = self._intents[self._latest]
            for intent in old:
                self.done(intent)
            return new

    def moving(self, source: str, destination: str) -> None:
        """Move something in the storage, updating the source of pending intents.

        Args:
            source: the path of what is moved.
            destination: where it is moved to.
        """
        with self.changed:
            old = [intent for intent in self._intents.values() if is_within(intent.source, source)]
            new = [
                evolve(each, source=destination + each.source.removeprefix(source), revision=each.revision + 1)
                for each in old
            ]
            for intent in new:
                self._store(intent)
            try:
                self._storage.move(source, destination)
            except BaseException:
                self._forget(new)
                raise
            self._intents.update({intent.number: intent for intent in new})
            self._forget(old)

    def hold(self, path: str) -> None:
        """Hide something in the storage that is still to be delivered.

        Args:
            path: what is hidden.
        """
        with self.changed:
            self.moving(path, f"{self.new_hold()}/{path.rpartition('/')[2]}")

    def new_hold(self) -> str:
        """Return the path of a new folder for what an intent needs; it is removed with the last intent that does."""
        with self.changed:
            return f"{self._folder}/held-{self._next_number():020}"

    def done(self, intent: Intent) -> None:
        """Drop an intent, and what was held only for it.

        Args:
            intent: one of the queue.
        """
        with self.changed:
            now = self._intents.pop(intent.number, intent)
            self._waiting.discard(intent.number)
            if self._attempted == intent.number:
                self._attempted = None
            self._forget([now])
            held = self._held(now)
            needed = any(self._held(each) == held for each in self._intents.values())
            if held is not None and not needed:
                with suppress(StorageError):
                    self._storage.remove(f"{self._folder}/{held}")
            self.changed.notify_all()

    def fail(self, intent: Intent, problem: str, refused: bool = False) -> None:
        """Record that an attempt failed, and whether the destination refuses the intent for good.

        Args:
            intent: one of the queue.
            problem: why it failed.
            refused: whether the destination refuses it for good.
        """
        with self.changed:
            self._attempted = None
            if intent.number in self._intents:
                old = self._intents[intent.number]
                self._rewrite(old, failures=old.failures + 1, problem=redact(problem), refused=refused)
            self.changed.notify_all()

    def retry(self) -> None:
        """Make the refused intents deliverable again."""
        with self.changed:
            for intent in self.pending():
                if intent.refused:
                    self._rewrite(intent, refused=False)
            self.changed.notify_all()

    def _rewrite(self, old: Intent, **changes: Any) -> None:
        """Replace an intent by one with other facts. If the storage is full, the facts are kept in memory only."""
        new = evolve(old, revision=old.revision + 1, **changes)
        try:
            self._store(new)
        except StorageError:
            self._intents[old.number] = evolve(old, **changes)
            return
        self._intents[old.number] = new
        self._forget([old])

    def _next_number(self) -> int:
        self._latest = max(self._latest + 1, self._clock())
        return self._latest

    def _store(self, intent: Intent) -> None:
        """Write the file of an intent, which must be durable before what it describes happens."""
        path = f"{self._folder}/{intent.name}"
        self._storage.write(path, [json.dumps(asdict(intent)).encode()])
        self._storage.sync([path])

    def _forget(self, intents: list[Intent]) -> None:
        """Remove the files of intents; one that remains describes an operation that turns out to be done already."""
        for intent in intents:
            with suppress(StorageError):
                self._storage.remove(f"{self._folder}/{intent.name}")

    def _held(self, intent: Intent) -> str | None:
        """Return the name of the held folder that an intent needs; None if it needs none."""
        if not is_within(intent.source, self._folder):
            return None
        return intent.source.removeprefix(f"{self._folder}/").partition("/")[0]

    def _left_behind(self) -> list[Intent]:
        """Return the intents of earlier processes: the latest revision of each whose source exists."""
        entries = self._storage.list(self._folder)
        found, damaged = _intents_among(self._storage, self._folder, entries, self._actions)
        for name in damaged:  # its writer died before completing it
            self._storage.remove(f"{self._folder}/{name}")
        listed: dict[str, set[str]] = {}
        kept = [each for each in found if not each.source or self._exists(each.source, listed)]
        latest = {each.number: each for each in sorted(kept, key=lambda each: each.revision)}
        self._forget([each for each in found if latest.get(each.number) is not each])
        needed = {self._held(each) for each in latest.values()}
        for entry in entries:
            if entry.is_folder and entry.name.startswith("held-") and entry.name not in needed:
                self._storage.remove(f"{self._folder}/{entry.name}")
        return list(latest.values())

    def _exists(self, path: str, listed: dict[str, set[str]]) -> bool:
        """Return whether there is something at a path. listed: the names in each folder, as far as they are known."""
        folder, _, name = path.rpartition("/")
        if folder not in listed:
            listed[folder] = {entry.name for entry in self._storage.list(folder)}
        return name in listed[folder]


def intents_in(storage: Storage, folder: str, actions: Collection[str]) -> list[Intent]:
    """Return the latest revision of each intent in a folder, in order, without changing anything.

    Args:
        storage: where the queue is.
        folder: where the intents are.
        actions: the names of the known actions.
    """
    found, _ = _intents_among(storage, folder, storage.list(folder), actions)
    latest = {each.number: each for each in sorted(found, key=lambda each: (each.number, each.revision))}
    return list(latest.values())


def _intents_among(
    storage: Storage, folder: str, entries: Sequence[Entry], actions: Collection[str]
) -> tuple[list[Intent], list[str]]:
    """Return the intents in the files of a folder, and the names of the files that should have one but do not.

    Others may have written to the folder: files beyond `MOST_INTENTS` and `MOST_BYTES` are left alone, with a warning.
    """
    found, damaged = list[Intent](), list[str]()
    files = [entry for entry in entries if entry.name.endswith(".json") and not entry.is_folder]
    left = MOST_BYTES
    for place, entry in enumerate(files):
        left -= min(entry.size or 0, limits().entry_bytes)
        if place == MOST_INTENTS or left < 0:
            logger.warning(
                "%s has more entries than are looked at, so that %s and %d after it are left alone.",
                folder, printable(entry.name), len(files) - place - 1,
            )  # fmt: skip
            break
        intent = read_intent(storage, f"{folder}/{entry.name}", actions)
        if intent is None or intent.name != entry.name:
            damaged.append(entry.name)
        else:
            found.append(intent)
    return found, damaged


def move_earlier_outbox(storage: Storage) -> None:
    """Move the outbox that an earlier version of hexloop left at another place.

    Args:
        storage: where the queue is.

    Raises:
        StorageError: if the storage fails.
    """
    earlier = EARLIER[OUTBOX]
    if any(entry.name == earlier for entry in storage.list("")) and not storage.list(OUTBOX):
        storage.move(earlier, OUTBOX)


def read_intent(storage: Storage, path: str, actions: Collection[str]) -> Intent | None:
    """Return the intent in a file; None if the file does not have one with a known action, or names other places.

    Args:
        storage: where the queue is.
        path: the file.
        actions: the names of the known actions.
    """
    try:
        intent = structured(read_json(read_bytes(storage.read(path), limits().entry_bytes)), Intent)
    except (ValueError, IrregularFileError, MissingFileError):
        return None
    if is_within(intent.source, EARLIER[OUTBOX]):
        intent = evolve(intent, source=OUTBOX + intent.source.removeprefix(EARLIER[OUTBOX]))
    return intent if intent.action in actions else None
