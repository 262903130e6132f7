"""Which checkpoint a run goes on from, and what becomes of those that are not good."""

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
    says_unfinished,
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
