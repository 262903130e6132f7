"""The names of checkpoints, and of what is not one yet, or no longer."""

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
"""The file that says why a checkpoint was set aside."""

PROTECTED = "protected"
"""The file, of whatever content, that keeps the checkpoint whose folder somebody puts it in."""

_CHECKPOINT = re.compile(r"checkpoint-(0|[1-9][0-9]*)")
_ASIDE = re.compile(r"(?:replaced|damaged)-[1-9][0-9]*-checkpoint-[0-9]+")
_UNFINISHED = re.compile(r"\.unfinished-([0-9a-f]{16})-([0-9a-z]+)(?:-(.+))?")


def checkpoint_name(step: int) -> str:
    """The folder of the checkpoint at optimizer step `step`."""
    return f"checkpoint-{step}"


def step_of(name: str) -> int | None:
    """The step in a checkpoint's name; None where it is not the name of a checkpoint."""
    match = _CHECKPOINT.fullmatch(name)
    return int(match[1]) if match else None


def staged_name(name: str) -> str | None:
    """The checkpoint that is staged in a folder of this name; None where it is not the name of a staging folder."""
    match = _UNFINISHED.fullmatch(name)
    return match[3] if match and match[3] and step_of(match[3]) is not None else None


def says_unfinished(name: str) -> bool:
    """Whether a name, of a folder or of a file in one, says that a checkpoint is not whole."""
    return _UNFINISHED.fullmatch(name) is not None


def is_set_aside(name: str) -> bool:
    """Whether a folder has the name of one that was a checkpoint."""
    return _ASIDE.fullmatch(name) is not None


def is_mark(name: str) -> bool:
    """Whether `name` says, within a folder, that somebody has not finished it."""
    match = _UNFINISHED.fullmatch(name)
    return match is not None and match[3] is None


def free_name(name: str, taken: Container[str], because: str = "replaced") -> str:
    """A name, not among those `taken`, for a folder that is not to be the checkpoint `name` any more."""
    candidates = (f"{because}-{number}-{name}" for number in count(1))
    return next(candidate for candidate in candidates if candidate not in taken)


def may_be_unfinished(name: str) -> bool:
    """Whether a folder of this name may be one that is written, or taken away, file by file."""
    return bool(_CHECKPOINT.fullmatch(name) or _ASIDE.fullmatch(name))


def stays_inside(path: str) -> bool:
    """Whether a path with "/" between names can only mean a file within the folder that it is relative to."""
    return "\\" not in path and "\0" not in path and not {"", ".", ".."} & set(path.split("/"))


def new_session() -> str:
    """A name for a process's part of a run: nobody else has it, and those of later processes sort after it."""
    return f"{time.time_ns():016x}{secrets.token_hex(4)}"


def session_after(session: str, earlier: str) -> str:
    """The session's name, or another where it does not sort after an earlier one's: clocks of machines differ."""
    return session if session > earlier else f"{earlier}{secrets.token_hex(4)}"


def _digest_of_run(run: str) -> str:
    return hashlib.blake2b(run.encode(), digest_size=8).hexdigest()


@frozen
class Owner:
    """Whose an unfinished checkpoint is: the session `session` of the run `run`.

    alone: whether no other run saves there, so that what any of them left unfinished is this one's to remove.
    `mark` is the name that says so; no reader takes it for a checkpoint.
    """

    run: str
    session: str
    alone: bool = False
    mark: str = field(init=False)

    @mark.default
    def _make_mark(self) -> str:
        return f".unfinished-{_digest_of_run(self.run)}-{self.session}"

    def staging(self, name: str) -> str:
        """Where the checkpoint `name` stays while it is not whole."""
        return f"{self.mark}-{name}"

    def left_behind(self, name: str) -> bool:
        """Whether `name` marks something that this run left unfinished, in this session or one before it."""
        match = _UNFINISHED.fullmatch(name)
        if match is None or match[2] > self.session:
            return False
        return self.alone or match[1] == _digest_of_run(self.run)
