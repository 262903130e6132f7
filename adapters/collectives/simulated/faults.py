"""What happens to the ranks of a simulated world, by plan."""

from __future__ import annotations

from typing import TypeAlias

from attrs import field, frozen
from attrs.validators import ge


class RankKilled(BaseException):
    """The process of a rank is no more. Not an Exception: nothing that handles errors stops it."""


@frozen
class Kill:
    """The process of `rank` dies as it enters its operation number `operation`, counted from 1."""

    rank: int
    operation: int = field(validator=ge(1))


@frozen
class Delay:
    """`rank` enters its operation number `operation` so many seconds late, by the clock of the world."""

    rank: int
    operation: int = field(validator=ge(1))
    seconds: float = field(validator=ge(0))


@frozen
class Drop:
    """What `rank` says in its operation number `operation` is lost; `rank` waits for the answer like any other."""

    rank: int
    operation: int = field(validator=ge(1))


Fault: TypeAlias = Kill | Delay | Drop
