"""The room that an outbox takes on the disk, and what is dropped when there is too little of it.

A hub that is down must not stop a run. The oldest push of a checkpoint is dropped first, and the newest push of each
repository and branch never.
"""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Iterator

from hexloop.app.wiring.outboxes import Dropped, HeldOutbox, note_dropped
from hexloop.app.wiring.pushes import FOLDER, Push, own_bytes, subject_of
from hexloop.domain.errors import RefusedError
from hexloop.domain.limits import limits
from hexloop.domain.outbox import Intent


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
    warnings.warn(
        f"Because {reason}, this push was dropped: {subject_of(intent)}. Newer ones are kept, and so are the "
        f"checkpoints in the run's folder.{why}",
        stacklevel=4,
    )
