"""Reading checkpoints: their manifests, and the verification of their files against the manifest."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import cast

from attrs import field, frozen

from hexloop.domain.checkpoints.blocks import FileBlocks, VerifiedFiles, algorithm_of, block_size, read_blocks
from hexloop.domain.checkpoints.manifest import MANIFEST, PROTECTED, Lineage, Manifest, checkpoint_name, step_of, unseal
from hexloop.domain.checkpoints.signatures import check_digests, check_signature
from hexloop.domain.errors import (
    CheckpointError,
    DamagedCheckpointError,
    IrregularFileError,
    MissingCheckpointError,
    MissingFileError,
    SignatureError,
    StorageError,
    UnreadableCheckpointError,
)
from hexloop.domain.holes import are_too_many
from hexloop.domain.json_documents import read_bytes
from hexloop.domain.wording import listed
from hexloop.ports.collectives import Json
from hexloop.ports.storage import Entry, Storage, Stored

MAX_MANIFEST_BYTES = 1 << 26
"""A file takes about 150 bytes of a manifest, and each process writes a few files."""

RETRIES = 3
"""How often a manifest is read that another process removes and writes at the same time."""


@frozen
class Checkpoint:
    """A checkpoint that was verified. files: opens its files; what is read are the bytes that were verified."""

    name: str
    manifest: Manifest
    files: VerifiedFiles = field(eq=False, repr=False)

    def to_json(self) -> Json:
        """Return the checkpoint as JSON, for other ranks."""
        return {"name": self.name, "manifest": self.manifest.to_json().decode(), "files": self.files.to_json()}

    @classmethod
    def from_json(cls, storage: Storage, document: Json) -> Checkpoint:
        """Return the checkpoint that another rank has verified."""
        values = cast("dict[str, Json]", document)
        name = str(values["name"])
        manifest = Manifest.from_json(str(values["manifest"]).encode())
        return cls(name, manifest, VerifiedFiles.from_json(storage, name, values["files"]))


def verify(storage: Storage, name: str) -> Checkpoint:
    """Read every file of the checkpoint `name` and compare it with the manifest.

    Raises DamagedCheckpointError, listing every problem, if a file is missing or has changed,
    UnreadableCheckpointError if a file cannot be read at present, and CheckpointError if it is not a checkpoint.
    """
    return verify_files(storage, name, read_manifest(storage, name))


def verify_files(storage: Storage, name: str, manifest: Manifest) -> Checkpoint:
    """Compare every file of the checkpoint `name` with its manifest, which was read; see `verify`."""
    where = f"{name} in {storage.capabilities.location}"
    block = block_size(sum(stored.size for stored in manifest.files.values()))
    wrong: list[str] = []
    unread: dict[str, list[str]] = {}
    blocks: dict[str, FileBlocks] = {}
    entries = _Entries(storage)
    _refuse_holes(entries, name, manifest, where)
    for path in sorted(manifest.files):
        try:
            problem, blocks[path] = _read(storage, name, entries, path, manifest.files[path], block)
        except StorageError as error:
            unread.setdefault(str(error), []).append(path)
        else:
            wrong += [problem] if problem else []
    not_read = [f"{listed(paths, ', ')} cannot be read ({reason})" for reason, paths in unread.items()]
    if wrong:
        raise DamagedCheckpointError(f"{where} is damaged: {listed(wrong + not_read)}.")
    if unread:
        raise UnreadableCheckpointError(f"{where} cannot be used: {listed(not_read)}.")
    kinds = {path: algorithm_of(stored) for path, stored in manifest.files.items()}
    return Checkpoint(name, manifest, VerifiedFiles(storage, name, kinds, blocks))


def read_manifest(storage: Storage, name: str) -> Manifest:
    """Return the manifest of the checkpoint `name`, without reading its files.

    Raises CheckpointError if there is no manifest, or one of a newer schema, DamagedCheckpointError if it is damaged,
    SignatureError if the storage has a key and the manifest is not signed by it, and StorageError if the storage does
    not return a file that it lists.
    """
    where = f"{name} in {storage.capabilities.location}"
    try:
        manifest = Manifest.from_json(_signed_manifest(storage, name))
        check_digests(storage, manifest)
    except CheckpointError as error:
        raise type(error)(f"{where} cannot be used: {error}.") from error
    if step_of(name) not in (None, manifest.step):
        raise CheckpointError(f"{where} holds {checkpoint_name(manifest.step)}. Rename it to that.")
    return manifest


def is_published(storage: Storage, name: str) -> bool:
    """Return whether a folder has a complete manifest, of any schema version."""
    try:
        unseal(_manifest_bytes(storage, name))
    except CheckpointError:
        return False
    return True


def is_in_lineage(storage: Storage, step: int, lineage: Lineage) -> bool:
    """Return whether the checkpoint at `step` has a readable manifest and belongs to a lineage."""
    try:
        return lineage.holds(read_manifest(storage, checkpoint_name(step)))
    except CheckpointError:
        return False


def is_protected(storage: Storage, name: str) -> bool:
    """Return whether a user protected a checkpoint, with a file named `PROTECTED` in its folder."""
    return PROTECTED in {entry.name for entry in storage.list(name)}


def checkpoint_steps(storage: Storage, within: str = "") -> list[int]:
    """Return the steps of all folders that have the name of a checkpoint, whatever they hold, highest first."""
    steps = (step_of(entry.name) for entry in storage.list(within) if entry.is_folder)
    return sorted((step for step in steps if step is not None), reverse=True)


def warn_of_differences(checkpoint: Checkpoint, environment: Mapping[str, str], world_size: int) -> None:
    """Warn if the environment differs from the checkpoint's, because results may then differ in their last bits.

    A checkpoint without a recorded environment, such as one imported from another library, causes no warning.
    """
    manifest = checkpoint.manifest
    if not manifest.environment:
        return
    then = {**manifest.environment, "processes": str(manifest.world_size)}
    now = {**environment, "processes": str(world_size)}
    differences = [
        f"{fact} was {then.get(fact, 'unknown')} and is {now.get(fact, 'unknown')}"
        for fact in sorted(then.keys() | now.keys())
        if then.get(fact) != now.get(fact)
    ]
    if differences:
        warnings.warn(
            f"The run that resumes from {checkpoint.name} may differ in its last bits from an uninterrupted run: "
            f"{'; '.join(differences)}.",
            stacklevel=4,
        )


def _signed_manifest(storage: Storage, name: str) -> bytes:
    """Return the bytes of a manifest, its signature verified. Another process may be replacing both."""
    for _ in range(RETRIES):
        data = _manifest_bytes(storage, name)
        try:
            check_signature(storage, name, data)
        except SignatureError as error:
            failure = error
        else:
            return data
    raise failure


def _manifest_bytes(storage: Storage, name: str) -> bytes:
    """Return the bytes of a manifest. The folder is listed only to find out why that cannot be read."""
    for _ in range(RETRIES):
        try:
            return read_bytes(storage.read(f"{name}/{MANIFEST}"), MAX_MANIFEST_BYTES)
        except ValueError as error:
            raise DamagedCheckpointError(f"its {MANIFEST} is invalid: {error}") from error
        except IrregularFileError as error:
            raise DamagedCheckpointError(f"its {MANIFEST} is not read: {error}".removesuffix(".")) from error
        except StorageError as error:
            names = {entry.name for entry in storage.list(name)}
            if not names:
                raise MissingCheckpointError("the folder does not exist or is empty") from None
            if MANIFEST not in names:
                raise MissingCheckpointError(f"it has no {MANIFEST}, so it is not a complete checkpoint") from None
            failure = error
            if not isinstance(error, MissingFileError):  # otherwise another process has just written it
                break
    raise failure


class _Entries:
    """The entries of the folders of a storage. Each folder is listed once, when the first of its files is looked up."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._listings: dict[str, dict[str, Entry] | StorageError] = {}

    def find(self, path: str) -> Entry | None:
        """Return the entry at a path; None if there is none. Raises StorageError if its folder cannot be listed."""
        folder, _, name = path.rpartition("/")
        if folder not in self._listings:
            try:
                self._listings[folder] = {entry.name: entry for entry in self._storage.list(folder)}
            except StorageError as error:
                self._listings[folder] = error
        listing = self._listings[folder]
        if isinstance(listing, StorageError):
            raise listing
        return listing.get(name)


def _refuse_holes(entries: _Entries, name: str, manifest: Manifest, where: str) -> None:
    """Raise UnreadableCheckpointError if far more bytes of zeros would be read than there are bytes on the disk."""
    size = on_disk = 0
    hollow: list[str] = []
    for path, expected in manifest.files.items():
        with suppress(StorageError):  # reported when it is read
            entry = entries.find(f"{name}/{path}")
            if entry is not None and entry.on_disk is not None and entry.size == expected.size:
                size, on_disk = size + expected.size, on_disk + entry.on_disk
                hollow += [path] if entry.on_disk < expected.size else []
    if are_too_many(size, on_disk):
        raise UnreadableCheckpointError(
            f"{where} cannot be used: of the {size} bytes of its files, {on_disk} are on the disk, and the others are "
            f"holes, in {listed(sorted(hollow), ', ')}. If you trust it, copy it without holes (cp -r --sparse=never), "
            "or raise the limit hole_bytes."
        )


def _read(
    storage: Storage, name: str, entries: _Entries, path: str, expected: Stored, block: int
) -> tuple[str | None, FileBlocks]:
    """Return what is wrong with a file, or None, and its blocks. Raises StorageError if it cannot be read."""
    entry = entries.find(f"{name}/{path}")
    if entry is None:
        return f"{path} is missing", FileBlocks(0, block, ())
    if entry.size not in (None, expected.size):  # before anything is read, as it may be large
        return f"{path} has {entry.size} bytes and should have {expected.size}", FileBlocks(0, block, ())
    found, blocks = read_blocks(storage, f"{name}/{path}", expected, block)
    if found.size > expected.size:
        return f"{path} is longer than the {expected.size} bytes that it should have", blocks
    if found.size != expected.size:
        return f"{path} has {found.size} bytes and should have {expected.size}", blocks
    if (own := algorithm_of(found)) != (kind := algorithm_of(expected)):
        raise StorageError(
            f"its digest is of the kind {kind[:40]}, and this storage computes {own}. Configure the storage with the "
            f"digest {kind[:40]!r}"
        )
    return None if found.digest == expected.digest else f"{path} does not hold the bytes that were stored", blocks
