"""Which process of a run writes and reads which files of a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import Enum

from attrs import field, frozen


class Inheritance(Enum):
    """Whose file a process reads where the checkpoint is of another number of processes.

    DEALT: the files of all are dealt out, so that nothing of a sum is lost. OWN: its own, if there is one.
    OWN_OR_FIRST: its own, else the first process's.
    """

    DEALT = "dealt"
    OWN = "own"
    OWN_OR_FIRST = "own or first"


EACH_RANKS_OWN = {
    "losses": Inheritance.DEALT,
    "random": Inheritance.OWN,
    "data": Inheritance.OWN_OR_FIRST,
}
"""What every process keeps for itself."""


@frozen
class RankFiles:
    """A process among `world_size`. The first one's files have the names that they have where it is alone.

    dealt: what no process has the whole of; its tensors are written by the processes that they fall to.
    together: of that, what comes together on the first process all the same.
    """

    rank: int = 0
    world_size: int = 1
    own: dict[str, Inheritance] = field(factory=lambda: dict(EACH_RANKS_OWN))
    dealt: frozenset[str] = frozenset()
    together: frozenset[str] = frozenset()

    def is_own(self, name: str) -> bool:
        """Whether every process has its own."""
        return name in self.own

    def writes(self, name: str) -> bool:
        """Whether this process writes all that is kept under that name, and is not given some of it."""
        return self.rank == 0 or name in self.own

    def writers(self, name: str) -> int:
        """How many processes the tensors of what is dealt out fall to."""
        return 1 if name in self.together else self.world_size

    def file_name(self, name: str) -> str:
        """The name, without its ending, of the file that this process writes."""
        return _of_rank(name, self.rank)

    def files_read(self, name: str, names: Collection[str]) -> list[str]:
        """The names, without their endings, of the files that this process reads of a checkpoint's `names`."""
        inheritance = self.own.get(name)
        if inheritance is None:
            return [name]
        saved = _ranks_in(name, names)
        if inheritance is Inheritance.DEALT:
            return [_of_rank(name, rank) for rank in saved[self.rank :: self.world_size]]
        if self.rank in saved:
            return [_of_rank(name, self.rank)]
        return [name] if inheritance is Inheritance.OWN_OR_FIRST else []


ONE_RANK = RankFiles()


def _of_rank(name: str, rank: int) -> str:
    return name if rank == 0 else f"{name}-rank-{rank:05}"


def _ranks_in(name: str, names: Collection[str]) -> list[int]:
    """The processes of whom a checkpoint holds files; the first always counts."""
    pattern = re.compile(re.escape(name) + r"-rank-(\d{5})\.(?:json|safetensors)")
    return sorted({0, *(int(match.group(1)) for match in map(pattern.fullmatch, names) if match)})
