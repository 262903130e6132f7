"""Randomness by name: words that depend on what they are for and on nothing that was drawn before them."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator


def random_words(count: int, purpose: str, *numbers: int) -> tuple[int, ...]:
    """`count` independent uniform 64-bit words, named by `purpose` (one word of text) and integers of any size or sign.

    The bytes are those of SHAKE-256 (NIST FIPS 202), so that no two names, however close, have related words.
    """
    name = " ".join([purpose, *(format(number, "x") for number in numbers)])
    return struct.unpack(f"<{count}Q", hashlib.shake_256(name.encode()).digest(8 * count))


def random_order(length: int, purpose: str, *numbers: int) -> tuple[int, ...]:
    """range(length) in an order named as `random_words` are, each of the length! orders as likely as the next.

    The indices are sorted by a random word each; two words agree with a probability below length**2 / 2**65.
    """
    return tuple(sorted(range(length), key=random_words(length, purpose, *numbers).__getitem__))


def sample_key(seed: int, epoch: int, position: int) -> int:
    """The 64-bit key of the random streams of the sample at `position` of `epoch`, the same in whichever process.

    It is the one word that `random_words` has for "sample", `seed`, `epoch` and `position`.
    """
    return next(sample_keys(seed, epoch, (position,)))


def sample_keys(seed: int, epoch: int, positions: Iterable[int]) -> Iterator[int]:
    """The `sample_key` of each position, at half its price: the beginning of the name is hashed once."""
    begun = hashlib.shake_256(f"sample {seed:x} {epoch:x} ".encode())
    for position in positions:
        named = begun.copy()
        named.update(b"%x" % position)
        yield int.from_bytes(named.digest(8), "little")
