"""One process, which agrees with itself."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from hexloop.ports.collectives import Json, Reduction


@frozen
class Done:
    """A reduction that was over when it began."""

    values: tuple[float, ...]

    def result(self) -> tuple[float, ...]:
        """The numbers."""
        return self.values


class SingleProcessCollectives:
    """Answers the Collectives port in a world of one."""

    rank = 0
    world_size = 1

    def start_reduction(self, values: Sequence[float], reduction: Reduction) -> Done:
        """The numbers themselves, by whatever reduction."""
        return Done(tuple(values))

    def gather(self, value: Json) -> list[Json]:
        """The one value."""
        return [value]

    def broadcast(self, value: Json, source: int = 0) -> Json:
        """The value itself."""
        return value

    def barrier(self, name: str) -> None:
        """Everybody is here."""

    def apart(self) -> SingleProcessCollectives:
        """It does not matter in which thread nothing is done."""
        return self

    def tell_failure(self, cause: str) -> None:
        """Nobody waits."""

    def explain(self, error: BaseException) -> BaseException:
        """There is nobody else to blame."""
        return error
