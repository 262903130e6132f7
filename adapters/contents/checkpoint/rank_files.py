"""Which process of a run reads and writes which files of a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import Enum

from attrs import field, frozen


class Inheritance(Enum):
    """Whose file a process reads if the checkpoint was saved by another number of processes.

    DISTRIBUTED: the files of all are distributed over the processes, so that nothing of a sum is lost.
    OWN: its own, if there is one.
    OWN_OR_FIRST: its own, or else that of rank 0.
    """

    DISTRIBUTED = "distributed"
    OWN = "own"
    OWN_OR_FIRST = "own or first"


EACH_RANKS_OWN = {
    "losses": Inheritance.DISTRIBUTED,
    "random": Inheritance.OWN,
    "data": Inheritance.OWN_OR_FIRST,
}
"""The state that every process has for itself."""


@frozen
class RankFiles:
    """One process among `world_size`. The files of rank 0 have the same names as those of a single process.

    sharded: components of which no process holds the whole; each tensor is written by the process it is assigned to.
    gathered: those of them that are gathered on rank 0 nevertheless.
    """

    rank: int = 0
    world_size: int = 1
    own: dict[str, Inheritance] = field(factory=lambda: dict(EACH_RANKS_OWN))
    sharded: frozenset[str] = frozenset()
    gathered: frozenset[str] = frozenset()

    def is_own(self, name: str) -> bool:
        """Return whether every process has its own state under that name."""
        return name in self.own

    def writes(self, name: str) -> bool:
        """Return whether this process writes the whole state under that name."""
        return self.rank == 0 or name in self.own

    def writers(self, name: str) -> int:
        """Return how many processes the tensors of sharded state are assigned to."""
        return 1 if name in self.gathered else self.world_size

    def file_name(self, name: str) -> str:
        """Return the name, without suffix, of the file that this process writes."""
        return _of_rank(name, self.rank)

    def files_read(self, name: str, names: Collection[str]) -> list[str]:
        """Return the names, without suffix, of the files that this process reads among `names`."""
        inheritance = self.own.get(name)
        if inheritance is None:
            return [name]
        saved = _ranks_in(name, names)
        if inheritance is Inheritance.DISTRIBUTED:
            return [_of_rank(name, rank) for rank in saved[self.rank :: self.world_size]]
        if self.rank in saved:
            return [_of_rank(name, self.rank)]
        return [name] if inheritance is Inheritance.OWN_OR_FIRST else []


ONE_RANK = RankFiles()


def _of_rank(name: str, rank: int) -> str:
    return name if rank == 0 else f"{name}-rank-{rank:05}"


def _ranks_in(name: str, names: Collection[str]) -> list[int]:
    """Return the ranks whose files a checkpoint has; rank 0 always counts."""
    pattern = re.compile(re.escape(name) + r"-rank-(\d{5})\.(?:json|safetensors)")
    return sorted({0, *(int(match.group(1)) for match in map(pattern.fullmatch, names) if match)})
