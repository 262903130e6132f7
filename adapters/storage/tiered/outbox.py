"""Durable queue of what the slow tier does not have yet, kept in the fast tier."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum

from attrs import asdict, evolve, frozen

from hexloop.domain.errors import StorageError
from hexloop.ports.storage import Storage

OUTBOX = ".outbox"
"""The folder of the fast tier that holds the intents, and what was removed before it was uploaded."""

HELD = f"{OUTBOX}/held"


class Action(Enum):
    """What to do to the slow tier."""

    SEND = "send"
    MOVE = "move"
    REMOVE = "remove"


@frozen
class Intent:
    """One operation on the slow tier. Intents are carried out in the order of their numbers, nanoseconds since the
    epoch.

    SEND: upload `source`, a path of the fast tier, to `path`; `revision` counts how often the source was moved. MOVE:
    rename `path` to `target`. REMOVE: remove `path`.
    """

    number: int
    action: Action
    path: str
    source: str = ""
    target: str = ""
    revision: int = 0

    @property
    def file(self) -> str:
        """The file of the fast tier that stores it."""
        return f"{OUTBOX}/{self.number:020}-{self.revision}.json"


def is_within(path: str, folder: str) -> bool:
    """Return whether a path is a folder or inside it."""
    return path == folder or path.startswith(f"{folder}/")


def exists(storage: Storage, path: str) -> bool:
    """Return whether there is a file or a folder at a path."""
    folder, _, name = path.rpartition("/")
    return name in {entry.name for entry in storage.list(folder)}


class Outbox:
    """The pending intents, in order. Thread-safe.

    An intent is written before its operation happens in the fast tier, and activated afterwards: a process that dies in
    between leaves an intent without a source, which the next process drops.
    takes_over: whether this process continues what earlier ones left pending.
    """

    def __init__(self, fast: Storage, takes_over: bool = True) -> None:
        self._fast = fast
        self.changed = threading.Condition(threading.RLock())
        self._intents: dict[int, Intent] = {}
        self._waiting: set[int] = set()
        if takes_over:
            self._intents = {intent.number: intent for intent in self._left_behind()}
        self._latest = max(self._intents, default=0)

    def pending(self) -> tuple[Intent, ...]:
        """Return all pending intents, in order."""
        with self.changed:
            return tuple(intent for _, intent in sorted(self._intents.items()))

    def first(self) -> Intent | None:
        """Return the next intent; None if there is none or it is not active yet."""
        with self.changed:
            number = min(self._intents, default=None)
            return None if number is None or number in self._waiting else self._intents[number]

    def current(self, intent: Intent) -> Intent:
        """Return the latest revision of the intent."""
        with self.changed:
            return self._intents[intent.number]

    def during(self, act: Callable[[], object], action: Action, path: str, source: str = "", target: str = "") -> None:
        """Write an intent, call `act`, and activate the intent; drop it if `act` fails."""
        with self.changed:
            intent = Intent(self._next_number(), action, path, source, target)
            self._intents[intent.number] = intent
            self._waiting.add(intent.number)
        try:
            self._store(intent)
            act()
        except BaseException:
            self.done(intent)
            raise
        with self.changed:
            self._waiting.discard(intent.number)
            self.changed.notify_all()

    def add(self, action: Action, path: str, target: str = "") -> None:
        """Write and activate an intent."""
        self.during(lambda: None, action, path, target=target)

    def moving(self, source: str, destination: str) -> None:
        """Move something in the fast tier, updating the source of pending uploads."""
        with self.changed:
            old = [intent for intent in self._intents.values() if is_within(intent.source, source)]
            new = [
                evolve(each, source=destination + each.source.removeprefix(source), revision=each.revision + 1)
                for each in old
            ]
            for intent in new:
                self._store(intent)
            try:
                self._fast.move(source, destination)
            except BaseException:
                self._forget(new)
                raise
            self._intents.update({intent.number: intent for intent in new})
            self._forget(old)

    def hold(self, path: str) -> None:
        """Hide something in the fast tier that is still to be uploaded."""
        with self.changed:
            self.moving(path, f"{HELD}-{self._next_number():020}/{path.rpartition('/')[2]}")

    def done(self, intent: Intent) -> None:
        """Drop an intent, and what was held only for it."""
        with self.changed:
            now = self._intents.pop(intent.number, intent)
            self._waiting.discard(intent.number)
            self._forget([now])
            if is_within(now.source, OUTBOX):
                self._release("/".join(now.source.split("/")[:2]))
            self.changed.notify_all()

    def _next_number(self) -> int:
        self._latest = max(self._latest + 1, time.time_ns())
        return self._latest

    def _release(self, held: str) -> None:
        """Remove what was held, unless a pending intent needs it."""
        if not any(is_within(each.source, held) for each in self._intents.values()):
            with suppress(StorageError):
                self._fast.remove(held)

    def _store(self, intent: Intent) -> None:
        document = {**asdict(intent), "action": intent.action.value}
        self._fast.write(intent.file, [json.dumps(document).encode()])

    def _forget(self, intents: list[Intent]) -> None:
        """Remove the files of intents; one that remains describes an operation that turns out to be done already."""
        for intent in intents:
            with suppress(StorageError):
                self._fast.remove(intent.file)

    def _left_behind(self) -> list[Intent]:
        """Return the intents of earlier processes: the latest revision of each whose source exists."""
        found: list[Intent] = []
        folders: set[str] = set()
        for entry in self._fast.list(OUTBOX):
            if entry.is_folder:
                folders.add(entry.name)
                continue
            try:
                document = json.loads(b"".join(self._fast.read(f"{OUTBOX}/{entry.name}")))
                found.append(Intent(**{**document, "action": Action(document["action"])}))
            except (ValueError, TypeError, KeyError):  # its writer died before completing it
                self._fast.remove(f"{OUTBOX}/{entry.name}")
        dropped = [each for each in found if each.action is Action.SEND and not exists(self._fast, each.source)]
        kept = sorted((each for each in found if each not in dropped), key=lambda each: each.revision)
        latest = {each.number: each for each in kept}
        self._forget([each for each in found if each not in latest.values()])
        needed = {each.source.split("/")[1] for each in latest.values() if is_within(each.source, OUTBOX)}
        for name in folders - needed:
            self._fast.remove(f"{OUTBOX}/{name}")
        return list(latest.values())
