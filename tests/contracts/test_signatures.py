"""Contract of the Signatures port, run on both kinds of keys, and the files that keys are read from."""

from __future__ import annotations

import hashlib
import hmac
import sys
from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hexloop.adapters.signatures import signatures_of
from hexloop.app.testing.contracts.environment import SignaturesContract
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.storage import Signatures

SECRET = bytes(range(32))
PLAIN = serialization.NoEncryption()


def private_pem(
    key: Ed25519PrivateKey | None = None, encryption: serialization.KeySerializationEncryption = PLAIN
) -> bytes:
    made = key or Ed25519PrivateKey.generate()
    return made.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


def public_pem(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


class TestHmacSignatures(SignaturesContract):
    @pytest.fixture
    def signatures(self) -> Signatures:
        return signatures_of(SECRET)

    @pytest.fixture
    def other(self) -> Signatures:
        return signatures_of(SECRET[::-1])


class TestEd25519Signatures(SignaturesContract):
    @pytest.fixture
    def signatures(self) -> Signatures:
        return signatures_of(private_pem())

    @pytest.fixture
    def other(self) -> Signatures:
        return signatures_of(private_pem())


def test_a_secret_key_signs_with_hmac_sha256() -> None:
    """A secret key's signature is that of Python's hmac."""
    expected = hmac.new(SECRET, b"manifest", hashlib.sha256).hexdigest()
    assert signatures_of(SECRET).sign(b"manifest") == f"hmac-sha256:{expected}"


def test_a_public_key_verifies_and_does_not_sign() -> None:
    """A public key verifies what its private key has signed, and refuses to sign."""
    key = Ed25519PrivateKey.generate()
    private, public = signatures_of(private_pem(key)), signatures_of(public_pem(key))
    assert public.verify(b"manifest", private.sign(b"manifest"))
    assert (private.can_sign, public.can_sign) == (True, False)
    with pytest.raises(ConfigurationError, match="only verifies"):
        public.sign(b"manifest")


def test_a_public_key_is_not_a_secret_key() -> None:
    """An HMAC with the bytes of a public key, which everybody has, is not accepted by that key."""
    public = public_pem(Ed25519PrivateKey.generate())
    forged = f"hmac-sha256:{hmac.new(public, b'manifest', hashlib.sha256).hexdigest()}"
    assert not signatures_of(public).verify(b"manifest", forged)


def test_keys_are_not_shown() -> None:
    """The text of an object that holds a key does not show it."""
    assert repr(signatures_of(SECRET)) == "HmacSignatures()"
    assert repr(signatures_of(private_pem())) == "Ed25519Signatures()"


def ec_pem() -> bytes:
    return generate_private_key(SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, PLAIN
    )


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (lambda: b"", "it has 0 bytes, and a secret key has at least 32"),
        (lambda: b"password", "it has 8 bytes"),
        (ec_pem, "is not an ed25519 key"),
        (lambda: private_pem(encryption=serialization.BestAvailableEncryption(b"x")), "has a password"),
        (lambda: b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "holds no key that can be read"),
        (lambda: b"-----BEGIN PUBLIC KEY-----\n" + b"A" * 100, "holds no key that can be read"),
    ],
)
def test_files_that_are_no_keys_are_refused(key: Callable[[], bytes], reason: str) -> None:
    """Short secrets, keys of other kinds, with passwords or damaged ones are refused, with the reason."""
    with pytest.raises(ConfigurationError, match=reason):
        signatures_of(key())


def test_a_secret_key_needs_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package cryptography a secret key works, and a key in PEM is refused with what to install."""
    pem = private_pem()
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    assert signatures_of(SECRET).verify(b"x", signatures_of(SECRET).sign(b"x"))
    with pytest.raises(ConfigurationError, match=r"pip install 'cryptography>="):
        signatures_of(pem)
