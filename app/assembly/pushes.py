"""A push: one commit to be made on a hub, the files that the outbox keeps for it, and the room that these take.

A hub that is down must not stop a run. If there is too little room on the disk, the oldest push of a checkpoint is
dropped first, and the newest push of each repository and branch never.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from attrs import asdict, frozen

from hexloop.adapters.hub import FolderHub
from hexloop.adapters.hub.hugging_face import HuggingFaceHub
from hexloop.app.assembly.outboxes import Dropped, HeldOutbox, note_dropped
from hexloop.domain.checkpoints.manifest import stays_inside
from hexloop.domain.errors import RefusedError
from hexloop.domain.folders import Folder, is_private
from hexloop.domain.limits import limits
from hexloop.domain.outbox import Intent
from hexloop.domain.schemas import structured
from hexloop.ports.hub import Hub
from hexloop.ports.storage import File, Storage

LOGGER = logging.getLogger("hexloop.outbox")

HUGGING_FACE = "https://huggingface.co"
FOLDER_SCHEME = "file://"

MODEL = "model"
FOLDER = "folder"
"""What a push brings up to date: the model, and what else is in the output folder, such as the model card."""


def hub_at(address: str | None = None, token: str | None = None) -> Hub:
    """Return the hub at an address that a hub's `address` states; None for that of the environment.

    Raises RefusedError for one of a program's own.
    """
    if address is None or address.startswith(("http://", "https://")):
        return HuggingFaceHub(address, token)
    if address.startswith(FOLDER_SCHEME):
        return FolderHub(address.removeprefix(FOLDER_SCHEME))
    raise RefusedError(f"The hub {address!r} is known to the program that published on it only; run that again.")


def with_token(hub: Hub, token: str) -> Hub:
    """Return a hub that is used with another token; the same one if it is a kind without tokens."""
    return HuggingFaceHub(hub.address, token) if isinstance(hub, HuggingFaceHub) else hub


@frozen
class Push:
    """One commit to be made.

    hub: the address of the hub. covers: what it brings up to date, such as "model" and "last-checkpoint"; a newer push
    that covers at least the same replaces it. delete: see `Hub.publish`. review: whether to propose it as a pull
    request. files: the paths of the published files, from their paths in the storage at the URL `storage`; None if
    they are kept in the outbox.
    """

    hub: str
    name: str
    message: str
    covers: Sequence[str]
    delete: Sequence[str] = ()
    branch: str | None = None
    private: bool | None = None
    review: bool = False
    storage: str | None = None
    files: Mapping[str, str] | None = None

    def check(self) -> None:
        """Raise TypeError if it could not be read from an outbox."""
        try:
            structured(json.loads(json.dumps(asdict(self))), Push)
        except ValueError as error:
            raise TypeError(f"What is to be published is invalid: {error}.") from None

    @classmethod
    def of(cls, intent: Intent) -> Push:
        """Return the push of an intent. Raises RefusedError if it is not one."""
        try:
            return structured(dict(intent.details), cls)
        except ValueError as error:
            raise RefusedError(f"The entry {intent.number} of the outbox is damaged ({error}); drop it.") from error

    def replaces(self, intent: Intent) -> bool:
        """Return whether nothing is missing on the hub if this newer push is made instead of an intent."""
        try:
            old = Push.of(intent)
        except RefusedError:
            return False
        same = (self.hub, self.name, self.branch) == (old.hub, old.name, old.branch)
        return same and not (self.review or old.review) and {*old.covers} <= {*self.covers}


def subject_of(intent: Intent) -> str:
    """Return what an intent publishes where, for a message."""
    try:
        push = Push.of(intent)
    except RefusedError:
        return f"a damaged entry for {intent.path}"
    branch = f", branch {push.branch}" if push.branch else ""
    return f"{push.message!r} to {push.name}{branch} on {push.hub}"


def files_of(push: Push, intent: Intent, held: HeldOutbox, storage: Storage | None) -> Iterator[File]:
    """Return the files of a push. Raises RefusedError if they are gone, or are not the run's.

    Anybody who can write to the folder of a run can add an entry. It publishes nothing from outside of that folder.
    """
    if push.files is None or push.storage is None:
        return _held_files(held, intent)
    if storage is None or storage.capabilities.location != push.storage:
        raise RefusedError(f"The files of the push are at {push.storage}, which is not where this run saves.")
    if not all(map(stays_inside, push.files.values())):
        raise RefusedError(f"The entry {intent.number} of the outbox names files outside of {push.storage}; drop it.")
    folders = {path.rpartition("/")[0] for path in push.files.values()}
    present = {f"{folder}/{entry.name}" for folder in folders for entry in storage.list(folder)}
    if missing := sorted({*push.files.values()} - present):
        raise RefusedError(f"{push.storage} no longer has {missing[0]}, which was to be published; drop the entry.")
    return (File(path, storage.read(source)) for path, source in push.files.items())


def _held_files(held: HeldOutbox, intent: Intent) -> Iterator[File]:
    """Return the files that the outbox keeps for a push; by their paths only if no other user can exchange them."""
    if not intent.source.startswith(f"{held.folder}/held-"):
        raise RefusedError(f"The outbox no longer has the files of the entry {intent.number}; drop it.")
    folder = held.of(intent.source)
    try:
        found = [path for path, _ in folder.files()]
        private = is_private(folder.own_status())
    except FileNotFoundError:
        found = []
    except OSError as error:
        raise RefusedError(
            f"The entry {intent.number} of the outbox has something else than files ({error.filename}: "
            f"{error.strerror}); drop it."
        ) from error
    if not found:
        raise RefusedError(f"The outbox no longer has the files of the entry {intent.number}; drop it.")
    return (File(path, folder.chunks(path), folder.location(path) if private else None) for path in found)


def keep_files(held: HeldOutbox, fill: Callable[[Path], None]) -> str:
    """Make a folder of the outbox durable that `fill` puts files into; return its path in the storage."""
    source = held.outbox.new_hold()
    folder = held.of(source)
    try:
        folder.make(mode=0o700)
        fill(Path(folder.location()))
        held.storage.sync([f"{source}/{path}" for path, _ in folder.files()])
    except BaseException:
        with suppress(OSError):
            folder.remove()
        raise
    return source


def link_or_copy(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Make a hard link to a file that does not change, or a copy where the file system has no links."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    try:
        os.link(source, target, follow_symlinks=False)
    except (OSError, NotImplementedError):
        shutil.copyfile(source, target, follow_symlinks=False)


def own_bytes(folder: Folder) -> int:
    """Return the bytes that only this folder keeps: those of files that have no other link. 0 if it is damaged."""
    try:
        return sum(status.st_size for _, status in folder.files() if status.st_nlink == 1)
    except OSError:
        return 0


# Room on the disk


def free_bytes(held: HeldOutbox) -> int:
    """Return the bytes that are free on the disk of an outbox."""
    return shutil.disk_usage(held.inside.root).free


def drop_beyond_limit(held: HeldOutbox) -> None:
    """Drop pushes as long as an outbox alone keeps more bytes than the limit `outbox_bytes`."""
    sizes = {each.number: own_bytes(held.of(each.source)) for each in held.outbox.pending() if each.source}
    most = limits().outbox_bytes
    for intent in droppable(held):
        if sum(sizes.values()) <= most:
            return
        sizes.pop(intent.number)
        _drop(held, intent, f"the outbox keeps more than {most:,} bytes; the limit outbox_bytes raises that")


def drop_for_room(held: HeldOutbox, reason: str) -> bool:
    """Drop the first push that keeps bytes which nothing else does; return whether there was one."""
    with held.outbox.changed:
        for intent in droppable(held):
            if own_bytes(held.of(intent.source)) > 0:
                _drop(held, intent, reason)
                return True
    return False


def droppable(held: HeldOutbox) -> Iterator[Intent]:
    """Yield the pushes that may be dropped, in the order in which they are: the oldest first.

    Not those of a whole folder, such as that of the final model, nor the newest of each repository and branch, nor one
    that is being sent and has not failed yet.
    """
    newest: dict[tuple[str, str, str | None], int] = {}
    pushes: dict[int, Push] = {}
    for intent in held.outbox.pending():
        try:
            push = pushes[intent.number] = Push.of(intent)
        except RefusedError:
            continue
        newest[push.hub, push.name, push.branch] = intent.number
    waiting = {each.number for each in held.outbox.waiting()}
    for intent in held.outbox.pending():
        known = pushes.get(intent.number)
        idle = intent.number in waiting or intent.failures > 0
        if (
            intent.source
            and idle
            and (known is None or (intent.number not in newest.values() and FOLDER not in known.covers))
        ):
            yield intent


def _drop(held: HeldOutbox, intent: Intent, reason: str) -> None:
    why = f" The hub does not take it: {intent.problem}" if intent.problem else ""
    held.outbox.done(intent)
    note_dropped(held, Dropped(intent.number, subject_of(intent), reason, time.time()))
    LOGGER.warning(
        "Because %s, this push was dropped: %s. Newer ones are kept, and so are the checkpoints in the run's folder.%s",
        reason,
        subject_of(intent),
        why,
    )
