"""Signatures of bytes by a key, so that a change without the key is recognized.

The port knows one key and nothing of checkpoints: what is signed, and where a signature lies, belongs to the domain.
"""

from __future__ import annotations

from typing import Protocol


class Signatures(Protocol):
    """Signs and verifies with one key. The kind of signature is that of the key, never one that a signature claims."""

    @property
    def can_sign(self) -> bool:
        """Whether the key signs; a public key only verifies."""

    def sign(self, data: bytes, /) -> str:
        """Return the signature as one line of ASCII text. Raises ConfigurationError if the key cannot sign."""

    def verify(self, data: bytes, signature: str, /) -> bool:
        """Return whether `signature`, any text, is that of `data` by this key. Never raises."""
