"""What the ranks of a run do together: an action on one or all of them, the division of work, and the sum of losses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, SupportsFloat, TypeAlias, TypeVar, cast

from attrs import define, field, frozen

from hexloop.domain.errors import CheckpointError, StorageError, StorageFullError, UnreadableCheckpointError
from hexloop.ports.collectives import Collectives, Json, Reduction
from hexloop.ports.learner import Losses, WindowValues
from hexloop.ports.state import Part

Value = TypeVar("Value", bound=Json)
Loss_contra = TypeVar("Loss_contra", contravariant=True)

_Outcome: TypeAlias = "dict[str, Json]"
"""The value of an action, or the kind and message of its error."""

_KINDS: dict[str, type[Exception]] = {
    kind.__name__: kind for kind in (StorageFullError, UnreadableCheckpointError, CheckpointError, StorageError)
}


def run_on_rank0(collectives: Collectives | None, act: Callable[[], Value]) -> Value:
    """Run `act` on rank 0 and return its value on every rank.

    If it raises, rank 0 raises that error, and the others a CheckpointError or StorageError with its message.

    Costs one broadcast. With `collectives=None`, or one process, `act` is simply called.
    """
    if collectives is None or collectives.world_size == 1:
        return act()
    outcome, own = _attempt(act) if collectives.rank == 0 else ({}, None)
    received = cast("_Outcome", collectives.broadcast(outcome))
    if own is not None:
        raise own
    _raise_error_of(0, received)
    return cast("Value", received["value"])


def run_on_all_ranks(collectives: Collectives | None, act: Callable[[], Value]) -> list[Value]:
    """Run `act` on every rank and return all values, by rank. With `collectives=None` there is one process.

    If it raises on some ranks, all ranks raise the same kind of error, so that all handle it in the same way:
    StorageFullError if no rank had a worse error, otherwise the error of the first rank that had one. An error of this
    rank is the cause of the one that is raised. If a rank dies in `act`, the collectives raise CollectiveError.
    """
    if collectives is None or collectives.world_size == 1:
        return [act()]
    outcome, own = _attempt(act)
    outcomes = cast("list[_Outcome]", collectives.gather(outcome))
    failed = [rank for rank, received in enumerate(outcomes) if "kind" in received]
    if failed:
        first = next((rank for rank in failed if outcomes[rank]["kind"] != StorageFullError.__name__), failed[0])
        if own is not None and outcome["kind"] == outcomes[first]["kind"]:
            raise own
        _raise_error_of(first, outcomes[first], own)
    return [cast("Value", received["value"]) for received in outcomes]


def _attempt(act: Callable[[], Json]) -> tuple[_Outcome, Exception | None]:
    """Call `act` and return what to send to the other ranks, and the error that it raised, if any."""
    try:
        return {"value": act()}, None
    except Exception as error:
        kind = next((name for name, kind in _KINDS.items() if isinstance(error, kind)), StorageError.__name__)
        return {"kind": kind, "message": str(error)}, error


def _raise_error_of(rank: int, outcome: _Outcome, own: Exception | None = None) -> None:
    if "kind" in outcome:
        error = _KINDS[str(outcome["kind"])](f"On rank {rank}: {outcome['message']}")
        if own is None:
            raise error
        raise error from own


def assign_to_ranks(sizes: Sequence[int], world_size: int) -> list[int]:
    """Return the rank that each item of a sequence is assigned to, given the items' sizes in bytes.

    Consecutive items go to the same rank or to consecutive ranks, and each rank gets about as many bytes. The result
    only depends on the arguments, so every process computes the same without communicating.
    """
    total, begun, owners = sum(sizes), 0, []
    for size in sizes:
        middle = 2 * begun + size
        owners.append(min(world_size - 1, middle * world_size // (2 * total)) if total else 0)
        begun += size
    return owners


@define
class SharedLosses(Generic[Loss_contra]):
    """The Losses port over several processes, each of which computes its share of the loss of a window.

    The shares are summed only when the loss is read, which happens at the same step on every rank. So are those of the
    loss's components, which need a second exchange if there are any: ranks may have others.
    """

    own: Losses[Loss_contra]
    collectives: Collectives
    _components: dict[str, float] = field(factory=dict, init=False)

    def add(self, loss: Loss_contra) -> None:
        """Add one share of this process."""
        self.own.add(loss)

    def drain(self) -> float:
        """Return the sum over all processes and reset it. Waits for the slowest rank; raises CollectiveError."""
        total, own = self.own.drain(), self.own.drain_components()
        total, named = self.collectives.start_reduction([total, float(len(own))], Reduction.SUM).result()
        self._components = self._summed(own) if named else {}
        return total

    def drain_components(self) -> dict[str, float]:
        """Return the sums over all processes that the last drain found."""
        found, self._components = self._components, {}
        return found

    def _summed(self, own: Mapping[str, float]) -> dict[str, float]:
        summed: dict[str, float] = {}
        for received in self.collectives.gather({name: repr(value) for name, value in own.items()}):
            for name, value in cast("dict[str, str]", received).items():  # as texts, because JSON has no NaN
                summed[name] = summed.get(name, 0.0) + float(value)
        return summed

    def export(self) -> Iterator[Part]:
        """Export this process's own sum."""
        return self.own.export()

    def load(self, parts: Iterable[Part]) -> None:
        """Load an exported sum."""
        self.own.load(parts)


@frozen
class SharedWindowValues(Generic[Loss_contra]):
    """The WindowValues port over several processes: losses are sums of the ranks' shares, norms those of all ranks.

    What one rank computed that is not finite makes the value not finite on every rank. One reduction a drain.
    """

    own: WindowValues[Loss_contra]
    collectives: Collectives

    def add(self, shares: Sequence[Loss_contra], gradient_norm: SupportsFloat | None) -> None:
        """Add a window of this process."""
        self.own.add(shares, gradient_norm)

    def drain(self) -> Sequence[tuple[float, float | None]]:
        """Return the values of the whole run; see `WindowValues.drain`. Waits for the slowest rank."""
        values = self.own.drain()
        if not values:
            return values
        numbers = [number for loss, norm in values for number in (loss, 0.0 if norm is None else norm)]
        summed = self.collectives.start_reduction(numbers, Reduction.SUM).result()
        size, norms = self.collectives.world_size, (norm for _, norm in values)
        return [
            (loss, None if norm is None else total / size)
            for loss, total, norm in zip(summed[::2], summed[1::2], norms, strict=True)
        ]
