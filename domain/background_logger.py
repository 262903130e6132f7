"""A logger that is called from a thread of its own, so that it costs the run nothing, whatever it does."""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Literal

from attrs import evolve, field, frozen

from hexloop.domain.errors import ConfigurationError
from hexloop.domain.log_entries import LONGEST_IDENTIFIER, Item, is_for, item_of, run_entry
from hexloop.domain.redaction import redact
from hexloop.ports.logger import Logger, Media, MediaKind, Outcome, Record, RunInformation, SavedModel, Spool
from hexloop.ports.process import Clock

IN_MEMORY = 1000
"""Items that wait in memory; further ones are read from the spool."""

AT_ONCE = 100
"""Records that a logger receives in one call, if it takes several."""

TOGETHER = 0.5
"""Seconds between two deliveries. A thread that is woken for each record takes turns with the loop of Python's lock."""

LASTING = (ConfigurationError, FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError)
"""Errors that do not pass by themselves."""

_PASSING = re.compile(r"Timeout|TimedOut|Connection|Unavailable|RateLimit|TooManyRequests|CommError|ServerError")
_STATUS = re.compile(r"\b(?:408|429|50[0234])\b")


def may_pass(error: BaseException) -> bool:
    """Return whether an error may be gone later, such as that of a network.

    Args:
        error: what the logger raised.
    """
    if not isinstance(error, Exception) or isinstance(error, LASTING):
        return False
    names = [kind.__name__ for kind in type(error).__mro__]
    return isinstance(error, OSError) or any(map(_PASSING.search, names)) or bool(_STATUS.search(str(error)))


@frozen
class Receiver:
    """A logger, and what else it can do.

    Args:
        name: identifies it in the run's state.
        logger: the logger.
        write_all: takes several records at once.
        save: takes models.
        models: which models it takes.
        write_media: takes media.
        media: which kinds of media it takes.
        only_live: what it receives describes this moment or process, so no other process delivers it later.
        facts: what another process needs to make the logger again.
    """

    name: str
    logger: Logger
    write_all: Callable[[Sequence[Record]], None] | None = None
    save: Callable[[SavedModel], None] | None = None
    models: Literal["none", "final", "checkpoints"] = "none"
    write_media: Callable[[Media], None] | None = None
    media: frozenset[MediaKind] = frozenset()
    only_live: bool = False
    facts: Mapping[str, Any] = field(factory=dict)


class BackgroundLogger:
    """Calls a logger from a daemon thread: `start`, then with each item in order, then `finish`.

    What does not fit into memory is read from the spool. After an error that may pass, the call is repeated; after
    another one, the logger is left alone, and what it lacks stays in the spool.

    Args:
        receiver: the logger, and what else it can do.
        spool: the items that loggers lack, on disk.
        clock: tells the time.
        pause: the seconds to wait after a number of failures in a row.
        report: is called once with a sentence when the logger fails, from its thread.
        saved: is called from there with the name of the logger, and a model that it has or does not need any more.
        fetch: returns a medium with its content and the path of its file; None if that is gone.

    Attributes:
        identifier: what the logger returned at the start.
        started: whether it has.
        finishing: whether the items include the end.
        ended: whether it has everything, and was finished.
        waiting: how many items it lacks.
        left_out: how many are lost, because there was no room.
        problem: why it does not make progress; empty if it does.
        saving: the folder of the model that it is receiving.
    """

    def __init__(
        self,
        receiver: Receiver,
        spool: Spool,
        clock: Clock,
        pause: Callable[[int], float],
        report: Callable[[str], None],
        saved: Callable[[str, SavedModel], None],
        fetch: Callable[[Media], Media | None] = lambda media: None,
    ) -> None:
        self.receiver, self._spool, self._clock = receiver, spool, clock
        self._pause_after, self._report, self._saved, self._fetch = pause, report, saved, fetch
        self.identifier: str | None = None
        self.started = self.finishing = self.ended = self.stopped = False
        self.problem = self.saving = ""
        self.waiting = self.left_out = 0
        self._changed = threading.Condition()
        self._items: deque[tuple[int, Item]] = deque()
        self._position = spool.position(receiver.name)
        self._newest_model = 0
        self._last_in_spool = 0
        self._hurried = self._is_idle = False
        self._delivered_at = float("-inf")
        self._reported = False
        self._refused = set[str]()
        for number, item in self._in_spool(self._position):
            self.waiting += 1
            self._last_in_spool = number
            self._note(number, item)

    def start(self, run: RunInformation) -> None:
        """Start the thread, which starts the logger with this run, `tracked_as` included.

        Args:
            run: what describes the run.
        """
        self.identifier = run.tracked_as
        name = f"hexloop logs to {self.receiver.name}"
        threading.Thread(target=self._run, args=(run,), name=name, daemon=True).start()

    def put(self, number: int, item: Item, spooled: bool) -> None:
        """Add an item.

        Args:
            number: of the item, ascending.
            item: a record, a medium, a model, or the end.
            spooled: whether it is in the spool as well.
        """
        with self._changed:
            in_memory = not self.stopped and self._last_in_spool <= self._position and len(self._items) < IN_MEMORY
            self._note(number, item)
            if in_memory:
                self._items.append((number, item))
            elif spooled:
                self._last_in_spool = number
            else:
                self.left_out += 1
                return
            self.waiting += 1
            if self._is_idle or self.finishing or len(self._items) >= IN_MEMORY // 2:
                self._changed.notify_all()

    def await_start(self, ends_at: float) -> bool:
        """Wait until the logger has started or failed, at most until this time of the clock; return whether.

        Args:
            ends_at: by the clock of the logger.
        """
        return self._await(lambda: self.started or self.stopped or bool(self.problem), ends_at)

    def await_end(self, ends_at: float) -> bool:
        """Wait until the logger has everything, or failed for good, or until this time; return whether it has all.

        Args:
            ends_at: by the clock of the logger.
        """
        self._await(lambda: self.ended or self.stopped, ends_at)
        return self.ended

    def hurry(self) -> None:
        """Repeat a call that failed without waiting for its pause."""
        with self._changed:
            self._hurried = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Start no further call. The thread ends after the current one, if that ever returns."""
        with self._changed:
            self.stopped = True
            self._changed.notify_all()

    def _await(self, is_so: Callable[[], bool], ends_at: float) -> bool:
        with self._changed:
            while not is_so() and (left := ends_at - self._clock.monotonic()) > 0:
                self._changed.wait(min(left, 1.0))
            return is_so()

    # In the thread

    def _run(self, run: RunInformation) -> None:
        try:
            if self._attempt("start", partial(self._start, run)):
                while items := self._next():
                    if not self._attempt(_action(items[-1][1]), partial(self._deliver, items)):
                        break
        except BaseException as error:  # of the spool; a thread has no one to raise it to
            self._fail("start or write", error, passing=False)
        self.stop()

    def _attempt(self, action: str, act: Callable[[], None]) -> bool:
        """Do something until it succeeds; return False if it cannot, or the thread is to end."""
        failures = 0
        while not self.stopped:
            try:
                act()
            except BaseException as error:  # libraries raise SystemExit, too
                failures += 1
                passing = may_pass(error)
                self._fail(action, error, passing)
                if not passing:
                    return False
                self._pause(self._pause_after(failures))
            else:
                self.problem = ""
                return True
        return False

    def _start(self, run: RunInformation) -> None:
        identifier = self.receiver.logger.start(run)
        with self._changed:
            if identifier is not None:
                self.identifier = str(identifier)[:LONGEST_IDENTIFIER]
            self._describe(evolve(run, tracked_as=self.identifier))
            self.started = True
            self._changed.notify_all()

    def _describe(self, run: RunInformation) -> None:
        facts = self._spool.facts(self.receiver.name)
        if facts is not None:
            with suppress(OSError):
                self._spool.describe(self.receiver.name, {**facts, "run": run_entry(run)})

    def _next(self) -> list[tuple[int, Item]]:
        """Return the next items, several only if they can be written at once; none if the thread is to end."""
        with self._changed:
            while not self.stopped and not self.ended:
                if (left := self._gathers_for()) > 0:
                    self._changed.wait(min(left, 1.0))
                    continue
                if self._items:
                    return _together([*islice(self._items, self._most)])
                if self._last_in_spool > self._position:
                    break
                self._is_idle = True
                self._changed.wait()
                self._is_idle = False
            if self.stopped or self.ended:
                return []
        items = _together([*islice(self._in_spool(self._position), self._most)])
        if not items:  # what was there is damaged
            with self._changed:
                self._position, self.waiting = self._last_in_spool, len(self._items)
            return self._next()
        return items

    def _gathers_for(self) -> float:
        """Return the seconds until the next delivery."""
        if self.finishing or self._hurried or len(self._items) >= IN_MEMORY // 2:
            return 0.0
        return self._delivered_at + TOGETHER - self._clock.monotonic()

    def _deliver(self, items: list[tuple[int, Item]]) -> None:
        receiver, (number, item) = self.receiver, items[-1]
        if isinstance(item, Outcome):
            receiver.logger.finish(item)
        elif isinstance(item, SavedModel):
            self._save(number, item)
        elif isinstance(item, Media):
            self._write_media(item)
        elif receiver.write_all is not None:
            receiver.write_all([each for _, each in items if isinstance(each, Record)])
        else:
            receiver.logger.write(item)
        with suppress(OSError):  # at worst the items come twice
            self._spool.move(receiver.name, number)
        with self._changed:
            self._position = number
            while self._items and self._items[0][0] <= number:
                self._items.popleft()
            self.waiting -= len(items)
            self.ended = isinstance(item, Outcome)
            if not self._items and self._last_in_spool <= number:
                self._delivered_at = self._clock.monotonic()
            self._changed.notify_all()

    def _write_media(self, item: Media) -> None:
        """Pass on a medium. One that the logger cannot take is left out, and the values that follow are not."""
        write_media, media = self.receiver.write_media, self._fetch(item)
        if write_media is None or media is None:
            return
        try:
            write_media(media)
        except BaseException as error:
            if may_pass(error):
                raise
            if media.kind not in self._refused:
                self._refused.add(media.kind)
                text = redact(f"{type(error).__name__}: {error}")
                with suppress(Exception):
                    self._report(
                        f"The logger {self.receiver.name} failed to write the {media.kind} {media.name!r} ({text}). "
                        "Media of this kind that it cannot write are left out; they are in the folder of the run."
                    )

    def _save(self, number: int, model: SavedModel) -> None:
        """Pass on a model, unless there is a newer one."""
        save = self.receiver.save
        with self._changed:
            wanted = number >= self._newest_model or model.final
            self.saving = model.folder if wanted else ""
        location = self._spool.location(model.folder)
        try:
            if save is not None and wanted and location is not None:
                save(evolve(model, folder=location))
        finally:
            self.saving = ""
        self._saved(self.receiver.name, model)

    @property
    def _most(self) -> int:
        return AT_ONCE if self.receiver.write_all is not None else 1

    def _in_spool(self, after: int) -> Iterator[tuple[int, Item]]:
        return items_in(self._spool, self.receiver.name, after)

    def _note(self, number: int, item: Item) -> None:
        if isinstance(item, SavedModel):
            self._newest_model = number
        self.finishing = self.finishing or isinstance(item, Outcome)

    def _fail(self, action: str, error: BaseException, passing: bool) -> None:
        text = redact(f"{type(error).__name__}: {error}")
        with self._changed:
            self.problem = text
            self._changed.notify_all()
        if not self._reported:
            self._reported = True
            then = "it is tried again" if passing else "the logger is left alone"
            with suppress(Exception):
                self._report(
                    f"The logger {self.receiver.name} failed to {action} ({text}). The run continues, and {then}."
                )

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._await(lambda: self.stopped or self._hurried, self._clock.monotonic() + seconds)
            self._hurried = False


def items_in(spool: Spool, name: str, after: int) -> Iterator[tuple[int, Item]]:
    """Yield the items in a spool that a logger receives, with numbers above `after`.

    Args:
        spool: the items that loggers lack, on disk.
        name: the name of the logger.
        after: the number of the last item that it has.
    """
    while entries := spool.read(after, IN_MEMORY):
        for number, entry in entries:
            after = number
            item = item_of(entry) if is_for(entry, name) else None
            if item is not None:
                yield number, item


def left_in(spool: Spool, names: Collection[str]) -> dict[str, tuple[int, bool]]:
    """Return, for each logger, how many items of a spool it lacks, and whether it was finished; in one pass.

    Args:
        spool: the items that loggers lack, on disk.
        names: the names of the loggers.
    """
    positions = {name: spool.position(name) for name in names}
    lacking, finished = dict.fromkeys(names, 0), dict.fromkeys(names, False)
    after = 0
    while entries := spool.read(after, IN_MEMORY):
        for number, entry in entries:
            after = number
            item = item_of(entry)
            for name in names if item is not None else ():
                if is_for(entry, name):
                    lacking[name] += number > positions[name]
                    finished[name] |= isinstance(item, Outcome) and number <= positions[name]
    return {name: (lacking[name], finished[name]) for name in names}


def _action(item: Item) -> str:
    names = {Outcome: "finish", SavedModel: "save", Media: "write media"}
    return names.get(type(item), "write")


def _together(items: list[tuple[int, Item]]) -> list[tuple[int, Item]]:
    """Return the first records of a list, or its first item of another kind."""
    count = next((place for place, (_, item) in enumerate(items) if not isinstance(item, Record)), len(items))
    return items[: max(count, 1)]
