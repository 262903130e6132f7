"""Signatures of checkpoints: a file beside the manifest, over the manifest's bytes.

The manifest has the digests of all other files, so the signature covers the whole checkpoint, as long as the digests
are cryptographic: files with a given xxh3 digest are easily made. The signature is a file of its own, so that the
manifest stays what it was for readers that know no signatures, and the last file that is written.
"""

from __future__ import annotations

from collections.abc import Iterable

from hexloop.domain.checkpoints.blocks import algorithm_of
from hexloop.domain.checkpoints.manifest import Manifest, unseal
from hexloop.domain.errors import ConfigurationError, IrregularFileError, MissingFileError, SignatureError
from hexloop.domain.json_documents import read_bytes
from hexloop.ports.storage import Signatures, Storage, Stored

SIGNATURE = "manifest.signature"
"""The file with the signature of the manifest that it is beside."""

SIGNING_DIGEST = "blake2b"
"""The digest of the files of checkpoints that are signed."""

CRYPTOGRAPHIC = frozenset({SIGNING_DIGEST, "blake2s", "sha256", "sha384", "sha512", "sha3_256", "sha3_384", "sha3_512"})
"""Digests for which no two files with the same one can be made."""

MOST_SIGNATURE_BYTES = 4096

_PURPOSE = b"hexloop: manifest of a checkpoint\n"
"""Signed before the manifest, so that nothing else that the key has signed is taken for a manifest."""


def forgeable(files: Iterable[Stored]) -> list[str]:
    """Return the kinds of digests that are not cryptographic."""
    return sorted({algorithm_of(stored) for stored in files} - CRYPTOGRAPHIC)


def signature_of(signatures: Signatures, manifest: Manifest) -> bytes:
    """Return the bytes of the signature's file. Raises ConfigurationError if the digests are not cryptographic."""
    if kinds := forgeable(manifest.files.values()):
        raise ConfigurationError(
            f"The storage computes digests of the kind {', '.join(kinds)}, which can be forged, so a signature would "
            f"not cover the files. Configure the storage with the digest {SIGNING_DIGEST!r}."
        )
    return f"{signatures.sign(_PURPOSE + manifest.to_json())}\n".encode()


def check_signature(storage: Storage, name: str, manifest: bytes) -> None:
    """Check the signature of a manifest's bytes, before they are read as one. No-op if the storage has no key.

    Raises DamagedCheckpointError if the manifest is damaged, and SignatureError if the signature is missing or is not
    that of these bytes by the storage's key, both as a clause.
    """
    signatures = storage.capabilities.signatures
    if signatures is None:
        return
    unseal(manifest)  # damage is told apart from a change on purpose
    try:
        found = read_bytes(storage.read(f"{name}/{SIGNATURE}"), MOST_SIGNATURE_BYTES)
    except MissingFileError:
        raise SignatureError(
            f"it is not signed. If you trust it, sign it: hexloop checkpoints sign {name} --key FILE"
        ) from None
    except (IrregularFileError, ValueError) as error:
        raise SignatureError(f"its {SIGNATURE} is invalid: {str(error).removesuffix('.')}") from error
    text = found.removesuffix(b"\n").decode("ascii", "replace")
    if not signatures.verify(_PURPOSE + manifest, text):
        raise SignatureError(
            "its signature is not by this key, or it was changed without the key. Use the key of its run; if "
            f"you trust it as it is, sign it: hexloop checkpoints sign {name} --key FILE"
        )


def check_digests(storage: Storage, manifest: Manifest) -> None:
    """Raise SignatureError if the storage has a key and the manifest has digests that can be forged."""
    kinds = forgeable(manifest.files.values()) if storage.capabilities.signatures is not None else []
    if kinds:
        raise SignatureError(
            f"its digests are of the kind {', '.join(kinds)[:80]}, which can be forged, so its signature does not "
            "cover its files. If you trust it, sign it again: hexloop checkpoints sign"
        )
