"""How the ranks of a simulated world ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar, cast

from attrs import frozen

from hexloop.domain.errors import CollectiveError

Result = TypeVar("Result")


@frozen
class Outcome(Generic[Result]):
    """How a rank ended: with a `value`, or with the `error` that it raised."""

    rank: int
    value: Result | None = None
    error: BaseException | None = None


def values_of(outcomes: Sequence[Outcome[Result]]) -> list[Result]:
    """The ranks' values; raises the first error, in the order of ranks, that is no CollectiveError, else the first."""
    errors = [(outcome.rank, outcome.error) for outcome in outcomes if outcome.error is not None]
    if errors:
        rank, error = min(errors, key=lambda failed: isinstance(failed[1], CollectiveError))
        error.add_note(f"in rank {rank} of {len(outcomes)}")
        raise error
    return [cast(Result, outcome.value) for outcome in outcomes]
