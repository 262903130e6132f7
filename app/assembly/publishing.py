"""Publishing on a hub through an outbox: what is published is kept until the hub has it."""

from __future__ import annotations

import errno
import shlex
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from pathlib import Path

from attrs import asdict, define, field, frozen

from hexloop.app.assembly.outboxes import PUSH, HeldOutbox, intents_of, names_in, note_push, open_outbox
from hexloop.app.assembly.pushes import (
    Push,
    drop_beyond_limit,
    drop_for_room,
    files_of,
    free_bytes,
    hub_at,
    keep_files,
    link_or_copy,
)
from hexloop.domain.delivery import Backoff, Delivery, RateLimit
from hexloop.domain.errors import RefusedError, StorageError, StorageFullError, UnavailableError
from hexloop.domain.outbox import Intent
from hexloop.domain.run_folder import OUTBOX
from hexloop.ports.hub import Hub
from hexloop.ports.storage import Storage

BURST, INTERVAL = 20, 36.0
"""Commits at once, and seconds between further ones: at most 120 in an hour. The Hugging Face Hub takes 128."""


NO_SPACE_LEFT = "the disk is full"
"""Why a push is dropped that a disk has no room for."""


@frozen
class Published:
    """The outcome of a push: the full name of the repository, the version and its message."""

    name: str
    version: str
    message: str

    @property
    def oid(self) -> str:
        """The version, by the name that it has in huggingface_hub's CommitInfo."""
        return self.version

    @property
    def commit_message(self) -> str:
        """The message, by the name that it has there."""
        return self.message


@define(eq=False)
class HubPublisher:
    """Publishes on a hub in the background, through an outbox in `folder`.

    hub, storage: the run's own. The outbox is opened with the first push, or by `open`.
    objection: returns why a push that another program left in the outbox is not made; "" if it is.
    """

    hub: Hub
    folder: str
    storage: Storage | None = None
    backoff: Backoff = field(factory=Backoff)
    objection: Callable[[Push], str] = field(default=lambda push: "")
    _working: tuple[HeldOutbox, Delivery] | None = field(default=None, init=False)
    _own: set[int] = field(factory=set, init=False)
    _names: dict[tuple[str, str], str] = field(factory=dict, init=False)
    _futures: dict[int, Future[Published]] = field(factory=dict, init=False)
    _rate: RateLimit = field(factory=lambda: RateLimit(BURST, INTERVAL), init=False)

    def open(self, name: str | None = None, deliver: bool = True) -> bool:
        """Take over what earlier processes left, and start to work it off; return whether that is possible.

        name: that of the outbox; None for any, which takes over those of all runs that have ended.
        deliver: whether to start now.
        """
        if self._working is None:
            held = open_outbox(self.folder, name)
            if held is None:
                return False
            delivery = Delivery(held.outbox, self._carry_out, self.backoff, 0, self._rate, "hexloop push")
            self._working = held, delivery
            if name is None:
                self._adopt(held)
        if deliver:
            self._opened[1].wake()
        return True

    def _adopt(self, held: HeldOutbox) -> None:
        """Move what other runs that have ended left in outboxes of their own to this one, unless it has newer."""
        for name in names_in(self.folder):
            other = open_outbox(self.folder, name) if f"{OUTBOX}/{name}" != held.folder else None
            if other is None:
                continue
            try:
                for intent in other.outbox.pending():
                    self._take_over(held, other, intent)
                    other.outbox.done(intent)
            finally:
                other.close()

    @staticmethod
    def _take_over(held: HeldOutbox, other: HeldOutbox, intent: Intent) -> None:
        mine = held.outbox.pending()
        if any(each.number > intent.number and _is_replaced(intent, each) for each in mine):
            return
        source = ""
        if intent.source:
            kept = other.of(intent.source)

            def fill(folder: Path) -> None:
                for path, _ in kept.files():
                    link_or_copy(kept.location(path), folder / path)

            source = keep_files(held, fill)
        held.outbox.put(
            PUSH, intent.path, intent.details, source,
            lambda old: old.number < intent.number and _is_replaced(old, intent),
        )  # fmt: skip

    def push(
        self, push: Push, fill: Callable[[Path], None] | None = None, replaces: bool = True, room: int = 0
    ) -> Intent:
        """Enter a push into the outbox; return when it is durable.

        fill: puts the files into a folder that it is given; the push keeps them. replaces: whether pushes that are
        covered by this one are dropped. room: bytes that the run is about to need on the disk: as long as they are not
        free, the oldest pushes of checkpoints are dropped that keep some.
        Raises StorageError or OSError if that is not possible, and TypeError if a part of the push has a wrong type.
        """
        push.check()
        self.open(deliver=False)
        held, delivery = self._opened
        note_push(self.folder, push.hub, push.name)
        while True:
            try:
                intent = self._enter(held, push, fill, replaces)
            except OSError as error:
                if not _is_full(error) or not drop_for_room(held, NO_SPACE_LEFT):
                    raise
            else:
                break
        with held.outbox.changed:
            drop_beyond_limit(held)
            while free_bytes(held) < room and drop_for_room(held, NO_SPACE_LEFT):
                pass
            pending = {each.number for each in held.outbox.pending()}
            for number in self._futures.keys() - pending:
                self._futures.pop(number).cancel()
        delivery.wake()
        return intent

    def _enter(self, held: HeldOutbox, push: Push, fill: Callable[[Path], None] | None, replaces: bool) -> Intent:
        source = "" if fill is None else keep_files(held, fill)
        try:
            with held.outbox.changed:
                intent = held.outbox.put(
                    PUSH, push.name, asdict(push), source, lambda old: replaces and push.replaces(old)
                )
                self._own.add(intent.number)
                return intent
        except StorageError:
            if source:
                with suppress(OSError):
                    held.of(source).remove()
            raise

    def make_room(self) -> bool:
        """Drop the oldest push of a checkpoint that keeps bytes which nothing else does; return whether there was one.

        For a storage that is full. The newest push of each repository is never dropped.
        """
        return self._working is not None and drop_for_room(self._working[0], NO_SPACE_LEFT)

    def full_name(self, name: str, private: bool | None = None) -> str:
        """Return the full name of a repository on the run's own hub, which is created if it does not exist.

        Raises RefusedError and UnavailableError.
        """
        known = self.hub.address, name
        if known not in self._names:
            self._names[known] = self.hub.create(name, private)
        return self._names[known]

    def future(self, intent: Intent) -> Future[Published]:
        """Return the outcome of a push, in the future; it is cancelled if a newer push replaces it.

        Its exception is a RefusedError if the hub refuses the push.
        """
        working = self._working
        with nullcontext() if working is None else working[0].outbox.changed:
            return self._futures.setdefault(intent.number, Future())

    def wait(self, intent: Intent, limit: float) -> Published | None:
        """Wait until a push is done, however long an attempt takes, and return its outcome; None if it was replaced.

        Raises RefusedError if the hub refuses it, and UnavailableError if attempts have failed for `limit` seconds.
        """
        held, delivery = self._opened
        future, failed_at = self.future(intent), float("inf")
        while not _has_succeeded(future):
            delivery.finish(0.2)
            ahead = [each for each in held.outbox.pending() if each.number <= intent.number]
            now = next((each for each in ahead if each.number == intent.number), None)
            if now is None:
                break
            failing = [each for each in ahead if each.failures and not each.refused]
            failed_at = min(failed_at, time.monotonic()) if failing else float("inf")
            if now.refused or time.monotonic() - failed_at >= limit:
                kind = RefusedError if now.refused else UnavailableError
                raise kind(
                    f"{(now if now.refused else failing[0]).problem} The push is kept as the entry {now.number} of the "
                    f"outbox in {self.folder}. Once the cause is gone, finish it with: "
                    f"{finishing_command([now], self.folder)}"
                )
        if not _has_succeeded(future):  # it may have been refused before, and retried
            with held.outbox.changed:
                future = self._futures.get(intent.number, future)
        return future.result() if _has_succeeded(future) else None

    def finish(self, limit: float, report: Callable[[int], None] = lambda left: None) -> tuple[Intent, ...]:
        """Work off what is left for at most `limit` seconds, and return what is left then, refused pushes included.

        The outbox is then closed, unless deliverable pushes are left: these are tried as long as the process lives.
        """
        if self._working is None:
            return ()
        held, delivery = self._working
        delivery.finish(limit, report)
        left = held.outbox.pending()
        if all(intent.refused for intent in left):
            self.close()
        return left

    def retry(self) -> None:
        """Make refused pushes deliverable again."""
        held, delivery = self._opened
        with held.outbox.changed:
            self._futures = {number: each for number, each in self._futures.items() if not _was_refused(each)}
            held.outbox.retry()
        delivery.wake()

    def drop(self, numbers: Sequence[int]) -> list[Intent]:
        """Drop pushes by their numbers, all if there are none; return what was dropped."""
        held, _ = self._opened
        dropped = [each for each in held.outbox.pending() if not numbers or each.number in numbers]
        for intent in dropped:
            held.outbox.done(intent)
        return dropped

    def close(self) -> None:
        """Stop working the outbox off, and leave it to other processes, after the attempt that is being made."""
        if self._working is not None:
            held, delivery = self._working
            delivery.stop(wait=False, then=held.close)
            self._working = None

    def outboxes_of_others(self) -> list[str]:
        """Return the names of outboxes with pushes in the same folder that live processes work on."""
        own = self._opened[0].folder
        return [each for each in names_in(self.folder) if f"{OUTBOX}/{each}" != own and intents_of(self.folder, each)]

    @property
    def _opened(self) -> tuple[HeldOutbox, Delivery]:
        assert self._working is not None
        return self._working

    def _carry_out(self, intent: Intent) -> None:
        if self._working is None:
            raise UnavailableError("The outbox was closed.")
        held, _ = self._working
        try:
            published = self._publish(held, intent, Push.of(intent))
        except RefusedError as error:
            with held.outbox.changed:
                self._open_future(intent).set_exception(error)
            raise
        with held.outbox.changed:
            self._open_future(intent).set_result(published)

    def _open_future(self, intent: Intent) -> Future[Published]:
        """Return the future of a push whose outcome is known now; a new one, if it was refused before."""
        future = self._futures.get(intent.number)
        if future is None or future.done():
            future = self._futures[intent.number] = Future()
        return future

    def _publish(self, held: HeldOutbox, intent: Intent, push: Push) -> Published:
        if intent.number not in self._own and (objection := self.objection(push)):
            raise RefusedError(objection)
        hub = self.hub if self.hub.address == push.hub else hub_at(push.hub)
        files = files_of(push, intent, held, self.storage)
        known = push.hub, push.name
        if known not in self._names:
            self._names[known] = hub.create(push.name, push.private)
        name = self._names[known]
        version = hub.publish(name, files, push.message, delete=push.delete, branch=push.branch, review=push.review)
        return Published(name, version, push.message)


def _is_full(error: OSError) -> bool:
    return isinstance(error, StorageFullError) or error.errno in (errno.ENOSPC, errno.EDQUOT)


def _is_replaced(old: Intent, new: Intent) -> bool:
    try:
        return Push.of(new).replaces(old)
    except RefusedError:
        return False


def _was_refused(future: Future[Published]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is not None


def _has_succeeded(future: Future[Published]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def finishing_command(left: Sequence[Intent], folder: str) -> str:
    """Return the command that publishes pushes once what prevents it is gone."""
    command = "retry" if all(intent.refused for intent in left) else "flush"
    hubs = {hub for intent in left if "://" in (hub := str(intent.details.get("hub")))} - {hub_at().address}
    place = next((str(url) for intent in left if (url := intent.details.get("storage"))), folder)
    words = ["hexloop", "outbox", command, place, *(part for hub in sorted(hubs) for part in ("--hub", hub))]
    return shlex.join(words)


def create_in_time(hub: Hub, name: str, private: bool | None, seconds: float) -> str:
    """Create a repository, and return its full name. Raises RefusedError, or UnavailableError also after `seconds`."""
    from threading import Thread

    outcome: Future[str] = Future()

    def create() -> None:
        try:
            outcome.set_result(hub.create(name, private))
        except BaseException as error:
            outcome.set_exception(error)

    Thread(target=create, name="hexloop creates a repository", daemon=True).start()
    try:
        return outcome.result(seconds)
    except TimeoutError:
        raise UnavailableError(f"{hub.address} did not answer within {seconds:g} s.") from None
    except StorageError:
        raise
    except Exception as error:  # of a hub that does not keep to its port
        raise UnavailableError(f"{hub.address} failed: {error}") from error
