"""What the processes of a run agree on.

Values are plain numbers and JSON-like objects on the host: agreement never touches a device, so that it can run beside
the training step. `start_reduction` exists so that a request may be agreed on without a step waiting for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Protocol, TypeAlias

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | dict[str, Json] | None"


class Reduction(Enum):
    """How the ranks' numbers are made one."""

    SUM = "sum"
    MAXIMUM = "maximum"
    MINIMUM = "minimum"


class Pending(Protocol):
    """A reduction under way."""

    def result(self) -> tuple[float, ...]:
        """The reduced numbers; waits for the slowest rank. Raises hexloop's CollectiveError where one never comes."""
        ...


class Collectives(Protocol):
    """The processes of one run, seen from one of them."""

    @property
    def rank(self) -> int:
        """This process's number, from 0."""
        ...

    @property
    def world_size(self) -> int:
        """How many processes there are."""
        ...

    def start_reduction(self, values: Sequence[float], reduction: Reduction) -> Pending:
        """Begin to reduce as many numbers as every other rank, element by element."""
        ...

    def gather(self, value: Json) -> list[Json]:
        """Every rank's value, by rank, on every rank."""
        ...

    def broadcast(self, value: Json, source: int = 0) -> Json:
        """The value of rank `source`, on every rank."""
        ...

    def barrier(self, name: str) -> None:
        """Wait until every rank is here; the error names those that never came."""
        ...

    def apart(self) -> Collectives:
        """The same processes, for another thread, whose operations are not mixed up with these. Collective."""
        ...

    def tell_failure(self, cause: str) -> None:
        """Let the others, who wait for this rank in vain from now on, hear why. Never fails, and waits for nobody."""
        ...

    def explain(self, error: BaseException) -> BaseException:
        """A CollectiveError that says who is to blame, where `error` is what losing a rank led to; else `error`."""
        ...
