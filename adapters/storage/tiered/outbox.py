"""What the slow tier does not have yet, kept in the fast one, so that it survives a restart."""

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
"""The folder of the fast tier that holds the errands, and what was removed before it was sent."""

HELD = f"{OUTBOX}/held"


class Action(Enum):
    """What is to be done to the slow tier."""

    SEND = "send"
    MOVE = "move"
    REMOVE = "remove"


@frozen
class Errand:
    """One thing that is to be done to the slow tier, in the order of the numbers, which are nanoseconds of the epoch.

    SEND: give `path` the bytes of `source`, a path of the fast tier that changes where these are moved; `revision`
    counts how often. MOVE: give what is at `path` the name `target`. REMOVE: remove what is at `path`.
    """

    number: int
    action: Action
    path: str
    source: str = ""
    target: str = ""
    revision: int = 0

    @property
    def file(self) -> str:
        """The file of the fast tier that keeps it."""
        return f"{OUTBOX}/{self.number:020}-{self.revision}.json"


def is_within(path: str, folder: str) -> bool:
    """Whether a path is a folder's own, or of something in it."""
    return path == folder or path.startswith(f"{folder}/")


def exists(storage: Storage, path: str) -> bool:
    """Whether there is a file or a folder at a path."""
    folder, _, name = path.rpartition("/")
    return name in {entry.name for entry in storage.list(folder)}


class Outbox:
    """The errands that are not done, in order. Any thread may call any method.

    An errand is written before what it is about happens in the fast tier, and is put in force afterwards: a process
    that dies in between leaves an errand whose source is not there, which the next one drops. takes_over: whether what
    earlier processes left behind is this one's to do.
    """

    def __init__(self, fast: Storage, takes_over: bool = True) -> None:
        self._fast = fast
        self.changed = threading.Condition(threading.RLock())
        self._errands: dict[int, Errand] = {}
        self._waiting: set[int] = set()
        if takes_over:
            self._errands = {errand.number: errand for errand in self._left_behind()}
        self._latest = max(self._errands, default=0)

    def pending(self) -> tuple[Errand, ...]:
        """All that is to be done, in order."""
        with self.changed:
            return tuple(errand for _, errand in sorted(self._errands.items()))

    def first(self) -> Errand | None:
        """What is to be done next; None where there is nothing, or the next thing is not in force yet."""
        with self.changed:
            number = min(self._errands, default=None)
            return None if number is None or number in self._waiting else self._errands[number]

    def current(self, errand: Errand) -> Errand:
        """The errand as it is now."""
        with self.changed:
            return self._errands[errand.number]

    def during(self, act: Callable[[], object], action: Action, path: str, source: str = "", target: str = "") -> None:
        """Note an errand, do what it is about, and put it in force; without it, where that fails."""
        with self.changed:
            errand = Errand(self._next_number(), action, path, source, target)
            self._errands[errand.number] = errand
            self._waiting.add(errand.number)
        try:
            self._keep(errand)
            act()
        except BaseException:
            self.done(errand)
            raise
        with self.changed:
            self._waiting.discard(errand.number)
            self.changed.notify_all()

    def add(self, action: Action, path: str, target: str = "") -> None:
        """Note an errand."""
        self.during(lambda: None, action, path, target=target)

    def moving(self, source: str, destination: str) -> None:
        """Move something in the fast tier, and let those errands that send it know."""
        with self.changed:
            old = [errand for errand in self._errands.values() if is_within(errand.source, source)]
            new = [
                evolve(each, source=destination + each.source.removeprefix(source), revision=each.revision + 1)
                for each in old
            ]
            for errand in new:
                self._keep(errand)
            try:
                self._fast.move(source, destination)
            except BaseException:
                self._forget(new)
                raise
            self._errands.update({errand.number: errand for errand in new})
            self._forget(old)

    def hold(self, path: str) -> None:
        """Take something out of sight that is still to be sent."""
        with self.changed:
            self.moving(path, f"{HELD}-{self._next_number():020}/{path.rpartition('/')[2]}")

    def done(self, errand: Errand) -> None:
        """Drop an errand, and what was held for no other one."""
        with self.changed:
            now = self._errands.pop(errand.number, errand)
            self._waiting.discard(errand.number)
            self._forget([now])
            if is_within(now.source, OUTBOX):
                self._release("/".join(now.source.split("/")[:2]))
            self.changed.notify_all()

    def _next_number(self) -> int:
        self._latest = max(self._latest + 1, time.time_ns())
        return self._latest

    def _release(self, held: str) -> None:
        """Remove what was held, unless an errand still needs it."""
        if not any(is_within(each.source, held) for each in self._errands.values()):
            with suppress(StorageError):
                self._fast.remove(held)

    def _keep(self, errand: Errand) -> None:
        document = {**asdict(errand), "action": errand.action.value}
        self._fast.write(errand.file, [json.dumps(document).encode()])

    def _forget(self, errands: list[Errand]) -> None:
        """Remove the files of errands; one that stays stands for something that will be found done."""
        for errand in errands:
            with suppress(StorageError):
                self._fast.remove(errand.file)

    def _left_behind(self) -> list[Errand]:
        """The errands of earlier processes, of each its latest revision of which the source is there."""
        found: list[Errand] = []
        folders: set[str] = set()
        for entry in self._fast.list(OUTBOX):
            if entry.is_folder:
                folders.add(entry.name)
                continue
            try:
                document = json.loads(b"".join(self._fast.read(f"{OUTBOX}/{entry.name}")))
                found.append(Errand(**{**document, "action": Action(document["action"])}))
            except (ValueError, TypeError, KeyError):  # its writer did not live to complete it
                self._fast.remove(f"{OUTBOX}/{entry.name}")
        dropped = [each for each in found if each.action is Action.SEND and not exists(self._fast, each.source)]
        kept = sorted((each for each in found if each not in dropped), key=lambda each: each.revision)
        latest = {each.number: each for each in kept}
        self._forget([each for each in found if each not in latest.values()])
        needed = {each.source.split("/")[1] for each in latest.values() if is_within(each.source, OUTBOX)}
        for name in folders - needed:
            self._fast.remove(f"{OUTBOX}/{name}")
        return list(latest.values())
