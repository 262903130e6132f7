"""How the processes of a run come to do what one of them was asked, all at the same step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from attrs import define, field

from hexloop.domain.requests import NOTHING_ASKED, Asked, Requests
from hexloop.ports.collectives import Collectives, Pending, Reduction


def _nothing_in_flight() -> bool:
    return False


class Agreement(Protocol):
    """Asked at every boundary at which `waiting` says so, on every rank.

    alone: whether there is one process, which may do at once what it is asked, and what it finds done.
    """

    @property
    def alone(self) -> bool:
        """Whether there is nobody to agree with."""
        ...

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
    alone = True

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

    A request so acts two boundaries later at most, at the same step on every rank, and no step waits for it. In the
    same way the ranks agree that all of them have written what they had in flight.
    """

    requests: Requests
    collectives: Collectives
    writing: Callable[[], bool] = _nothing_in_flight
    alone = False
    _under_way: Pending | None = field(default=None, init=False)

    @property
    def waiting(self) -> bool:
        """Always: another rank may have been asked."""
        return True

    def reached(self) -> Asked:
        """What the ranks had been asked between them when this was last called. Raises CollectiveError."""
        agreed = NOTHING_ASKED
        if self._under_way is not None:
            stop, save, pause, writing = self._under_way.result()
            agreed = Asked(stop > 0, save > 0, pause > 0, collect=writing == 0)
        own = self.requests.asked
        votes = (float(own.stop), float(own.save and not agreed.save), float(own.pause), float(self.writing()))
        self._under_way = self.collectives.start_reduction(votes, Reduction.MAXIMUM)
        return agreed


def agreement_for(
    requests: Requests, collectives: Collectives, writing: Callable[[], bool] = _nothing_in_flight
) -> Agreement:
    """The cheapest agreement that serves this many processes. `writing`: whether this one has a save in flight."""
    if collectives.world_size == 1:
        return LocalAgreement(requests)
    return SharedAgreement(requests, collectives, writing)
