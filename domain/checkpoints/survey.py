"""For the command line: what a folder of checkpoints holds, and removing checkpoints of a run that is not trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from functools import partial

from attrs import frozen

from hexloop.domain.checkpoints.commit import CheckpointPolicy, Publisher, publisher_for
from hexloop.domain.checkpoints.in_place import InPlacePublisher
from hexloop.domain.checkpoints.manifest import (
    MANIFEST,
    REASON,
    Lineage,
    Manifest,
    Owner,
    checkpoint_name,
    folders_of,
    is_replaced,
    is_set_aside,
    marks_unfinished,
    may_be_unfinished,
    new_session,
    step_of,
)
from hexloop.domain.checkpoints.reading import (
    Checkpoint,
    checkpoint_steps,
    is_in_lineage,
    is_protected,
    is_published,
    read_manifest,
    verify,
    verify_files,
)
from hexloop.domain.checkpoints.selection import newest_first
from hexloop.domain.errors import (
    CheckpointError,
    DamagedCheckpointError,
    IrregularFileError,
    MissingCheckpointError,
    MissingFileError,
    StorageError,
)
from hexloop.domain.json_documents import read_start
from hexloop.domain.limits import limits
from hexloop.domain.run_folder import RUN_STATE
from hexloop.ports.storage import Publication, Storage


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

    Args:
        name: the name of the folder.
        status: what the folder is.
        reason: why it is not good, a sentence without the folder's name.
        manifest: what its manifest has; None if there is no readable one.
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

    Every checkpoint is verified; with `quick`, only its manifest is read. Nothing is changed.

    Args:
        storage: where the checkpoints are.
        quick: whether only manifests are read.

    Raises:
        StorageError: if the storage cannot be listed.
    """
    folders = folders_of(storage)
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
    """Return the status of the folder `name`. It is only GOOD if every byte was verified, not with `quick`.

    Args:
        storage: where the checkpoints are.
        name: the name of the folder.
        quick: whether only manifests are read.
    """
    manifest = None
    try:
        manifest = read_manifest(storage, name)
        if quick:
            return CheckpointFolder(name, FolderStatus.NOT_VERIFIED, manifest=manifest)
        return CheckpointFolder(name, FolderStatus.GOOD, manifest=verify_files(storage, name, manifest).manifest)
    except (CheckpointError, StorageError) as error:
        reason = str(error).removeprefix(f"{name} in {storage.capabilities.location} ")
    with suppress(StorageError):
        files = [entry.name for entry in storage.list(name)]
        if MANIFEST not in files:
            return _without_manifest(storage, name, files, reason)
    return CheckpointFolder(name, FolderStatus.BAD, reason, manifest)


def newest_by_run(found: Sequence[CheckpointFolder]) -> dict[str, CheckpointFolder]:
    """Return, for each run, the checkpoint that it would resume from: the newest that is good or not verified.

    Args:
        found: folders, as `survey` yields them.
    """
    held = {each.name: each for each in found if step_of(each.name) is not None}
    runs: dict[str, dict[str, Manifest]] = {}
    for each in held.values():
        if each.manifest is not None:
            runs.setdefault(each.manifest.run, {})[each.name] = each.manifest
    newest: dict[str, CheckpointFolder] = {}
    for run, manifests in runs.items():
        for each in map(held.__getitem__, newest_first(manifests)):
            if each.status in (FolderStatus.GOOD, FolderStatus.NOT_VERIFIED):
                newest.setdefault(run, each)
    return newest


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
    return CheckpointFolder(name, FolderStatus.BAD if RUN_STATE in files else FolderStatus.NO_CHECKPOINT, reason)


def _reason_for_setting_aside(storage: Storage, name: str) -> str:
    with suppress(StorageError):
        if REASON in {entry.name for entry in storage.list(name)}:
            return read_start(storage.read(f"{name}/{REASON}"), limits().note_bytes).decode(errors="replace").strip()
    return "another checkpoint has its name now."


def _staged(storage: Storage, name: str, quick: bool) -> CheckpointFolder:
    """Return the status of a staging folder. A complete one is published by the next resume."""
    reason = "a save or a removal that was not completed."
    with suppress(StorageError):
        if is_published(storage, name) and (quick or examine(storage, name).status is FolderStatus.GOOD):
            reason = "it is complete but not published; the next resume publishes it if its name is free."
    return CheckpointFolder(name, FolderStatus.UNFINISHED, reason, _manifest(storage, name))


def newest_to_keep(storage: Storage, run: str) -> Checkpoint:
    """Return the newest checkpoint of `run`, verified.

    Args:
        storage: where the checkpoints are.
        run: the name of the run.

    Raises:
        CheckpointError: if it is not good, or if one at a later step cannot be read and might be the newest: the
            checkpoints to remove may then be needed.
        StorageError: if the storage fails.
    """
    manifests, unread = {}, []
    for name in map(checkpoint_name, checkpoint_steps(storage)):
        try:
            manifest = read_manifest(storage, name)
        except CheckpointError as error:
            with suppress(IrregularFileError):  # what leads out of the storage is no checkpoint in it
                if MANIFEST in {entry.name for entry in storage.list(name)}:
                    unread.append((name, error))
        else:
            if manifest.run == run:
                manifests[name] = manifest
    order = list(newest_first(manifests))
    if not order:
        raise CheckpointError(f"The run {run} has no checkpoint in {storage.capabilities.location}.")
    steps = {checkpoint_name(step): step for step in checkpoint_steps(storage)}
    for name, problem in unread:
        if steps[name] > manifests[order[0]].step:
            raise CheckpointError(f"Nothing is removed, because {name} may be the newest: {problem}")
    try:
        return verify(storage, order[0])
    except CheckpointError as error:
        raise type(error)(f"Nothing is removed, because the newest checkpoint is not good: {error}") from error


def surplus(storage: Storage, newest: Checkpoint, policy: CheckpointPolicy, best: str | None) -> list[str]:
    """Return the checkpoints in the lineage of the newest one that are neither kept by the policy nor protected.

    Oldest first.

    Args:
        storage: where the checkpoints are.
        newest: the newest checkpoint, verified.
        policy: which checkpoints are kept.
        best: the name of the best checkpoint.
    """
    lineage = Lineage.after(newest.manifest)
    steps = [step for step in checkpoint_steps(storage) if is_in_lineage(storage, step, lineage)]
    return [checkpoint_name(step) for step in policy.surplus(steps, best, partial(is_protected, storage))]


def remove(storage: Storage, newest: Checkpoint, names: list[str]) -> Iterator[str]:
    """Remove checkpoints in the lineage of the newest one; yield each name once it is removed.

    Args:
        storage: where the checkpoints are.
        newest: the newest checkpoint of the lineage, verified.
        names: the names of the checkpoints to remove.

    Raises:
        StorageError: if the storage fails.
    """
    publisher = publisher_for(storage, Owner(newest.manifest.run, new_session()))
    lineage = Lineage.after(newest.manifest)
    for name in names:
        if name != newest.name and _delete(storage, publisher, lineage, name):
            yield name


def _delete(storage: Storage, publisher: Publisher, lineage: Lineage, name: str) -> bool:
    """Delete a checkpoint of a lineage. Return whether it was there; another process may have removed it."""
    with suppress(MissingCheckpointError), _unless_gone(storage, name):
        if lineage.holds(read_manifest(storage, name)):
            publisher.delete(name)
            return True
    return False


def leftovers(storage: Storage, run: str) -> list[str]:
    """Return the folders that `run` left unfinished, except complete ones, which a resume publishes.

    Args:
        storage: where the checkpoints are.
        run: the name of the run.
    """
    owner, found = Owner(run, new_session()), list[str]()
    renames = storage.capabilities.publication is Publication.RENAME
    is_left = _is_left_staged if renames else _is_left_in_place
    for name in folders_of(storage):
        with suppress(IrregularFileError), _unless_gone(storage, name):
            if is_left(storage, owner, name):
                found.append(name)
    return found


def replaced(storage: Storage, run: str | None = None) -> list[str]:
    """Return the checkpoints that were set aside because one of another run has their name now, except protected ones.

    Args:
        storage: where the checkpoints are.
        run: only those of runs whose names start with this.
    """
    found = []
    for name in filter(is_replaced, folders_of(storage)):
        with suppress(IrregularFileError), _unless_gone(storage, name):
            manifest = None if run is None else _manifest(storage, name)
            is_meant = run is None or (manifest is not None and manifest.run.startswith(run))
            if is_meant and not is_protected(storage, name):
                found.append(name)
    return found


def remove_replaced(storage: Storage, name: str) -> None:
    """Remove a checkpoint that was set aside. Whenever this is cut short, what remains is set aside too.

    Args:
        storage: where the checkpoints are.
        name: the name of the folder.
    """
    with _unless_gone(storage, name):
        storage.remove(name)


def remove_leftover(storage: Storage, run: str, name: str) -> None:
    """Remove a folder that `run` left unfinished. Whenever this is cut short, what remains is marked as unfinished.

    Args:
        storage: where the checkpoints are.
        run: the name of the run.
        name: the name of the folder.
    """
    with _unless_gone(storage, name):
        if storage.capabilities.publication is Publication.RENAME:
            storage.remove(name)
        else:
            InPlacePublisher(storage, Owner(run, new_session())).abandon(name)


@contextmanager
def _unless_gone(storage: Storage, name: str) -> Iterator[None]:
    """Ignore the failure of an operation on a folder that another process has removed or renamed meanwhile."""
    try:
        yield
    except MissingFileError:
        return  # it changes while it is read
    except StorageError:
        if name in folders_of(storage):
            raise


def _is_left_staged(storage: Storage, owner: Owner, name: str) -> bool:
    return owner.left_behind(name) and not _may_be_complete(storage, name)


def _is_left_in_place(storage: Storage, owner: Owner, name: str) -> bool:
    marked = may_be_unfinished(name) and any(owner.left_behind(entry.name) for entry in storage.list(name))
    return marked and not is_published(storage, name)


def _may_be_complete(storage: Storage, name: str) -> bool:
    """Return whether a staged checkpoint is complete, or may be but cannot be read by this hexloop."""
    has_manifest = MANIFEST in {entry.name for entry in storage.list(name)}
    try:
        verify(storage, name)
    except DamagedCheckpointError:
        return False
    except CheckpointError:
        return has_manifest
    return True
