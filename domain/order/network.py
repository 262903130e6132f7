"""A keyed bijection of a grid of cells: a Feistel network that adds instead of xoring, so that any sides will do.

After the generalised Feistel construction of Black and Rogaway, "Ciphers with arbitrary finite domains" (CT-RSA 2002).
All arithmetic is that of unsigned 64-bit words that wrap, for grids of up to 2**62 cells.
"""

from __future__ import annotations

import math

from attrs import frozen

from hexloop.domain.order.keys import random_words

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
