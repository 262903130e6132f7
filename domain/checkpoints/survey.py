"""What is in a folder of checkpoints: the good, the bad, what was set aside, and what never became one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum

from attrs import frozen

from hexloop.domain.checkpoints.choosing import from_newest
from hexloop.domain.checkpoints.manifest import Manifest
from hexloop.domain.checkpoints.names import MANIFEST, REASON, is_set_aside, says_unfinished, step_of
from hexloop.domain.checkpoints.reading import is_published, read_manifest, verify
from hexloop.domain.errors import CheckpointError, StorageError
from hexloop.ports.storage import Storage

STATE = "run_state.json"
"""A file that only checkpoints of hexloop have, by which one that lost its manifest is told from other folders."""


class Condition(Enum):
    """What a folder is; the values are for people."""

    GOOD = "good"
    NOT_VERIFIED = "not verified"
    BAD = "bad"
    SET_ASIDE = "set aside"
    UNFINISHED = "unfinished"
    NO_CHECKPOINT = "no checkpoint"


@frozen
class Found:
    """A folder that is a checkpoint, was one, or has the name of one.

    reason: why it is not good, a sentence without the folder's name. manifest: None where there is none to be read.
    """

    name: str
    condition: Condition
    reason: str = ""
    manifest: Manifest | None = None

    @property
    def size(self) -> int | None:
        """The bytes of its files; None where no manifest says so."""
        return None if self.manifest is None else sum(stored.size for stored in self.manifest.files.values())


def survey(storage: Storage, quick: bool = False) -> Iterator[Found]:
    """Everything in a folder that has to do with checkpoints, by step, what is none after them.

    Each checkpoint is verified; with `quick` only its manifest is read. Nothing is changed. Raises StorageError where
    the folder cannot be listed.
    """
    folders = [entry.name for entry in storage.list("") if entry.is_folder]
    steps = {name: step for name in folders if (step := step_of(name)) is not None}
    for name in sorted(steps, key=steps.__getitem__):
        yield examine(storage, name, quick)
    for name in folders:
        if is_set_aside(name):
            yield Found(name, Condition.SET_ASIDE, _reason_for_setting_aside(storage, name), _manifest(storage, name))
        elif says_unfinished(name):
            yield _staged(storage, name, quick)


def examine(storage: Storage, name: str, quick: bool = False) -> Found:
    """What the folder `name` is: good only where every byte of it was read, which `quick` does not."""
    manifest = _manifest(storage, name)
    try:
        if quick:
            return Found(name, Condition.NOT_VERIFIED, manifest=read_manifest(storage, name))
        return Found(name, Condition.GOOD, manifest=verify(storage, name).manifest)
    except (CheckpointError, StorageError) as error:
        reason = str(error).removeprefix(f"{name} in {storage.capabilities.location} ")
    with suppress(StorageError):
        files = [entry.name for entry in storage.list(name)]
        if MANIFEST not in files:
            return _without_manifest(storage, name, files, reason)
    return Found(name, Condition.BAD, reason, manifest)


def newest_by_run(found: Sequence[Found]) -> dict[str, Found]:
    """For each run the checkpoint that it would go on from: the newest that is good, or not known to be bad."""
    held = {each.name: each for each in found if step_of(each.name) is not None}
    runs: dict[str, dict[str, Manifest]] = {}
    for each in held.values():
        if each.manifest is not None:
            runs.setdefault(each.manifest.run, {})[each.name] = each.manifest
    return {run: newest for run, manifests in runs.items() if (newest := _first_usable(held, manifests)) is not None}


def _first_usable(held: Mapping[str, Found], manifests: Mapping[str, Manifest]) -> Found | None:
    usable = (held[name] for name in from_newest(manifests))
    return next((each for each in usable if each.condition in (Condition.GOOD, Condition.NOT_VERIFIED)), None)


def _manifest(storage: Storage, name: str) -> Manifest | None:
    try:
        return read_manifest(storage, name)
    except (CheckpointError, StorageError):
        return None


def _without_manifest(storage: Storage, name: str, files: Sequence[str], reason: str) -> Found:
    """What a folder that has the name of a checkpoint is, where it has no manifest."""
    if any(map(says_unfinished, files)):
        return Found(name, Condition.UNFINISHED, "a save or a removal that was not completed.")
    if REASON in files:
        return Found(name, Condition.SET_ASIDE, _reason_for_setting_aside(storage, name))
    return Found(name, Condition.BAD if STATE in files else Condition.NO_CHECKPOINT, reason)


def _reason_for_setting_aside(storage: Storage, name: str) -> str:
    with suppress(StorageError):
        if REASON in {entry.name for entry in storage.list(name)}:
            return b"".join(storage.read(f"{name}/{REASON}")).decode(errors="replace").strip()
    return "another checkpoint has its name now."


def _staged(storage: Storage, name: str, quick: bool) -> Found:
    """A folder in which a checkpoint was staged: one that is whole, a resume takes up."""
    reason = "a save or a removal that was not completed."
    with suppress(StorageError):
        if is_published(storage, name) and (quick or examine(storage, name).condition is Condition.GOOD):
            reason = "it is whole, but has not its name: the next resume gives it that, where it is free."
    return Found(name, Condition.UNFINISHED, reason, _manifest(storage, name))
