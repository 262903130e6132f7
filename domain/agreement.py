"""How the processes of a run come to do what one of them was asked, all at the same step."""

from __future__ import annotations

from typing import Protocol

from attrs import define, field

from hexloop.domain.requests import NOTHING_ASKED, Asked, Requests
from hexloop.ports.collectives import Collectives, Pending, Reduction


class Agreement(Protocol):
    """Asked at every boundary at which `waiting` says so, on every rank."""

    @property
    def waiting(self) -> bool:
        """Whether `reached` has to be asked at this boundary."""
        ...

    def reached(self) -> Asked:
        """What all ranks are to do at this boundary."""
        ...


@define
class LocalAgreement:
    """One process agrees with itself at once."""

    requests: Requests

    @property
    def waiting(self) -> bool:
        """Only when something is asked for."""
        return self.requests.pending

    def reached(self) -> Asked:
        """What this process was asked."""
        return self.requests.asked


@define
class SharedAgreement:
    """Several processes agree by one fixed-size reduction, begun at one boundary and read at the next.

    A request so acts two boundaries later at most, at the same step on every rank, and no step waits for it.
    """

    requests: Requests
    collectives: Collectives
    _under_way: Pending | None = field(default=None, init=False)

    @property
    def waiting(self) -> bool:
        """Always: another rank may have been asked."""
        return True

    def reached(self) -> Asked:
        """What the ranks had been asked between them when this was last called. Raises CollectiveError."""
        agreed = NOTHING_ASKED
        if self._under_way is not None:
            stop, save, pause = self._under_way.result()
            agreed = Asked(stop > 0, save > 0, pause > 0)
        own = self.requests.asked
        votes = (float(own.stop), float(own.save and not agreed.save), float(own.pause))
        self._under_way = self.collectives.start_reduction(votes, Reduction.MAXIMUM)
        return agreed


def agreement_for(requests: Requests, collectives: Collectives) -> Agreement:
    """The cheapest agreement that serves this many processes."""
    if collectives.world_size == 1:
        return LocalAgreement(requests)
    return SharedAgreement(requests, collectives)
