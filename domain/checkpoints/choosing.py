"""Which checkpoint a run goes on from, and what becomes of those that are not good."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial

from hexloop.domain.checkpoints.lineage import Lineage
from hexloop.domain.checkpoints.manifest import Manifest
from hexloop.domain.checkpoints.names import MANIFEST, REASON, checkpoint_name, free_name, is_mark, staged_name, step_of
from hexloop.domain.checkpoints.reading import Checkpoint, checkpoint_steps, read_manifest, verify
from hexloop.domain.errors import (
    CheckpointError,
    DamagedCheckpointError,
    NewerSchemaError,
    StorageError,
    UnreadableCheckpointError,
)
from hexloop.ports.storage import Publication, Storage


def newest(storage: Storage, run: str | None = None, quarantine: bool = False) -> Checkpoint | None:
    """The good checkpoint at which a run was left last: `run`, or the only one there is. None where there is none.

    The session that came last counts, and what led to it: not a later step of a past that was given up. Each one that
    is passed over because it is not good is named, with the reason, in a warning, and with `quarantine` set aside.
    Raises CheckpointError where there are several runs and none is named, or where a checkpoint is of a newer schema;
    StorageError where the storage does not even give a manifest that it lists. Neither is a reason to go back further.
    UnreadableCheckpointError where there is no good one, and one that cannot be read at present may be.
    """
    manifests = dict(_manifests(storage, quarantine))
    if run is None:
        _refuse_several_runs(storage, manifests)
    unread: UnreadableCheckpointError | None = None
    for name in from_newest({name: manifest for name, manifest in manifests.items() if run in (None, manifest.run)}):
        try:
            return verify(storage, name)
        except CheckpointError as error:
            if unread is None and isinstance(error, UnreadableCheckpointError):
                unread = error
            _pass_over(storage, name, error, quarantine)
    if unread is not None:  # whoever heard that there is none would begin anew, and put it out of the way
        raise UnreadableCheckpointError(
            f"{unread} It may be good, and no other is; see that it can be read, or set another output_dir to begin "
            "anew."
        ) from unread
    return None


def from_newest(manifests: Mapping[str, Manifest]) -> Iterator[str]:
    """The names of a run's checkpoints, first the one at which it was left last, then what led there, then the rest."""
    remaining = dict(manifests)
    lineage: Lineage | None = None
    while remaining:
        led_there = {
            name: each for name, each in remaining.items() if lineage is None or lineage.holds(each)
        } or remaining
        name = max(led_there, key=lambda name: (remaining[name].session, remaining[name].step))
        yield name
        manifest = remaining.pop(name)
        lineage = Lineage.after(manifest, manifest.session)


def open_checkpoint(storage: Storage, name: str) -> Checkpoint:
    """The checkpoint `name`, verified.

    Raises CheckpointError, with the names of those that are good, where it is not; to know them, all are read through.
    """
    try:
        return verify(storage, name)
    except CheckpointError as error:
        within = [step for step in map(step_of, _folders_in(storage, name)) if step is not None]
        if within and step_of(name) is None:
            raise type(error)(
                f"You asked for {name} in {storage.capabilities.location}, but that is a folder of checkpoints; name "
                f"one of those in it, the last of which is {name}/{checkpoint_name(max(within))}."
            ) from error
        good = ", ".join(filter(partial(_is_good, storage), map(checkpoint_name, checkpoint_steps(storage))))
        advice = f"choose one of those that are good: {good}" if good else "no good checkpoint is there"
        raise type(error)(f"{error} You asked for {name}; {advice}.") from error


def _folders_in(storage: Storage, name: str) -> list[str]:
    return [entry.name for entry in storage.list(name) if entry.is_folder]


def readable_manifests(storage: Storage) -> dict[str, Manifest]:
    """The checkpoints that have a readable manifest, by name from the highest step down; nothing is verified."""
    found: dict[str, Manifest] = {}
    for name in map(checkpoint_name, checkpoint_steps(storage)):
        with suppress(CheckpointError):
            found[name] = read_manifest(storage, name)
    return found


def runs_in(storage: Storage) -> dict[str, str]:
    """The runs that have a checkpoint with a readable manifest, each with the name of the one at its highest step."""
    found: dict[str, str] = {}
    for name, manifest in readable_manifests(storage).items():
        found.setdefault(manifest.run, name)
    return found


def publish_staged(storage: Storage, chosen: str | None = None) -> None:
    """Let every checkpoint of one run appear that is staged whole and whose name is free.

    A disk that acknowledged a rename and then lost it leaves one, and so does a death between a checkpoint's renaming
    and its removal. Nothing else has a valid manifest in its staging folder, but what another, living run is about to
    publish: so the run is that of the checkpoint `chosen`, or else the only one there is. Where the storage has no
    rename, none is staged.
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
    """The run of each folder that has a readable manifest."""
    found: dict[str, str] = {}
    for folder in folders:
        with suppress(CheckpointError):
            found[folder] = read_manifest(storage, folder).run
    return found


def last_run(storage: Storage) -> str | None:
    """The run that went on last of those that have a checkpoint with a readable manifest."""
    found = [(manifest.session, manifest.run) for manifest in readable_manifests(storage).values()]
    return max(found)[1] if found else None


def set_aside(storage: Storage, name: str, reason: str) -> str:
    """Let a damaged checkpoint be none any more, recoverably, with the reason in a file; gives back where it is now.

    Where a rename is cheap, the folder gets another name; where it is not, its manifest does.
    """
    for entry in storage.list(name):
        if is_mark(entry.name) or entry.name == REASON:  # a mark would have it cleaned up, once it has no manifest
            storage.remove(f"{name}/{entry.name}")
    storage.write(f"{name}/{REASON}", [f"{reason}\n".encode()])
    if storage.capabilities.publication is Publication.RENAME:
        aside = free_name(name, {entry.name for entry in storage.list("")}, "damaged")
        storage.move(name, aside)
        return aside
    aside = free_name(MANIFEST, {entry.name for entry in storage.list(name)}, "damaged")
    storage.write(f"{name}/{aside}", storage.read(f"{name}/{MANIFEST}"))
    storage.remove(f"{name}/{MANIFEST}")
    return f"{name}/{aside}"


def _manifests(storage: Storage, quarantine: bool) -> Iterator[tuple[str, Manifest]]:
    """The name and manifest of every checkpoint that has a readable one; the others are passed over."""
    for name in map(checkpoint_name, checkpoint_steps(storage)):
        try:
            yield name, read_manifest(storage, name)
        except NewerSchemaError:
            raise
        except CheckpointError as error:
            _pass_over(storage, name, error, quarantine)


def _pass_over(storage: Storage, name: str, error: CheckpointError, quarantine: bool) -> None:
    """Warn of a checkpoint that is not good; set it aside where it is damaged, and not merely none, or unreadable."""
    told = str(error)
    if quarantine and isinstance(error, DamagedCheckpointError):
        told = set_aside_if_possible(storage, name, error)
    warnings.warn(f"A checkpoint is passed over: {told}", stacklevel=3)


def set_aside_if_possible(storage: Storage, name: str, damage: DamagedCheckpointError) -> str:
    """Set a damaged checkpoint aside; gives what is wrong with it, and where it is now, or why it is still there."""
    try:
        return f"{damage} It was set aside as {set_aside(storage, name, str(damage))}."
    except StorageError as failure:
        return f"{damage} It could not be set aside: {failure}"


def _refuse_several_runs(storage: Storage, manifests: Mapping[str, Manifest]) -> None:
    latest: dict[str, str] = {}
    for name, manifest in sorted(manifests.items(), key=lambda item: item[1].step):
        latest[manifest.run] = name
    if len(latest) > 1:
        listed = ", ".join(f"{name} of the run {run}" for run, name in sorted(latest.items()))
        raise CheckpointError(
            f"You chose the newest checkpoint in {storage.capabilities.location}, but it holds those of {len(latest)} "
            f"runs: {listed}; name the checkpoint to go on from."
        )


def _is_good(storage: Storage, name: str) -> bool:
    try:
        verify(storage, name)
    except (CheckpointError, StorageError):
        return False
    return True
