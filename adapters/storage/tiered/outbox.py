"""Durable queue of what the slow tier does not have yet, kept in the fast tier, and the thread that works it off."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from typing import TypeVar

from attrs import asdict, evolve, field, frozen
from attrs.validators import ge, instance_of, le

from hexloop.adapters.storage import exists
from hexloop.domain.errors import IrregularFileError, StorageError
from hexloop.domain.json_documents import read_bytes, read_json
from hexloop.domain.limits import limits
from hexloop.ports.storage import Storage

OUTBOX = ".outbox"
"""The folder of the fast tier that holds the intents, and what was removed before it was uploaded."""

MOST = 1 << 63
"""The largest number of an intent: it takes 20 digits in the name of a file."""

HELD = f"{OUTBOX}/held"

Result = TypeVar("Result")

logger = logging.getLogger("hexloop.storage")


class Action(StrEnum):
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

    number: int = field(validator=[instance_of(int), ge(0), le(MOST)])
    action: Action
    path: str = field(validator=instance_of(str))
    source: str = field(default="", validator=instance_of(str))
    target: str = field(default="", validator=instance_of(str))
    revision: int = field(default=0, validator=[instance_of(int), ge(0), le(MOST)])

    @property
    def file(self) -> str:
        """The file of the fast tier that stores it."""
        return f"{OUTBOX}/{self.number:020}-{self.revision}.json"


def is_within(path: str, folder: str) -> bool:
    """Return whether a path is a folder or inside it."""
    return path == folder or path.startswith(f"{folder}/")


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

    def during(
        self, act: Callable[[], Result], action: Action, path: str, source: str = "", target: str = ""
    ) -> Result:
        """Write an intent, call `act`, and activate the intent; drop it if `act` fails."""
        with self.changed:
            intent = Intent(self._next_number(), action, path, source, target)
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
            held = "/".join(now.source.split("/")[:2])
            needed = any(is_within(each.source, held) for each in self._intents.values())
            if is_within(now.source, OUTBOX) and not needed:
                with suppress(StorageError):
                    self._fast.remove(held)
            self.changed.notify_all()

    def _next_number(self) -> int:
        self._latest = max(self._latest + 1, time.time_ns())
        return self._latest

    def _store(self, intent: Intent) -> None:
        """Write the file of an intent, which must be durable before what it describes happens."""
        self._fast.write(intent.file, [json.dumps(asdict(intent)).encode()])
        self._fast.sync([intent.file])

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
                document = read_json(read_bytes(self._fast.read(f"{OUTBOX}/{entry.name}"), limits().note_bytes))
                found.append(Intent(**{**document, "action": Action(document["action"])}))
            except (ValueError, TypeError, KeyError, IrregularFileError):  # its writer died before completing it
                self._fast.remove(f"{OUTBOX}/{entry.name}")
        dropped = [each for each in found if each.action is Action.SEND and not exists(self._fast, each.source)]
        kept = sorted((each for each in found if each not in dropped), key=lambda each: each.revision)
        latest = {each.number: each for each in kept}
        self._forget([each for each in found if each not in latest.values()])
        needed = {each.source.split("/")[1] for each in latest.values() if is_within(each.source, OUTBOX)}
        for name in folders - needed:
            self._fast.remove(f"{OUTBOX}/{name}")
        return list(latest.values())


class Uploader:
    """Thread that carries out the intents one at a time, in order, retrying each until it succeeds; it ends when none
    is left.

    pauses: seconds before each retry; the last one repeats.
    limit: the program waits for this thread at exit for at most `limit` seconds, and only while nothing fails; the next
    process with the same outbox continues.
    trouble: why the current intent failed; None if it has not.
    """

    def __init__(
        self, outbox: Outbox, carry_out: Callable[[Intent], None], pauses: tuple[float, ...], limit: float
    ) -> None:
        self._outbox, self._carry_out, self._pauses, self._limit = outbox, carry_out, pauses, limit
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._ends_at: float | None = None
        self.trouble: str | None = None

    def wake(self) -> None:
        """Start the thread if there are pending intents."""
        with self._outbox.changed:
            if not self._stopped and self._thread is None and self._outbox.pending():
                self._thread = threading.Thread(target=self._run, name="hexloop upload")
                self._thread.start()

    def stop(self) -> None:
        """Finish the current intent, or its current attempt, and start no other."""
        with self._outbox.changed:
            self._stopped = True
            self._outbox.changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        failures = 0
        while (intent := self._next(failures)) is not None:
            try:
                self._carry_out(intent)
            except Exception as error:
                self.trouble = str(error)
                level = logging.DEBUG if failures else logging.WARNING
                logger.log(level, "Uploading %s failed and is retried: %s", intent.path, error)
                failures += 1
            else:
                failures, self.trouble = 0, None
                self._outbox.done(intent)

    def _next(self, failures: int) -> Intent | None:
        """Return the next intent, after a pause if the last attempt failed; None if the thread is to end."""
        pause = self._pauses[min(failures, len(self._pauses)) - 1] if failures else 0.0
        ready_at = time.monotonic() + pause
        with self._outbox.changed:
            while not self._stopped and not self._is_late(failures):
                intent = self._outbox.first()
                if intent is not None and time.monotonic() >= ready_at:
                    return intent
                if not self._outbox.pending():
                    break
                self._outbox.changed.wait(min(1.0, max(ready_at - time.monotonic(), 0.01)))
            self._thread = None
            return None

    def _is_late(self, failures: int) -> bool:
        """Return whether the program is exiting and must not wait any longer."""
        if threading.main_thread().is_alive():
            return False
        if self._ends_at is None:
            self._ends_at = time.monotonic() + self._limit
        late = failures > 0 or time.monotonic() >= self._ends_at
        if late and self._outbox.pending():
            unsent = ", ".join(sorted({intent.path for intent in self._outbox.pending()}))
            logger.warning("The program exits before everything is uploaded; the next one continues with: %s", unsent)
        return late
