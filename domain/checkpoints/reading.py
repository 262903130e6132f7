"""Making sure that a checkpoint is what its manifest says."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from attrs import frozen

from hexloop.domain.checkpoints.manifest import Lineage, Manifest, unseal
from hexloop.domain.checkpoints.names import MANIFEST, PROTECTED, checkpoint_name, step_of
from hexloop.domain.errors import CheckpointError, DamagedCheckpointError, StorageError, UnreadableCheckpointError
from hexloop.domain.json_documents import read_bytes
from hexloop.ports.storage import Storage

LONGEST_MANIFEST = 1 << 26
"""Bytes. A file has some 150 in it, and a process a handful of files."""


@frozen
class Checkpoint:
    """A folder that is what its manifest says."""

    name: str
    manifest: Manifest


def verify(storage: Storage, name: str) -> Checkpoint:
    """Read every file of the checkpoint `name` and compare it with the manifest.

    Raises DamagedCheckpointError, with everything that is wrong, where one is missing or holds anything else,
    UnreadableCheckpointError where it cannot be read at present, and CheckpointError where it is no checkpoint at all.
    """
    manifest = read_manifest(storage, name)
    where = f"{name} in {storage.capabilities.location}"
    wrong: list[str] = []
    unread: dict[str, list[str]] = {}
    for path in sorted(manifest.files):
        try:
            problem = _problem(storage, name, manifest, path)
        except StorageError as error:
            unread.setdefault(str(error), []).append(path)
        else:
            wrong += [problem] if problem else []
    not_read = [f"{', '.join(paths)} cannot be read ({reason})" for reason, paths in unread.items()]
    if wrong:
        raise DamagedCheckpointError(f"{where} is damaged: {'; '.join(wrong + not_read)}.")
    if unread:
        raise UnreadableCheckpointError(f"{where} cannot be used: {'; '.join(not_read)}.")
    return Checkpoint(name, manifest)


def read_manifest(storage: Storage, name: str) -> Manifest:
    """The manifest of the checkpoint `name`; its files are not looked at.

    Raises CheckpointError where it has none or one of a newer schema, DamagedCheckpointError where it is damaged, and
    StorageError where the storage does not give what it lists.
    """
    where = f"{name} in {storage.capabilities.location}"
    try:
        manifest = Manifest.from_json(_manifest_bytes(storage, name))
    except CheckpointError as error:
        raise type(error)(f"{where} cannot be used: {error}.") from error
    if step_of(name) not in (None, manifest.step):
        raise CheckpointError(f"{where} holds {checkpoint_name(manifest.step)}; give it that name.")
    return manifest


def is_published(storage: Storage, name: str) -> bool:
    """Whether a folder's manifest was written to its end, be it of a schema that this hexloop reads or of another."""
    try:
        unseal(_manifest_bytes(storage, name))
    except CheckpointError:
        return False
    return True


def belongs(storage: Storage, step: int, lineage: Lineage) -> bool:
    """Whether the checkpoint at `step` is of a lineage; one that cannot be read is not known to be."""
    try:
        return lineage.holds(read_manifest(storage, checkpoint_name(step)))
    except CheckpointError:
        return False


def is_protected(storage: Storage, name: str) -> bool:
    """Whether somebody put the file into a checkpoint's folder that keeps it."""
    return PROTECTED in {entry.name for entry in storage.list(name)}


def checkpoint_steps(storage: Storage) -> list[int]:
    """The steps of the folders that have the name of a checkpoint, whatever is in them, from the highest down."""
    steps = (step_of(entry.name) for entry in storage.list("") if entry.is_folder)
    return sorted((step for step in steps if step is not None), reverse=True)


def _manifest_bytes(storage: Storage, name: str) -> bytes:
    names = {entry.name for entry in storage.list(name)}
    if not names:
        raise CheckpointError("there is no such folder, or nothing in it")
    if MANIFEST not in names:
        raise CheckpointError(f"it has no {MANIFEST}, so it is not a checkpoint, or not a complete one")
    try:
        return read_bytes(storage.read(f"{name}/{MANIFEST}"), LONGEST_MANIFEST)
    except ValueError as error:
        raise DamagedCheckpointError(f"its {MANIFEST} is not one: {error}") from error


def _problem(storage: Storage, name: str, manifest: Manifest, path: str) -> str | None:
    """What is wrong with a file; None where nothing is. Raises StorageError where it is there and cannot be read."""
    expected = manifest.files[path]
    folder, _, file = f"{name}/{path}".rpartition("/")
    if file not in {entry.name for entry in storage.list(folder)}:
        return f"{path} is missing"
    found = storage.digest(f"{name}/{path}")
    if found.size != expected.size:
        return f"{path} has {found.size} bytes and should have {expected.size}"
    kind, own_kind = expected.digest.partition(":")[0], found.digest.partition(":")[0]
    if kind != own_kind:
        raise StorageError(
            f"its digest is by {kind}, and a storage that computes {own_kind} cannot check it; give the storage the "
            f"digest {kind!r}"
        )
    if found.digest != expected.digest:
        return f"{path} does not hold the bytes that were stored"
    return None


def warn_of_differences(checkpoint: Checkpoint, environment: Mapping[str, str], world_size: int) -> None:
    """Say where what the checkpoint was written with and what there is now may give other last bits.

    One that says nothing of its surroundings, because another library wrote the run, is not warned of.
    """
    manifest = checkpoint.manifest
    if not manifest.environment:
        return
    then = {**manifest.environment, "processes": str(manifest.world_size)}
    now = {**environment, "processes": str(world_size)}
    differences = [
        f"{fact} was {then.get(fact, 'not known')} and is {now.get(fact, 'not known')}"
        for fact in sorted(then.keys() | now.keys())
        if then.get(fact) != now.get(fact)
    ]
    if differences:
        warnings.warn(
            f"The run that goes on from {checkpoint.name} may differ in its last bits from one that was never "
            f"interrupted: {'; '.join(differences)}.",
            stacklevel=4,
        )
