"""One operation that all ranks call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hexloop.domain.errors import CollectiveError

Combine = Callable[[Sequence[Any]], Any]
"""From what the ranks said, in the order of ranks, to the result."""


class Meeting:
    """The ranks' calls of one operation. It is `settled` when all were heard, or when it failed."""

    def __init__(self, size: int, operation: str, combine: Combine) -> None:
        self.settled = False
        self.arrived = 0
        self._size = size
        self._operation = operation
        self._combine = combine
        self._heard: dict[int, Any] = {}
        self._result: Any = None
        self._failure: tuple[str, tuple[int, ...]] | None = None
        self._callers: set[int] = set()

    @property
    def everybody_arrived(self) -> bool:
        """Whether no rank is still to call this operation."""
        return self.arrived == self._size

    def arrive(self, rank: int, operation: str, said: Any, lost: bool) -> None:
        """A rank calls; the meeting fails where it calls something else than the first did."""
        self.arrived += 1
        self._callers.add(rank)
        if self.settled:
            return
        if operation != self._operation:
            self._fail(
                f"Rank {rank} called {operation} where another called {self._operation}, so neither can be answered; "
                "let every rank call the same operations in the same order.",
                (),
            )
        elif not lost:
            self._heard[rank] = said
            if len(self._heard) == self._size:
                self._result = self._combine([self._heard[rank] for rank in range(self._size)])
                self.settled = True

    def time_out(self, timeout: float) -> None:
        """Nobody waits any longer."""
        missing = tuple(rank for rank in range(self._size) if rank not in self._heard)
        self._fail(
            f"The ranks waited {timeout:g} s at {self._operation}, but {list(missing)} of {self._size} never came; "
            "look at what those did last.",
            missing,
        )

    def lose(self, rank: int, cause: str) -> None:
        """A rank that has not called yet never will."""
        if not self.settled and rank not in self._callers:
            self._fail(f"The ranks waited for {self._operation}, but rank {rank} failed: {cause}", (rank,))

    def result(self) -> Any:
        """What came of a settled meeting. Raises CollectiveError where it failed."""
        if self._failure is not None:
            # A new error each time: the ranks' threads would write their tracebacks into the same one.
            raise CollectiveError(*self._failure)
        return self._result

    def _fail(self, message: str, missing: tuple[int, ...]) -> None:
        self.settled = True
        self._failure = message, missing
