"""Randomness by name: words that depend on what they are for and on nothing that was drawn before them."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterable, Iterator

from attrs import field, frozen

from hexloop.domain.errors import ConfigurationError
from hexloop.domain.order import Order


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


# A pair of cells in one column betrays a network of r rounds and sides of m by an excess of about m**(2 - r/2) in one
# of m differences (measured for 4 to 8 rounds): 3e-5 with 10 rounds and sides of 32, which takes over 1e10 samples to
# see. Ten is also what NIST SP 800-38G asks for in FF1.
ROUNDS = 10

WORD = (1 << 64) - 1

# The finaliser of splitmix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014),
# with the constants of Stafford's variant 13. Its last step, a shift by 31, is left out: only the high half is used.
FIRST_SHIFT, FIRST_FACTOR = 30, 0xBF58476D1CE4E5B9
SECOND_SHIFT, SECOND_FACTOR = 27, 0x94D049BB133111EB


@frozen
class Network:
    """A bijection of the cells 0 to rows * columns - 1, counted along the rows.

    `round_keys` are 64-bit words, an even number of them.
    """

    rows: int
    columns: int
    round_keys: tuple[int, ...]

    def __getitem__(self, cell: int) -> int:
        """The cell to which the keys send `cell`, which must be on the grid."""
        row, column = divmod(cell, self.columns)
        for row_key, column_key in zip(self.round_keys[::2], self.round_keys[1::2], strict=True):
            row = (row + round_value(column, row_key, self.rows)) % self.rows
            column = (column + round_value(row, column_key, self.columns)) % self.columns
        return row * self.columns + column


def make_network(cells: int, purpose: str, *numbers: int) -> Network:
    """A network on a nearly square grid of at least `cells` (1 to 2**62) cells, and of less than a row more.

    The keys are the `random_words` of `purpose` and `numbers`.
    """
    rows = math.isqrt(cells - 1) + 1
    return Network(rows, -(-cells // rows), random_words(ROUNDS, purpose, *numbers))


def round_value(half: int, key: int, bound: int) -> int:
    """A keyed hash of `half`, below `bound` (at most 2**32).

    The high half of (32-bit hash times bound) stands for a remainder, which would cost more: Lemire, "Fast random
    integer generation in an interval" (ACM TOMACS 2019).
    """
    word = (half + key) & WORD
    word = ((word ^ word >> FIRST_SHIFT) * FIRST_FACTOR) & WORD
    word = ((word ^ word >> SECOND_SHIFT) * SECOND_FACTOR) & WORD
    return (word >> 32) * bound >> 32


LONGEST = 2**62

# Up to here the order is a table, in which every order is equally likely; on fewer cells a network is less random.
LONGEST_TABLE = 1024


def _possible(length: int) -> int:
    if not 0 <= length <= LONGEST:
        raise ConfigurationError(
            [
                f"You chose a random order of {length} samples, but it can hold 0 to 2**62 of them; "
                "give a data set whose length is in that range."
            ]
        )
    return length


@frozen
class KeyedPermutation(Order):
    """A random order of `length` samples that depends on nothing but `seed`, `epoch` and `length`.

    `seed` and `epoch` are integers of any size or sign. Up to 1024 samples `bijection` is a table; above, it is a
    network on a grid somewhat larger than `length`, and an index outside is sent on until one is inside (cycle walking:
    Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002), which leaves a bijection.
    Raises ConfigurationError for a length below 0 or above 2**62.
    """

    seed: int
    epoch: int
    # A converter, because validators run only after the bijection is made.
    length: int = field(converter=_possible)
    bijection: tuple[int, ...] | Network = field(init=False, repr=False, eq=False)

    @bijection.default
    def _make_bijection(self) -> tuple[int, ...] | Network:
        make = random_order if self.length <= LONGEST_TABLE else make_network
        return make(self.length, "order", self.seed, self.epoch, self.length)

    def __len__(self) -> int:
        return self.length

    def _index_at(self, position: int) -> int:
        index = self.bijection[position]
        while index >= self.length:
            index = self.bijection[index]
        return index
