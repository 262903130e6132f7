"""Signatures by a secret key that all readers share (HMAC), and by a pair of keys (ed25519).

HMAC needs only the standard library, and is the implementation for tests as well. ed25519 needs the package
cryptography, from the extra `signing`, which is imported when such a key is read.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING

from attrs import field, frozen

from hexloop.domain.errors import ConfigurationError
from hexloop.domain.installation import how_to_install

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

    from hexloop.ports.storage import Signatures

SHORTEST_KEY = 32
"""Bytes of a secret key: the length of the HMAC's digest. A shorter one, such as a password, could be guessed."""

PEM = b"-----BEGIN "
"""The start of a file with one key of a pair. No other file is taken for one, nor such a file for a secret key."""

HMAC, ED25519 = "hmac-sha256:", "ed25519:"
"""The start of a signature of each kind, before its hexadecimal digits."""


@frozen
class HmacSignatures:
    """HMAC-SHA256 with a secret key of at least `SHORTEST_KEY` bytes; who verifies can also sign.

    Args:
        key: the secret key.
    """

    _key: bytes = field(repr=False)

    @property
    def can_sign(self) -> bool:
        """Always."""
        return True

    def sign(self, data: bytes) -> str:
        """Return "hmac-sha256:" and 64 hexadecimal digits."""
        return f"{HMAC}{hmac.new(self._key, data, hashlib.sha256).hexdigest()}"

    def verify(self, data: bytes, signature: str) -> bool:
        """Compare in constant time."""
        return hmac.compare_digest(self.sign(data).encode(), signature.encode(errors="replace"))


@frozen
class Ed25519Signatures:
    """ed25519. private: None if the key is a public one, which verifies and does not sign."""

    _public: Ed25519PublicKey = field(repr=False)
    _private: Ed25519PrivateKey | None = field(default=None, repr=False)

    @property
    def can_sign(self) -> bool:
        """Whether the private key is known."""
        return self._private is not None

    def sign(self, data: bytes) -> str:
        """Return "ed25519:" and 128 hexadecimal digits. Raises ConfigurationError for a public key."""
        if self._private is None:
            raise ConfigurationError("A public key only verifies signatures; sign with the private key.")
        return f"{ED25519}{self._private.sign(data).hex()}"

    def verify(self, data: bytes, signature: str) -> bool:
        """Verify with the public key."""
        from cryptography.exceptions import InvalidSignature

        try:
            self._public.verify(bytes.fromhex(signature.removeprefix(ED25519)), data)
        except (InvalidSignature, ValueError):
            return False
        return signature.startswith(ED25519)


def signatures_of(key: bytes) -> Signatures:
    """Return the signatures by a key, given the bytes of its file.

    key: an ed25519 key in PEM, private or public, or else a secret key: any `SHORTEST_KEY` bytes or more.
    Raises ConfigurationError with what is wrong with the key, as a clause ("it ...").
    """
    if key.startswith(PEM):
        return _pair(key)
    if len(key) < SHORTEST_KEY:
        raise ConfigurationError(
            f"it has {len(key)} bytes, and a secret key has at least {SHORTEST_KEY}; make one with "
            "`head -c 32 /dev/urandom > FILE`"
        )
    return HmacSignatures(key)


def _pair(key: bytes) -> Ed25519Signatures:
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
    except ImportError as error:
        raise ConfigurationError(
            f"it is in PEM, which needs the package cryptography; {how_to_install('signing')}, or use a secret key of "
            f"{SHORTEST_KEY} random bytes"
        ) from error
    is_public = b"PUBLIC KEY" in key.partition(b"\n")[0]
    try:
        found = load_pem_public_key(key) if is_public else load_pem_private_key(key, password=None)
    except TypeError as error:  # of a key with a password
        raise ConfigurationError("its key has a password, which a run cannot ask for; remove the password") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigurationError("its PEM holds no key that can be read; make a new one") from error
    if isinstance(found, Ed25519PublicKey):
        return Ed25519Signatures(found)
    if isinstance(found, Ed25519PrivateKey):
        return Ed25519Signatures(found.public_key(), found)
    raise ConfigurationError(
        "its key is not an ed25519 key; make one with `openssl genpkey -algorithm ed25519 -out FILE`"
    )
