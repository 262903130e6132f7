"""The key with which the checkpoints of a run, or of a command, are signed and verified."""

from __future__ import annotations

import os
import stat
import warnings

from hexloop.adapters.signatures import signatures_of
from hexloop.domain.checkpoints.signatures import CRYPTOGRAPHIC, SIGNING_DIGEST
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.regular_files import read_file
from hexloop.ports.storage import Signatures, Storage


def read_key(path: str | os.PathLike[str] | None, source: str = "checkpoint_key") -> Signatures | None:
    """Return the signatures by the key in a file; None without a file. Warns if other users may read or replace it.

    source: the argument or option that names the file, for messages, which do not repeat its path.
    Raises ConfigurationError if the file cannot be read or holds no key.
    """
    if path is None:
        return None
    path = os.path.expanduser(os.fspath(path))
    try:
        key = read_file(path, "note_bytes")
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except OSError as error:
        reason = error.strerror or "it is not a regular file"
        raise ConfigurationError(f"The file that {source} names cannot be read: {reason}. Name a key file.") from error
    try:
        signatures = signatures_of(key)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"The file that {source} names is not a key: {problem}." for problem in error.problems
        ) from error
    others = stat.S_IRWXG | stat.S_IRWXO if signatures.can_sign else stat.S_IWGRP | stat.S_IWOTH
    if os.name == "posix" and mode & others:
        warnings.warn(
            f"Other users can {'read' if signatures.can_sign else 'replace'} the key file that {source} names (its "
            f"permissions are {mode:o}), and with it sign checkpoints. Restrict it: chmod 600",
            stacklevel=2,
        )
    return signatures


def refuse_forgeable_digests(storage: Storage) -> None:
    """Raise ConfigurationError if a storage that the caller passed computes digests that a signature cannot rely on.

    Of a storage that does not state its digest, this is known only when it has written something.
    """
    digest = storage.capabilities.digest
    if digest is not None and digest not in CRYPTOGRAPHIC:
        raise ConfigurationError(
            f"You chose checkpoint_key, but storage={storage.capabilities.location} computes digests of the kind "
            f"{digest}, which can be forged; configure the storage with digest={SIGNING_DIGEST!r}."
        )


def refuse_public_key(storage: Storage) -> None:
    """Raise ConfigurationError if checkpoints are to be signed and the key only verifies."""
    signatures = storage.capabilities.signatures
    if signatures is not None and not signatures.can_sign:
        raise ConfigurationError(
            "The file that checkpoint_key names holds a public key, which only verifies checkpoints. A run that saves "
            "signs them: name the private key, or set save_strategy='no'."
        )
