"""Which checkpoint a run resumes from, and quarantine of damaged ones."""

from __future__ import annotations

import warnings
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter

from attrs import define, field

from hexloop.domain.checkpoints.manifest import (
    MANIFEST,
    REASON,
    Lineage,
    Manifest,
    checkpoint_name,
    folders_of,
    free_folder,
    free_name,
    is_mark,
    staged_name,
    step_of,
)
from hexloop.domain.checkpoints.reading import Checkpoint, checkpoint_steps, read_manifest, verify
from hexloop.domain.checkpoints.signatures import SIGNATURE
from hexloop.domain.errors import (
    CheckpointError,
    DamagedCheckpointError,
    NewerSchemaError,
    SignatureError,
    StorageError,
    UnreadableCheckpointError,
)
from hexloop.domain.ranges import MOST
from hexloop.domain.wording import listed, troubleshooting
from hexloop.ports.storage import Publication, Storage

MOST_BAD = 500
"""Folders that have the names of checkpoints and are none; no run leaves so many, and looking at each takes time."""


def newest(storage: Storage, run: str | None = None, quarantine: bool = False) -> Checkpoint | None:
    """Return the newest good checkpoint of `run`, or of the only run that there is; None if there is none.

    The newest is the last one of the latest session, followed by its ancestors, not one at a later step that a resume
    went back behind. A warning names each checkpoint that is skipped because it is not good; with `quarantine`, damaged
    ones are renamed.

    Args:
        storage: where the checkpoints are.
        run: the name of the run; None for the only one that there is.
        quarantine: whether damaged checkpoints are renamed.

    Raises:
        CheckpointError: if there are several runs and `run` is None, or if a checkpoint has a newer schema.
        StorageError: if the storage cannot read a manifest that it lists: no reason to use an older checkpoint.
        UnreadableCheckpointError: if none is good and one that cannot be read at present may be.
        SignatureError: if none is good and one is not signed by the storage's key. Such a checkpoint is never renamed.
    """
    refused: list[CheckpointError] = []
    bad = _BadFolders(storage, quarantine)
    manifests = dict(_manifests(storage, bad, refused))
    if run is None:
        _refuse_several_runs(storage, manifests)
    unread: UnreadableCheckpointError | None = None
    for name in newest_first({name: manifest for name, manifest in manifests.items() if run in (None, manifest.run)}):
        try:
            return verify(storage, name)
        except CheckpointError as error:
            if unread is None and isinstance(error, UnreadableCheckpointError):
                unread = error
            refused += [error] if isinstance(error, SignatureError) else []
            bad.skip(name, error)
    if unread is not None:  # a caller that was told that there is none would start over and replace it
        raise UnreadableCheckpointError(
            f"{unread} It may be good, and no other checkpoint is. Make it readable, or set another output_dir to "
            "start from scratch."
        ) from unread
    if refused:
        raise SignatureError(
            f"No checkpoint in {storage.capabilities.location} can be used with this key. {refused[0]}"
        )
    return None


def newest_first(manifests: Mapping[str, Manifest]) -> Iterator[str]:
    """Yield the names of a run's checkpoints: the newest one, those that led to it, then the others.

    Args:
        manifests: those of the run, by the name of the checkpoint.
    """
    remaining = _BySession(manifests)
    name = remaining.take_last()
    while name is not None:
        yield name
        name = remaining.take_from(Lineage.after(manifests[name])) or remaining.take_last()


class _BySession:
    """Checkpoints by the session that wrote them, in order, so that each is found without a search through all."""

    def __init__(self, manifests: Mapping[str, Manifest]) -> None:
        self._sessions: dict[tuple[str, str], list[tuple[int, str]]] = {}
        for name, manifest in manifests.items():
            self._sessions.setdefault((manifest.session, manifest.run), []).append((manifest.step, name))
        for found in self._sessions.values():
            found.sort()
        self._order = sorted(self._sessions)

    def take_last(self) -> str | None:
        """Remove and return the checkpoint at the last step of the latest session; None if none is left."""
        while self._order:
            found = self._sessions[self._order[-1]]
            if found:
                return found.pop()[1]
            self._order.pop()
        return None

    def take_from(self, lineage: Lineage) -> str | None:
        """Remove and return the last one in a lineage, of its latest session that has any; None if none is left."""
        bounds = {**lineage.ancestors, lineage.session: MOST}
        for session in sorted(bounds.keys(), reverse=True):
            found = self._sessions.get((session, lineage.run), [])
            place = bisect_right(found, bounds[session], key=itemgetter(0))
            if place:
                return found.pop(place - 1)[1]
        return None


def open_checkpoint(storage: Storage, name: str) -> Checkpoint:
    """Return the checkpoint `name`, verified.

    Args:
        storage: where the checkpoints are.
        name: the name of the checkpoint.

    Raises:
        CheckpointError: if it is not good, with the names of those that are; all of them are read to find out.
    """
    try:
        return verify(storage, name)
    except CheckpointError as error:
        within = checkpoint_steps(storage, name)
        if within and step_of(name) is None:
            raise type(error)(
                f"{name} in {storage.capabilities.location} is a folder of checkpoints, not a checkpoint. Name one of "
                f"those in it, for example the last one, {name}/{checkpoint_name(within[0])}."
            ) from error
        good = ", ".join(filter(partial(_is_good, storage), map(checkpoint_name, checkpoint_steps(storage))))
        advice = f"Choose one of the good checkpoints: {good}." if good else "There is no good checkpoint."
        raise type(error)(f"{error} {advice}") from error


def readable_manifests(storage: Storage, folders: Iterable[str] | None = None) -> dict[str, Manifest]:
    """Return the readable manifests in `folders` by name; by default in all checkpoints, highest step first.

    Args:
        storage: where the checkpoints are.
        folders: the names of folders; by default of all checkpoints.

    Raises:
        CheckpointError: if more than `MOST_BAD` folders have none.
    """
    found: dict[str, Manifest] = {}
    bad = _BadFolders(storage)
    for name in map(checkpoint_name, checkpoint_steps(storage)) if folders is None else folders:
        try:
            found[name] = read_manifest(storage, name)
        except CheckpointError as error:
            bad.count(error)
    return found


def runs_in(storage: Storage) -> dict[str, str]:
    """Return the runs that have a checkpoint with a readable manifest, each with its checkpoint at the highest step.

    Args:
        storage: where the checkpoints are.
    """
    found: dict[str, str] = {}
    for name, manifest in readable_manifests(storage).items():
        found.setdefault(manifest.run, name)
    return found


def last_run(storage: Storage) -> str | None:
    """Return the run with the latest session among all checkpoints that have a readable manifest.

    Args:
        storage: where the checkpoints are.
    """
    found = [(manifest.session, manifest.run) for manifest in readable_manifests(storage).values()]
    return max(found)[1] if found else None


def publish_staged(storage: Storage, chosen: str | None = None) -> None:
    """Publish every complete staged checkpoint of one run, if its name is free.

    A disk that lost an acknowledged rename leaves such a folder, and so does a process that died while it deleted a
    checkpoint. Another live run may be about to publish one too; therefore only the run of the checkpoint `chosen`, or
    else the only run that there is, is considered. Storages without a rename have no staging folders.

    Args:
        storage: where the checkpoints are.
        chosen: the name of the checkpoint whose run is meant; None if none is.
    """
    if storage.capabilities.publication is not Publication.RENAME:
        return
    taken = set(folders_of(storage))
    staged = {folder: name for folder in sorted(taken) if (name := staged_name(folder)) and name not in taken}
    if not staged:
        return
    checkpoints = {folder: folder for folder in taken if step_of(folder) is not None} | staged
    runs = {folder: manifest.run for folder, manifest in readable_manifests(storage, checkpoints).items()}
    meant = {run for folder, run in runs.items() if chosen in (None, checkpoints[folder])}
    for folder, name in staged.items():
        if {runs.get(folder)} == meant and _is_good(storage, folder):
            files = [*read_manifest(storage, folder).files, MANIFEST]
            files += [] if storage.capabilities.signatures is None else [SIGNATURE]
            storage.sync([f"{folder}/{path}" for path in files])  # its writer may have died before it did
            storage.move(folder, name)


def quarantine(storage: Storage, name: str, reason: str) -> str:
    """Rename a damaged checkpoint so that it no longer counts as one, and return where it is now.

    The reason is written to a file in its folder. On a storage without a cheap rename, only the manifest is renamed.

    Args:
        storage: where the checkpoints are.
        name: the name of the checkpoint.
        reason: why it is damaged, a sentence.
    """
    for entry in storage.list(name):
        if is_mark(entry.name) or entry.name == REASON:  # a clean-up would remove a marked folder without a manifest
            storage.remove(f"{name}/{entry.name}")
    storage.write(f"{name}/{REASON}", [f"{reason}\n".encode()])
    storage.sync([f"{name}/{REASON}"])
    if storage.capabilities.publication is Publication.RENAME:
        renamed = free_folder(storage, name, "damaged")
        storage.move(name, renamed)
        return renamed
    renamed = free_name(MANIFEST, {entry.name for entry in storage.list(name)}, "damaged")
    storage.write(f"{name}/{renamed}", storage.read(f"{name}/{MANIFEST}"))
    storage.sync([f"{name}/{renamed}"])
    storage.remove(f"{name}/{MANIFEST}")
    return f"{name}/{renamed}"


def quarantine_if_possible(storage: Storage, name: str, damage: DamagedCheckpointError) -> str:
    """Quarantine a damaged checkpoint and return a message with the damage and the outcome.

    Args:
        storage: where the checkpoints are.
        name: the name of the checkpoint.
        damage: what is wrong with it.
    """
    try:
        return f"{damage} It was set aside as {quarantine(storage, name, str(damage))}."
    except StorageError as failure:
        return f"{damage} It could not be set aside: {failure}"


def _manifests(storage: Storage, bad: _BadFolders, refused: list[CheckpointError]) -> Iterator[tuple[str, Manifest]]:
    """Yield the name and manifest of every checkpoint that has a readable one, and skip the others.

    refused: the errors of those that are not signed as they must be are added to it.
    """
    for name in map(checkpoint_name, checkpoint_steps(storage)):
        try:
            yield name, read_manifest(storage, name)
        except NewerSchemaError:
            raise
        except CheckpointError as error:
            refused += [error] if isinstance(error, SignatureError) else []
            bad.skip(name, error)


@define
class _BadFolders:
    """Skips folders that have the names of checkpoints and are not good. quarantines: damaged ones are renamed."""

    storage: Storage
    quarantines: bool = False
    _count: int = field(default=0, init=False)

    def skip(self, name: str, error: CheckpointError) -> None:
        """Warn of a checkpoint that is not good. Quarantine it if it is damaged, rather than missing or unreadable.

        Raises CheckpointError if there are more than `MOST_BAD`.
        """
        self.count(error)
        reason = str(error)
        if self.quarantines and isinstance(error, DamagedCheckpointError):
            reason = quarantine_if_possible(self.storage, name, error)
        if isinstance(error, DamagedCheckpointError):
            reason += f" For help, {troubleshooting('damaged checkpoint')}."
        warnings.warn(f"A checkpoint is skipped: {reason}", stacklevel=4)

    def count(self, error: CheckpointError) -> None:
        """Count a folder that is not good. Raises CheckpointError if there are more than `MOST_BAD`."""
        self._count += 1
        if self._count > MOST_BAD:
            raise CheckpointError(
                f"{self.storage.capabilities.location} has more than {MOST_BAD} folders that have the names of "
                f"checkpoints and are not good, among them this one: {error} Remove or rename them, or choose another "
                "folder."
            )


def _refuse_several_runs(storage: Storage, manifests: Mapping[str, Manifest]) -> None:
    latest: dict[str, str] = {}
    for name, manifest in sorted(manifests.items(), key=lambda item: item[1].step):
        latest[manifest.run] = name
    if len(latest) > 1:
        names = listed([f"{name} of the run {run}" for run, name in sorted(latest.items())], ", ")
        raise CheckpointError(
            f"The newest checkpoint in {storage.capabilities.location} is ambiguous: it holds checkpoints of "
            f"{len(latest)} runs: {names}. Name the checkpoint to resume from."
        )


def _is_good(storage: Storage, name: str) -> bool:
    try:
        verify(storage, name)
    except (CheckpointError, StorageError):
        return False
    return True


def find_checkpoint(storages: Sequence[Storage], name: str, lineage: Lineage, held: Collection[int] = ()) -> int | None:
    """Return the index of the first storage that has the checkpoint `name` of a lineage, or None.

    Args:
        storages: where it may be, in the order in which they are searched.
        name: the name of the checkpoint.
        lineage: the run and the branch that the checkpoint belongs to.
        held: the steps that the lineage is known to have on the first storage, even if a manifest became unreadable.
    """
    for index, storage in enumerate(storages):
        try:
            has = lineage.holds(read_manifest(storage, name))
        except CheckpointError:
            has = index == 0 and step_of(name) in held
        if has:
            return index
    return None
