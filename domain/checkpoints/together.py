"""What all processes of a run do at once, so that it fails on all of them or on none."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from hexloop.domain.errors import CheckpointError, StorageError, StorageFullError
from hexloop.ports.collectives import Collectives, Json

Value = TypeVar("Value", bound=Json)

_KINDS: dict[str, type[Exception]] = {kind.__name__: kind for kind in (StorageFullError, CheckpointError, StorageError)}


def together(collectives: Collectives | None, act: Callable[[], Value]) -> list[Value]:
    """What `act` gave on every rank, by rank; with no collectives this process is alone.

    Raises its own error where it raised one, else an error of the same kind for the first rank that did. A rank that
    dies in it never answers, and the collectives tell the others so.
    """
    if collectives is None or collectives.world_size == 1:
        return [act()]
    own: Exception | None = None
    said: dict[str, Json] = {}
    try:
        said["value"] = act()
    except Exception as error:
        own = error
        kind = next((name for name, kind in _KINDS.items() if isinstance(error, kind)), StorageError.__name__)
        said = {"kind": kind, "message": str(error)}
    heard = cast("list[dict[str, Value]]", collectives.gather(said))
    if own is not None:
        raise own
    for rank, answer in enumerate(heard):
        if "kind" in answer:
            raise _KINDS[str(answer["kind"])](f"On rank {rank}: {answer['message']}")
    return [answer["value"] for answer in heard]


def by_leader(collectives: Collectives | None, act: Callable[[], Value]) -> Value:
    """What `act` gave on rank 0, the only one that does it. Raises on every rank what it raised there."""
    if collectives is None or collectives.world_size == 1:
        return act()
    return cast("Value", together(collectives, lambda: act() if collectives.rank == 0 else None)[0])
