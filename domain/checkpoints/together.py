"""What all processes of a run do at once, so that it fails on all of them or on none."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar, cast

from hexloop.domain.errors import CheckpointError, StorageError, StorageFullError, UnreadableCheckpointError
from hexloop.ports.collectives import Collectives, Json

Value = TypeVar("Value", bound=Json)

Said: TypeAlias = "dict[str, Json]"
"""A value, or the kind and the message of an error."""

_KINDS: dict[str, type[Exception]] = {
    kind.__name__: kind for kind in (StorageFullError, UnreadableCheckpointError, CheckpointError, StorageError)
}


def together(collectives: Collectives | None, act: Callable[[], Value]) -> list[Value]:
    """What `act` gave on every rank, by rank; with no collectives this process is alone.

    Where it fails on some, all raise the same kind of error, so that they go on alike: StorageFullError where nothing
    worse happened to any, else that of the first rank to which it did; what else happened to this rank is its cause.
    A rank that dies in it never answers, and the collectives tell the others so.
    """
    if collectives is None or collectives.world_size == 1:
        return [act()]
    said, own = _attempt(act)
    heard = cast("list[Said]", collectives.gather(said))
    failed = [rank for rank, answer in enumerate(heard) if "kind" in answer]
    if failed:
        first = next((rank for rank in failed if heard[rank]["kind"] != StorageFullError.__name__), failed[0])
        if own is not None and said["kind"] == heard[first]["kind"]:
            raise own
        _raise_of(first, heard[first], own)
    return [cast("Value", answer["value"]) for answer in heard]


def by_leader(collectives: Collectives | None, act: Callable[[], Value]) -> Value:
    """What `act` gave on rank 0, the only one that does it. Raises on every rank what it raised there.

    One message to each rank, whatever their number.
    """
    if collectives is None or collectives.world_size == 1:
        return act()
    said, own = _attempt(act) if collectives.rank == 0 else ({}, None)
    heard = cast("Said", collectives.broadcast(said))
    if own is not None:
        raise own
    _raise_of(0, heard)
    return cast("Value", heard["value"])


def _attempt(act: Callable[[], Json]) -> tuple[Said, Exception | None]:
    """What to tell the others of it, and the error that it raised, if any."""
    try:
        return {"value": act()}, None
    except Exception as error:
        kind = next((name for name, kind in _KINDS.items() if isinstance(error, kind)), StorageError.__name__)
        return {"kind": kind, "message": str(error)}, error


def _raise_of(rank: int, answer: Said, own: Exception | None = None) -> None:
    if "kind" in answer:
        error = _KINDS[str(answer["kind"])](f"On rank {rank}: {answer['message']}")
        if own is None:
            raise error
        raise error from own
