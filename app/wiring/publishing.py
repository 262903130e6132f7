"""Publishing on a hub through an outbox: what is published is kept until the hub has it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

from attrs import asdict, define, field, frozen
from attrs.validators import instance_of, optional

from hexloop.adapters.hub import FolderHub
from hexloop.adapters.hub.hugging_face import HuggingFaceHub
from hexloop.app.wiring.outboxes import PUSH, HeldOutbox, open_outbox
from hexloop.app.wiring.storage import chunks_of, files_below, storage_for
from hexloop.domain.delivery import Backoff, Delivery, RateLimit
from hexloop.domain.errors import RefusedError, StorageError, UnavailableError
from hexloop.domain.outbox import Intent
from hexloop.ports.hub import Hub
from hexloop.ports.storage import File, Storage

BURST, INTERVAL = 20, 36.0
"""Commits at once, and seconds between further ones: at most 120 in an hour. The Hugging Face Hub takes 128."""


def hub_at(address: str, token: str | None = None) -> Hub:
    """Return the hub at an address that a hub's `address` states. Raises RefusedError for one of a run's own."""
    if address.startswith(("http://", "https://")):
        return HuggingFaceHub(address, token)
    if address.startswith("file://"):
        return FolderHub(address.removeprefix("file://"))
    raise RefusedError(f"The hub {address!r} is known to the program that published on it only; run that again.")


def _texts(_: object, attribute: Any, value: object) -> None:
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        raise TypeError(f"{attribute.name} is not a list of texts")


@frozen
class Push:
    """One commit to be made.

    hub: the address of the hub. covers: what it brings up to date, such as "model" and "last-checkpoint"; a newer push
    that covers at least the same replaces it. delete: see `Hub.publish`. files: the paths of the published files, from
    their paths in the storage at the URL `storage`; None if they are kept in the outbox.
    """

    hub: str = field(validator=instance_of(str))
    name: str = field(validator=instance_of(str))
    message: str = field(validator=instance_of(str))
    covers: Sequence[str] = field(validator=_texts)
    delete: Sequence[str] = field(default=(), validator=_texts)
    branch: str | None = field(default=None, validator=optional(instance_of(str)))
    private: bool | None = field(default=None, validator=optional(instance_of(bool)))
    review: bool = field(default=False, validator=instance_of(bool))
    storage: str | None = field(default=None, validator=optional(instance_of(str)))
    files: Mapping[str, str] | None = field(default=None, validator=optional(instance_of(dict)))

    @classmethod
    def of(cls, intent: Intent) -> Push:
        """Return the push of an intent. Raises RefusedError if it is not one."""
        try:
            return cls(**intent.details)
        except TypeError as error:
            raise RefusedError(f"The entry {intent.number} of the outbox is damaged ({error}); drop it.") from error


def subject_of(intent: Intent) -> str:
    """Return what an intent publishes where, for a message."""
    try:
        push = Push.of(intent)
    except RefusedError:
        return f"a damaged entry for {intent.path}"
    branch = f", branch {push.branch}" if push.branch else ""
    return f"{push.message!r} to {push.name}{branch} on {push.hub}"


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
class Publisher:
    """Publishes on a hub in the background, through an outbox in `folder`.

    hub, storage: the run's own. The outbox is opened with the first push, or by `open`.
    """

    hub: Hub
    folder: str
    storage: Storage | None = None
    backoff: Backoff = field(factory=Backoff)
    _held: HeldOutbox | None = field(default=None, init=False)
    _delivery: Delivery | None = field(default=None, init=False)
    _names: dict[str, str] = field(factory=dict, init=False)
    _futures: dict[int, Future[Published]] = field(factory=dict, init=False)
    _rate: RateLimit = field(factory=lambda: RateLimit(BURST, INTERVAL), init=False)

    def open(self, name: str | None = None, deliver: bool = True) -> bool:
        """Take over what earlier processes left, and start to work it off; return whether that is possible.

        name: that of the outbox; None for any. deliver: whether to start now.
        """
        if self._held is None:
            held = open_outbox(self.folder, name)
            if held is None:
                return False
            self._held = held
            self._delivery = Delivery(
                held.outbox, self._carry_out, self.backoff, limit=0, rate=self._rate, name="hexloop push"
            )
        if deliver:
            self._opened[1].wake()
        return True

    def push(self, push: Push, fill: Callable[[Path], None] | None = None, replaces: bool = True) -> Intent:
        """Enter a push into the outbox; return when it is durable.

        fill: puts the files into a folder that it is given; the push keeps them. replaces: whether pushes that are
        covered by this one are dropped. Raises StorageError or OSError if that is not possible.
        """
        self.open()
        held, delivery = self._opened
        source = ""
        if fill is not None:
            source = held.outbox.new_hold()
            folder = held.local_path(source)
            try:
                folder.mkdir(parents=True)
                fill(folder)
                held.storage.sync([f"{source}/{path}" for path in files_below(folder)])
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
        covered = {*push.covers}

        def is_replaced(old: Intent) -> bool:
            with suppress(RefusedError):
                other = Push.of(old)
                same = (other.hub, other.name, other.branch) == (push.hub, push.name, push.branch)
                return replaces and same and {*other.covers} <= covered
            return False

        intent = held.outbox.put(PUSH, push.name, asdict(push), source, is_replaced)
        with held.outbox.changed:
            pending = {each.number for each in held.outbox.pending()}
            for number in self._futures.keys() - pending:
                self._futures.pop(number).cancel()
        delivery.wake()
        return intent

    def future(self, intent: Intent) -> Future[Published]:
        """Return the outcome of a push, in the future; it is cancelled if a newer push replaces it."""
        held, _ = self._opened
        with held.outbox.changed:
            return self._futures.setdefault(intent.number, Future())

    def wait(self, intent: Intent, limit: float) -> Published | None:
        """Wait until a push is done, however long an attempt takes, and return its outcome; None if it was replaced.

        Raises RefusedError if the hub refuses it, and UnavailableError if attempts have failed for `limit` seconds.
        """
        held, delivery = self._opened
        future, failed_at = self.future(intent), float("inf")
        while not future.done():
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
                    f"outbox in {self.folder}. Once the cause is gone, finish it with: hexloop outbox "
                    f"{'retry' if now.refused else 'flush'} {self.folder}"
                )
        return future.result() if future.done() and not future.cancelled() else None

    def finish(self, limit: float, report: Callable[[int], None] = lambda left: None) -> tuple[Intent, ...]:
        """Work off what is left for at most `limit` seconds, and return what is left then, refused pushes included.

        The outbox is then closed, unless deliverable pushes are left: these are tried as long as the process lives.
        """
        if self._held is None or self._delivery is None:
            return ()
        self._delivery.finish(limit, report)
        left = self._held.outbox.pending()
        if all(intent.refused for intent in left):
            self.close()
        return left

    def retry(self) -> None:
        """Make refused pushes deliverable again."""
        held, delivery = self._opened
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
        """Stop working the outbox off, and leave it to other processes."""
        if self._held is not None and self._delivery is not None:
            self._delivery.stop(wait=False)
            self._held.close()
            self._held = self._delivery = None

    @property
    def _opened(self) -> tuple[HeldOutbox, Delivery]:
        assert self._held is not None
        assert self._delivery is not None
        return self._held, self._delivery

    def _carry_out(self, intent: Intent) -> None:
        held, push = self._held, Push.of(intent)
        if held is None:
            raise UnavailableError("The outbox was closed.")
        hub = self.hub if self.hub.address == push.hub else hub_at(push.hub)
        if push.name not in self._names:
            self._names[push.name] = hub.create(push.name, push.private)
        name = self._names[push.name]
        version = hub.publish(
            name,
            self._files(held, intent, push),
            push.message,
            delete=push.delete,
            branch=push.branch,
            review=push.review,
        )
        with held.outbox.changed:
            self._futures.setdefault(intent.number, Future()).set_result(Published(name, version, push.message))

    def _files(self, held: HeldOutbox, intent: Intent, push: Push) -> Iterator[File]:
        """Return the files of a push. Raises RefusedError if they are gone."""
        if push.files is None or push.storage is None:
            folder = held.local_path(intent.source)
            return (File(path, chunks_of(local), str(local)) for path, local in files_below(folder).items())
        storage = self.storage
        if storage is None or storage.capabilities.location != push.storage:
            storage = storage_for(push.storage)
        folders = {path.rpartition("/")[0] for path in push.files.values()}
        present = {f"{folder}/{entry.name}" for folder in folders for entry in storage.list(folder)}
        if missing := sorted({*push.files.values()} - present):
            raise RefusedError(f"{push.storage} no longer has {missing[0]}, which was to be published; drop the entry.")
        return (File(path, storage.read(source)) for path, source in push.files.items())


def link_or_copy(source: str | os.PathLike[str], target: Path) -> None:
    """Make a hard link to a file that does not change, or a copy where the file system has no links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


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
