"""Finding checkpoints, and making sure that one is what its manifest says."""

from __future__ import annotations

import warnings
from functools import partial

from attrs import frozen

from hexloop.domain.checkpoints.manifest import Manifest, unseal
from hexloop.domain.checkpoints.names import MANIFEST, checkpoint_name, step_of
from hexloop.domain.errors import CheckpointError, StorageError
from hexloop.ports.storage import Storage


@frozen
class Checkpoint:
    """A folder that is what its manifest says."""

    name: str
    manifest: Manifest


def newest(storage: Storage, run: str | None = None) -> Checkpoint | None:
    """The good checkpoint with the highest step, of `run` or of any; None where there is none.

    Each one that is passed over because it is not good is named, with the reason, in a warning. Raises StorageError
    where the storage does not even give a manifest that it lists, which is no reason to go back to an older one.
    """
    for name in map(checkpoint_name, checkpoint_steps(storage)):
        try:
            manifest = read_manifest(storage, name)
            if run is None or manifest.run == run:
                return _verified(storage, name, manifest)
        except CheckpointError as error:
            warnings.warn(f"A checkpoint is passed over: {error}", stacklevel=2)
    return None


def open_checkpoint(storage: Storage, name: str) -> Checkpoint:
    """The checkpoint `name`, verified.

    Raises CheckpointError, with the names of those that are good, where it is not; to know them, all are read through.
    """
    try:
        return verify(storage, name)
    except CheckpointError as error:
        good = ", ".join(filter(partial(_is_good, storage), map(checkpoint_name, checkpoint_steps(storage))))
        advice = f"choose one of those that are good: {good}" if good else "no good checkpoint is there"
        raise CheckpointError(f"{error} You asked for {name}; {advice}.") from error


def verify(storage: Storage, name: str) -> Checkpoint:
    """Read every file of the checkpoint `name` and compare it with the manifest.

    Raises CheckpointError, with everything that is wrong, where one is missing or holds anything else.
    """
    return _verified(storage, name, read_manifest(storage, name))


def read_manifest(storage: Storage, name: str) -> Manifest:
    """The manifest of the checkpoint `name`; its files are not looked at. Raises CheckpointError where it has none."""
    where = f"{name} in {storage.capabilities.location}"
    try:
        manifest = Manifest.from_json(_manifest_bytes(storage, name))
    except CheckpointError as error:
        raise CheckpointError(f"{where} cannot be used: {error}.") from error
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


def checkpoint_steps(storage: Storage) -> list[int]:
    """The steps of the folders that have the name of a checkpoint, whatever is in them, from the highest down."""
    steps = (step_of(entry.name) for entry in storage.list("") if entry.is_folder)
    return sorted((step for step in steps if step is not None), reverse=True)


def _manifest_bytes(storage: Storage, name: str) -> bytes:
    if MANIFEST not in {entry.name for entry in storage.list(name)}:
        raise CheckpointError(f"it has no {MANIFEST}, so it is not a checkpoint, or not a complete one")
    return b"".join(storage.read(f"{name}/{MANIFEST}"))


def _verified(storage: Storage, name: str, manifest: Manifest) -> Checkpoint:
    problems = [problem for path in sorted(manifest.files) if (problem := _problem(storage, name, manifest, path))]
    if problems:
        raise CheckpointError(f"{name} in {storage.capabilities.location} is damaged: {'; '.join(problems)}.")
    return Checkpoint(name, manifest)


def _problem(storage: Storage, name: str, manifest: Manifest, path: str) -> str | None:
    """What is wrong with a file; None where nothing is."""
    expected = manifest.files[path]
    try:
        found = storage.digest(f"{name}/{path}")
    except StorageError as error:
        return f"{path} cannot be read ({error})"
    if found.size != expected.size:
        return f"{path} has {found.size} bytes and should have {expected.size}"
    kind, own_kind = expected.digest.partition(":")[0], found.digest.partition(":")[0]
    if kind != own_kind:
        return f"{path} has a digest by {kind}, which a storage that computes {own_kind} cannot check"
    if found.digest != expected.digest:
        return f"{path} does not hold the bytes that were stored"
    return None


def _is_good(storage: Storage, name: str) -> bool:
    try:
        verify(storage, name)
    except (CheckpointError, StorageError):
        return False
    return True
