"""Communication between the processes of a run.

Values are plain numbers and JSON-like objects on the host: communication never touches a device, so that it can overlap
with the training step. `start_reduction` exists so that ranks can agree on a request without a step waiting for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Protocol, TypeAlias

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | dict[str, Json] | None"


class Reduction(Enum):
    """How the ranks' numbers are combined."""

    SUM = "sum"
    MAXIMUM = "maximum"
    MINIMUM = "minimum"


class Pending(Protocol):
    """A reduction in progress."""

    def result(self) -> tuple[float, ...]:
        """Return the reduced numbers, waiting for the slowest rank.

        Raises:
            CollectiveError: if a rank never arrives.
        """


class Collectives(Protocol):
    """The processes of one run, as seen by one of them."""

    @property
    def rank(self) -> int:
        """Number of this process, from 0."""

    @property
    def world_size(self) -> int:
        """Number of processes."""

    def start_reduction(self, values: Sequence[float], reduction: Reduction) -> Pending:
        """Start an element-wise reduction; every rank passes the same number of values.

        Args:
            values: as many numbers as every other rank passes.
            reduction: how the numbers of the ranks are combined.
        """

    def gather(self, value: Json) -> list[Json]:
        """Return every rank's value, by rank, on every rank.

        Args:
            value: an object that JSON can hold.
        """

    def broadcast(self, value: Json, source: int = 0) -> Json:
        """Return the value of rank `source` on every rank.

        Args:
            value: an object that JSON can hold; ignored on other ranks than `source`.
            source: the rank whose value is returned.
        """

    def barrier(self, name: str) -> None:
        """Wait for all ranks; the error names those that never arrived.

        Args:
            name: what is waited for, for the error.
        """

    def among(self, ranks: Sequence[int]) -> Collectives:
        """Return the collectives of some of the processes, this one among them, numbered in ascending order.

        Collective over these processes, all of which pass the same ranks.

        Args:
            ranks: the ranks of some of the processes.

        Raises:
            ValueError: if this one is not there.
        """

    def apart(self) -> Collectives:
        """Return the collectives of the same processes for another thread, separate from these. Collective."""

    def tell_failure(self, cause: str) -> None:
        """Report to the other ranks why this one fails. Never raises, and waits for no rank.

        Args:
            cause: the error of this rank.
        """

    def explain(self, error: BaseException) -> BaseException:
        """Return a CollectiveError that names the lost rank if that is what `error` results from; otherwise `error`.

        Args:
            error: what a rank caught.
        """
