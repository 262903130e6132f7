"""Signing a checkpoint that exists: one of a run without a key, an imported one, or one of another key."""

from __future__ import annotations

from attrs import evolve

from hexloop.domain.checkpoints.blocks import LibraryDigest
from hexloop.domain.checkpoints.manifest import MANIFEST, Manifest
from hexloop.domain.checkpoints.reading import Checkpoint, is_published, verify
from hexloop.domain.checkpoints.signatures import SIGNATURE, SIGNING_DIGEST, forgeable, signature_of
from hexloop.domain.json_documents import read_bytes
from hexloop.ports.storage import Signatures, Storage, Stored

EARLIER = "unsigned-manifest.json"
"""A copy of the manifest while it is replaced."""


def sign_checkpoint(storage: Storage, name: str, signatures: Signatures) -> Checkpoint:
    """Verify a checkpoint by its digests, whatever its signature, sign what was verified, and return it.

    storage: without a key. If the digests can be forged, those of the bytes that were verified replace them, and the
    manifest is written again. A crash leaves a checkpoint that is not signed; the next call completes what it left.
    Nothing else may write to the checkpoint at the same time.
    Raises CheckpointError if it is not good, ConfigurationError if the key cannot sign, and StorageError.
    """
    _complete(storage, name)
    checkpoint = verify(storage, name)
    manifest = checkpoint.manifest
    if forgeable(manifest.files.values()):
        manifest = evolve(manifest, files={path: _digest(checkpoint, path) for path in manifest.files})
    signature = signature_of(signatures, manifest)
    storage.remove(f"{name}/{SIGNATURE}")
    _replace_manifest(storage, name, manifest)
    storage.write(f"{name}/{SIGNATURE}", [signature])
    storage.sync([f"{name}/{SIGNATURE}"])
    return evolve(checkpoint, manifest=manifest)


def _digest(checkpoint: Checkpoint, path: str) -> Stored:
    digest = LibraryDigest(SIGNING_DIGEST)
    for chunk in checkpoint.files(path):
        digest.update(chunk)
    return digest.stored()


def _replace_manifest(storage: Storage, name: str, manifest: Manifest) -> None:
    """Write a manifest in place of another. Until it is durable, there is a copy of the other."""
    current, new = read_bytes(storage.read(f"{name}/{MANIFEST}")), manifest.to_json()
    if current == new:
        return
    storage.write(f"{name}/{EARLIER}", [current])
    storage.sync([f"{name}/{EARLIER}"])
    storage.remove(f"{name}/{MANIFEST}")
    storage.write(f"{name}/{MANIFEST}", [new])
    storage.sync([f"{name}/{MANIFEST}"])
    storage.remove(f"{name}/{EARLIER}")


def _complete(storage: Storage, name: str) -> None:
    """Put back the manifest if a crash interrupted its replacement."""
    if EARLIER not in {entry.name for entry in storage.list(name)}:
        return
    if not is_published(storage, name):
        earlier = read_bytes(storage.read(f"{name}/{EARLIER}"))
        storage.remove(f"{name}/{MANIFEST}")
        storage.write(f"{name}/{MANIFEST}", [earlier])
        storage.sync([f"{name}/{MANIFEST}"])
    storage.remove(f"{name}/{EARLIER}")
