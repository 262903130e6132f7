"""The names of checkpoints, of unfinished folders, and of folders that are no longer checkpoints."""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Container
from itertools import count

from attrs import field, frozen

MANIFEST = "manifest.json"
"""The file that makes a folder a checkpoint."""

REASON = "damaged.txt"
"""The file in a quarantined checkpoint that says what was wrong with it."""

PROTECTED = "protected"
"""A file of this name, with any content, protects the checkpoint in whose folder it is from rotation."""

_CHECKPOINT = re.compile(r"checkpoint-(0|[1-9][0-9]*)")
_SET_ASIDE = re.compile(r"(?:replaced|damaged)-[1-9][0-9]*-checkpoint-[0-9]+")
_UNFINISHED = re.compile(r"\.unfinished-([0-9a-f]{16})-([0-9a-z]+)(?:-(.+))?")


def checkpoint_name(step: int) -> str:
    """Return the folder name of the checkpoint at optimizer step `step`."""
    return f"checkpoint-{step}"


def step_of(name: str) -> int | None:
    """Return the step in a checkpoint's name, or None if it is not the name of a checkpoint."""
    match = _CHECKPOINT.fullmatch(name)
    return int(match[1]) if match else None


def staged_name(name: str) -> str | None:
    """Return the name of the checkpoint in a staging folder, or None if `name` is not that of a staging folder."""
    match = _UNFINISHED.fullmatch(name)
    return match[3] if match and match[3] and step_of(match[3]) is not None else None


def marks_unfinished(name: str) -> bool:
    """Return whether the name of a folder, or of a file in a folder, marks a checkpoint as unfinished."""
    return _UNFINISHED.fullmatch(name) is not None


def is_set_aside(name: str) -> bool:
    """Return whether a folder has the name of a checkpoint that was quarantined or replaced."""
    return _SET_ASIDE.fullmatch(name) is not None


def is_mark(name: str) -> bool:
    """Return whether `name` is that of a file that marks the folder it is in as unfinished."""
    match = _UNFINISHED.fullmatch(name)
    return match is not None and match[3] is None


def free_name(name: str, taken: Container[str], reason: str = "replaced") -> str:
    """Return a name that is not among `taken`, for a folder that is no longer the checkpoint `name`."""
    candidates = (f"{reason}-{number}-{name}" for number in count(1))
    return next(candidate for candidate in candidates if candidate not in taken)


def may_be_unfinished(name: str) -> bool:
    """Return whether a folder of this name may be one that is being written or removed file by file."""
    return bool(_CHECKPOINT.fullmatch(name) or _SET_ASIDE.fullmatch(name))


def stays_inside(path: str) -> bool:
    """Return whether a path with "/" between names stays within the folder that it is relative to."""
    return "\\" not in path and "\0" not in path and not {"", ".", ".."} & set(path.split("/"))


def new_session() -> str:
    """Return a unique name for a process's part of a run. The names of later processes sort after it."""
    return f"{time.time_ns():016x}{secrets.token_hex(4)}"


def session_after(session: str, earlier: str) -> str:
    """Return `session`, or a new name if it does not sort after `earlier`: clocks of machines differ."""
    return session if session > earlier else f"{earlier}{secrets.token_hex(4)}"


def _run_digest(run: str) -> str:
    return hashlib.blake2b(run.encode(), digest_size=8).hexdigest()


@frozen
class Owner:
    """The owner of unfinished folders: the session `session` of the run `run`.

    exclusive: no other run saves there, so unfinished folders of every run belong to this owner.
    mark: the start of a staging folder's name, or the name of a file in an unfinished folder; never a checkpoint's.
    """

    run: str
    session: str
    exclusive: bool = False
    mark: str = field(init=False)

    @mark.default
    def _make_mark(self) -> str:
        return f".unfinished-{_run_digest(self.run)}-{self.session}"

    def staging_name(self, name: str) -> str:
        """Return the staging folder of the checkpoint `name`."""
        return f"{self.mark}-{name}"

    def left_behind(self, name: str) -> bool:
        """Return whether `name` marks something that this run left unfinished, in this session or an earlier one."""
        match = _UNFINISHED.fullmatch(name)
        if match is None or match[2] > self.session:
            return False
        return self.exclusive or match[1] == _run_digest(self.run)
