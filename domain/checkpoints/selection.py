"""What a folder of checkpoints holds, and which checkpoint a run resumes from.

`newest` and `open_checkpoint` choose a checkpoint for a resume, and quarantine damaged ones. `survey` only reports.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial

from attrs import frozen

from hexloop.domain.checkpoints.manifest import Lineage, Manifest
from hexloop.domain.checkpoints.names import (
    MANIFEST,
    REASON,
    checkpoint_name,
    free_name,
    is_mark,
    is_set_aside,
    marks_unfinished,
    staged_name,
    step_of,
)
from hexloop.domain.checkpoints.reading import Checkpoint, checkpoint_steps, is_published, read_manifest, verify
from hexloop.domain.errors import (
    CheckpointError,
    DamagedCheckpointError,
    NewerSchemaError,
    StorageError,
    UnreadableCheckpointError,
)
from hexloop.ports.storage import Publication, Storage


def newest(storage: Storage, run: str | None = None, quarantine: bool = False) -> Checkpoint | None:
    """Return the newest good checkpoint of `run`, or of the only run that there is; None if there is none.

    The newest is the last one of the latest session, followed by its ancestors, not one at a later step that a resume
    went back behind. A warning names each checkpoint that is skipped because it is not good; with `quarantine`, damaged
    ones are renamed.
    Raises CheckpointError if there are several runs and `run` is None, or if a checkpoint has a newer schema, and
    StorageError if the storage cannot read a manifest that it lists: these are no reason to use an older checkpoint.
    Raises UnreadableCheckpointError if none is good and one that cannot be read at present may be.
    """
    manifests = dict(_manifests(storage, quarantine))
    if run is None:
        _refuse_several_runs(storage, manifests)
    unread: UnreadableCheckpointError | None = None
    for name in newest_first({name: manifest for name, manifest in manifests.items() if run in (None, manifest.run)}):
        try:
            return verify(storage, name)
        except CheckpointError as error:
            if unread is None and isinstance(error, UnreadableCheckpointError):
                unread = error
            _skip(storage, name, error, quarantine)
    if unread is not None:  # a caller that was told that there is none would start over and replace it
        raise UnreadableCheckpointError(
            f"{unread} It may be good, and no other checkpoint is. Make it readable, or set another output_dir to "
            "start from scratch."
        ) from unread
    return None


def newest_first(manifests: Mapping[str, Manifest]) -> Iterator[str]:
    """Yield the names of a run's checkpoints: the newest one, those that led to it, then the others."""
    remaining = dict(manifests)
    lineage: Lineage | None = None
    while remaining:
        in_lineage = {
            name: each for name, each in remaining.items() if lineage is None or lineage.holds(each)
        } or remaining
        name = max(in_lineage, key=lambda name: (remaining[name].session, remaining[name].step))
        yield name
        manifest = remaining.pop(name)
        lineage = Lineage.after(manifest, manifest.session)


def open_checkpoint(storage: Storage, name: str) -> Checkpoint:
    """Return the checkpoint `name`, verified.

    Raises CheckpointError if it is not good, with the names of those that are; all of them are read to find out.
    """
    try:
        return verify(storage, name)
    except CheckpointError as error:
        within = [step for step in map(step_of, _folders_in(storage, name)) if step is not None]
        if within and step_of(name) is None:
            raise type(error)(
                f"{name} in {storage.capabilities.location} is a folder of checkpoints, not a checkpoint. Name one of "
                f"those in it, for example the last one, {name}/{checkpoint_name(max(within))}."
            ) from error
        good = ", ".join(filter(partial(_is_good, storage), map(checkpoint_name, checkpoint_steps(storage))))
        advice = f"Choose one of the good checkpoints: {good}." if good else "There is no good checkpoint."
        raise type(error)(f"{error} {advice}") from error


def _folders_in(storage: Storage, name: str) -> list[str]:
    return [entry.name for entry in storage.list(name) if entry.is_folder]


def readable_manifests(storage: Storage) -> dict[str, Manifest]:
    """Return the manifests of all checkpoints that have a readable one, by name, highest step first."""
    found: dict[str, Manifest] = {}
    for name in map(checkpoint_name, checkpoint_steps(storage)):
        with suppress(CheckpointError):
            found[name] = read_manifest(storage, name)
    return found


def runs_in(storage: Storage) -> dict[str, str]:
    """Return the runs that have a checkpoint with a readable manifest, each with its checkpoint at the highest step."""
    found: dict[str, str] = {}
    for name, manifest in readable_manifests(storage).items():
        found.setdefault(manifest.run, name)
    return found


def last_run(storage: Storage) -> str | None:
    """Return the run with the latest session among all checkpoints that have a readable manifest."""
    found = [(manifest.session, manifest.run) for manifest in readable_manifests(storage).values()]
    return max(found)[1] if found else None


def publish_staged(storage: Storage, chosen: str | None = None) -> None:
    """Publish every complete staged checkpoint of one run, if its name is free.

    A disk that lost an acknowledged rename leaves such a folder, and so does a process that died while it deleted a
    checkpoint. Another live run may be about to publish one too; therefore only the run of the checkpoint `chosen`, or
    else the only run that there is, is considered. Storages without a rename have no staging folders.
    """
    if storage.capabilities.publication is not Publication.RENAME:
        return
    taken = {entry.name for entry in storage.list("")}
    staged = {folder: name for folder in sorted(taken) if (name := staged_name(folder)) and name not in taken}
    if not staged:
        return
    checkpoints = {folder: folder for folder in taken if step_of(folder) is not None} | staged
    runs = _run_of_each(storage, checkpoints)
    meant = {run for folder, run in runs.items() if chosen in (None, checkpoints[folder])}
    for folder, name in staged.items():
        if {runs.get(folder)} == meant and _is_good(storage, folder):
            storage.move(folder, name)


def _run_of_each(storage: Storage, folders: Iterable[str]) -> dict[str, str]:
    """Return the run of each folder that has a readable manifest."""
    found: dict[str, str] = {}
    for folder in folders:
        with suppress(CheckpointError):
            found[folder] = read_manifest(storage, folder).run
    return found


def quarantine(storage: Storage, name: str, reason: str) -> str:
    """Rename a damaged checkpoint so that it no longer counts as one, and return where it is now.

    The reason is written to a file in its folder. On a storage without a cheap rename, only the manifest is renamed.
    """
    for entry in storage.list(name):
        if is_mark(entry.name) or entry.name == REASON:  # a clean-up would remove a marked folder without a manifest
            storage.remove(f"{name}/{entry.name}")
    storage.write(f"{name}/{REASON}", [f"{reason}\n".encode()])
    if storage.capabilities.publication is Publication.RENAME:
        renamed = free_name(name, {entry.name for entry in storage.list("")}, "damaged")
        storage.move(name, renamed)
        return renamed
    renamed = free_name(MANIFEST, {entry.name for entry in storage.list(name)}, "damaged")
    storage.write(f"{name}/{renamed}", storage.read(f"{name}/{MANIFEST}"))
    storage.remove(f"{name}/{MANIFEST}")
    return f"{name}/{renamed}"


def quarantine_if_possible(storage: Storage, name: str, damage: DamagedCheckpointError) -> str:
    """Quarantine a damaged checkpoint and return a message with the damage and the outcome."""
    try:
        return f"{damage} It was set aside as {quarantine(storage, name, str(damage))}."
    except StorageError as failure:
        return f"{damage} It could not be set aside: {failure}"


def _manifests(storage: Storage, quarantine: bool) -> Iterator[tuple[str, Manifest]]:
    """Yield the name and manifest of every checkpoint that has a readable one, and skip the others."""
    for name in map(checkpoint_name, checkpoint_steps(storage)):
        try:
            yield name, read_manifest(storage, name)
        except NewerSchemaError:
            raise
        except CheckpointError as error:
            _skip(storage, name, error, quarantine)


def _skip(storage: Storage, name: str, error: CheckpointError, quarantine: bool) -> None:
    """Warn of a checkpoint that is not good. Quarantine it if it is damaged, rather than missing or unreadable."""
    reason = str(error)
    if quarantine and isinstance(error, DamagedCheckpointError):
        reason = quarantine_if_possible(storage, name, error)
    warnings.warn(f"A checkpoint is skipped: {reason}", stacklevel=3)


def _refuse_several_runs(storage: Storage, manifests: Mapping[str, Manifest]) -> None:
    latest: dict[str, str] = {}
    for name, manifest in sorted(manifests.items(), key=lambda item: item[1].step):
        latest[manifest.run] = name
    if len(latest) > 1:
        listed = ", ".join(f"{name} of the run {run}" for run, name in sorted(latest.items()))
        raise CheckpointError(
            f"The newest checkpoint in {storage.capabilities.location} is ambiguous: it holds checkpoints of "
            f"{len(latest)} runs: {listed}. Name the checkpoint to resume from."
        )


def _is_good(storage: Storage, name: str) -> bool:
    try:
        verify(storage, name)
    except (CheckpointError, StorageError):
        return False
    return True


STATE = "run_state.json"
"""A file that every hexloop checkpoint has. It identifies a checkpoint that lost its manifest."""


class FolderStatus(Enum):
    """The status of a folder; the values are shown to users."""

    GOOD = "good"
    NOT_VERIFIED = "not verified"
    BAD = "bad"
    SET_ASIDE = "set aside"
    UNFINISHED = "unfinished"
    NO_CHECKPOINT = "no checkpoint"


@frozen
class CheckpointFolder:
    """A folder that is a checkpoint, was one, or has the name of one.

    reason: why it is not good, a sentence without the folder's name. manifest: None if there is no readable one.
    """

    name: str
    status: FolderStatus
    reason: str = ""
    manifest: Manifest | None = None

    @property
    def size(self) -> int | None:
        """The total size of its files in bytes, according to its manifest."""
        return None if self.manifest is None else sum(stored.size for stored in self.manifest.files.values())


def survey(storage: Storage, quick: bool = False) -> Iterator[CheckpointFolder]:
    """Yield every folder that is related to checkpoints: checkpoints by step, then the others.

    Every checkpoint is verified; with `quick`, only its manifest is read. Nothing is changed. Raises StorageError if
    the storage cannot be listed.
    """
    folders = [entry.name for entry in storage.list("") if entry.is_folder]
    steps = {name: step for name in folders if (step := step_of(name)) is not None}
    for name in sorted(steps, key=steps.__getitem__):
        yield examine(storage, name, quick)
    for name in folders:
        if is_set_aside(name):
            reason = _reason_for_setting_aside(storage, name)
            yield CheckpointFolder(name, FolderStatus.SET_ASIDE, reason, _manifest(storage, name))
        elif marks_unfinished(name):
            yield _staged(storage, name, quick)


def examine(storage: Storage, name: str, quick: bool = False) -> CheckpointFolder:
    """Return the status of the folder `name`. It is only GOOD if every byte was verified, not with `quick`."""
    manifest = _manifest(storage, name)
    try:
        if quick:
            return CheckpointFolder(name, FolderStatus.NOT_VERIFIED, manifest=read_manifest(storage, name))
        return CheckpointFolder(name, FolderStatus.GOOD, manifest=verify(storage, name).manifest)
    except (CheckpointError, StorageError) as error:
        reason = str(error).removeprefix(f"{name} in {storage.capabilities.location} ")
    with suppress(StorageError):
        files = [entry.name for entry in storage.list(name)]
        if MANIFEST not in files:
            return _without_manifest(storage, name, files, reason)
    return CheckpointFolder(name, FolderStatus.BAD, reason, manifest)


def newest_by_run(found: Sequence[CheckpointFolder]) -> dict[str, CheckpointFolder]:
    """Return, for each run, the checkpoint that it would resume from: the newest that is good or not verified."""
    held = {each.name: each for each in found if step_of(each.name) is not None}
    runs: dict[str, dict[str, Manifest]] = {}
    for each in held.values():
        if each.manifest is not None:
            runs.setdefault(each.manifest.run, {})[each.name] = each.manifest
    return {run: newest for run, manifests in runs.items() if (newest := _first_usable(held, manifests)) is not None}


def _first_usable(held: Mapping[str, CheckpointFolder], manifests: Mapping[str, Manifest]) -> CheckpointFolder | None:
    usable = (held[name] for name in newest_first(manifests))
    return next((each for each in usable if each.status in (FolderStatus.GOOD, FolderStatus.NOT_VERIFIED)), None)


def _manifest(storage: Storage, name: str) -> Manifest | None:
    try:
        return read_manifest(storage, name)
    except (CheckpointError, StorageError):
        return None


def _without_manifest(storage: Storage, name: str, files: Sequence[str], reason: str) -> CheckpointFolder:
    """Return the status of a folder that has the name of a checkpoint, but no manifest."""
    if any(map(marks_unfinished, files)):
        return CheckpointFolder(name, FolderStatus.UNFINISHED, "a save or a removal that was not completed.")
    if REASON in files:
        return CheckpointFolder(name, FolderStatus.SET_ASIDE, _reason_for_setting_aside(storage, name))
    return CheckpointFolder(name, FolderStatus.BAD if STATE in files else FolderStatus.NO_CHECKPOINT, reason)


def _reason_for_setting_aside(storage: Storage, name: str) -> str:
    with suppress(StorageError):
        if REASON in {entry.name for entry in storage.list(name)}:
            return b"".join(storage.read(f"{name}/{REASON}")).decode(errors="replace").strip()
    return "another checkpoint has its name now."


def _staged(storage: Storage, name: str, quick: bool) -> CheckpointFolder:
    """Return the status of a staging folder. A complete one is published by the next resume."""
    reason = "a save or a removal that was not completed."
    with suppress(StorageError):
        if is_published(storage, name) and (quick or examine(storage, name).status is FolderStatus.GOOD):
            reason = "it is complete but not published; the next resume publishes it if its name is free."
    return CheckpointFolder(name, FolderStatus.UNFINISHED, reason, _manifest(storage, name))
