"""Where the runs of this user in a folder publish and log: what is believed of an outbox that others may write to.

A run notes its destinations in the user's own state folder. What works off an outbox later, without the run, sends
nothing to others unless the user names them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from attrs import field, frozen

from hexloop.domain.folders import Folder, is_private
from hexloop.domain.json_documents import read_json

STATE_HOME = "HEXLOOP_STATE_HOME"
"""The environment variable with the folder for what belongs to runs, but is not in their output folders."""

PUSH_NOTE = ("hub", "repository")
"""The members of a note of a push."""

MOST_BYTES = 1 << 20
"""Bytes of notes about a folder that are read."""


def state_home() -> str:
    """Return the user's state folder: `$HEXLOOP_STATE_HOME`, `$XDG_STATE_HOME/hexloop` or `~/.local/state/hexloop`."""
    home = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.environ.get(STATE_HOME) or os.path.join(home, "hexloop")


@frozen
class Destinations:
    """What runs in a folder noted.

    pushes: addresses of hubs with the names of repositories. loggers: what makes a tracker's logger, each as JSON.
    """

    pushes: frozenset[tuple[str, str]] = frozenset()
    loggers: frozenset[str] = field(default=frozenset())

    def may_log(self, facts: Mapping[str, Any]) -> bool:
        """Return whether a run noted a logger that is made of these facts."""
        return _as_text(facts) in self.loggers


def destinations_of(folder: str) -> Destinations:
    """Return what runs in a folder noted; nothing if there is no note, or others may have written it."""
    notes = list(_notes_of(folder))
    return Destinations(
        frozenset((each["hub"], each["repository"]) for each in notes if each.keys() >= {*PUSH_NOTE}),
        frozenset(_as_text(each["logger"]) for each in notes if isinstance(each.get("logger"), dict)),
    )


def note_push(folder: str, hub: str, repository: str) -> None:
    """Note that a run in a folder publishes to a repository."""
    if (hub, repository) not in destinations_of(folder).pushes:
        _append(folder, {"hub": hub, "repository": repository})


def note_logger(folder: str, facts: Mapping[str, Any]) -> None:
    """Note that a run in a folder logs to a tracker whose logger is made of these facts, which hold no secrets."""
    if facts and not destinations_of(folder).may_log(facts):
        _append(folder, {"logger": dict(facts)})


def _notes_of(folder: str) -> Iterator[dict[str, Any]]:
    home, name = Folder(state_home()), _name_of(folder)
    with suppress(OSError):
        if not is_private(home.status(name)):
            return
        for line in home.read(name, MOST_BYTES).split(b"\n"):
            with suppress(ValueError):
                note = read_json(line)
                if isinstance(note, dict) and all(
                    isinstance(note.get(each, ""), str) for each in ("hub", "repository")
                ):
                    yield note


def _append(folder: str, note: dict[str, Any]) -> None:
    """Add a note. Without a place for it, the user names the destination when an outbox is worked off."""
    with suppress(OSError):
        home = Folder(state_home())
        os.makedirs(home.root, mode=0o700, exist_ok=True)
        descriptor = home.open_lines(_name_of(folder), 0o600)
        try:
            os.write(descriptor, json.dumps(note).encode() + b"\n")
        finally:
            os.close(descriptor)


def _name_of(folder: str) -> str:
    digest = hashlib.blake2b(os.path.realpath(folder).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    return f"destinations/{digest}.jsonl"


def _as_text(facts: Mapping[str, Any]) -> str:
    return json.dumps(facts, sort_keys=True)
