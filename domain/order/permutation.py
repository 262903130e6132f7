"""The random order of an epoch as a function, not a list: any position in constant time and memory."""

from __future__ import annotations

from attrs import field, frozen

from hexloop.domain.errors import ConfigurationError
from hexloop.domain.order import Order
from hexloop.domain.order.keys import random_order
from hexloop.domain.order.network import Network, make_network

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
