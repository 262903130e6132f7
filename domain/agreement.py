"""How the processes of a run come to do the same at the same step, whatever one of them was asked, or decided."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from attrs import define, field

from hexloop.domain.control import Control
from hexloop.domain.requests import NOTHING_ASKED, Asked, Requests
from hexloop.ports.collectives import Collectives, Pending, Reduction


def _nothing_in_flight() -> bool:
    return False


ALL_WRITTEN = Asked(collect=True)


class Agreement(Protocol):
    """Asked at every boundary at which `waiting` says so, on every rank.

    alone: whether there is one process, which may do at once what it is asked, and what it finds done.
    """

    @property
    def alone(self) -> bool:
        """Whether there is nobody to agree with."""
        ...

    @property
    def waiting(self) -> Collection[str] | bool:
        """By its truth, whether `reached` has to be asked at this boundary. The loop looks at each step."""
        ...

    def begin(self, control: Control) -> None:
        """A boundary begins: let `control` say what all ranks are to do at it."""
        ...

    def go_on(self, control: Control) -> None:
        """An action is done, in which callbacks may have decided anew: let `control` say what all ranks are to do."""
        ...

    def reached(self) -> Asked:
        """What all ranks are to do at this boundary because somebody asked for it."""
        ...


@define
class LocalAgreement:
    """One process agrees with itself at once. waiting: the requests that are pending themselves."""

    requests: Requests
    alone = True
    waiting: Collection[str] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.waiting = self.requests.pending

    def begin(self, control: Control) -> None:
        """It does what its callbacks decide."""

    def go_on(self, control: Control) -> None:
        """It does what its callbacks decide."""

    def reached(self) -> Asked:
        """What this process was asked."""
        return self.requests.asked


@define
class SharedAgreement:
    """Several processes agree by one fixed-size reduction, begun at one boundary and read at the next.

    A request so acts two boundaries later at most, at the same step on every rank, and no step waits for it. In the
    same way the ranks agree that all of them have written what they had in flight.

    The switches of callbacks travel with it. A rank on which one is on waits for the reduction at once: what is on
    everywhere, as by a rhythm or by a metric, is done then and there. What is on for some ranks only, all do when the
    next boundary begins, at which the others hear of it, too.
    """

    requests: Requests
    collectives: Collectives
    writing: Callable[[], bool] = _nothing_in_flight
    alone = False
    _under_way: Pending | None = field(default=None, init=False)
    _asked: Asked = field(default=NOTHING_ASKED, init=False)
    _is_news: bool = field(default=False, init=False)
    _late: set[str] = field(factory=set, init=False)

    @property
    def waiting(self) -> bool:
        """Always: another rank may have been asked."""
        return True

    def begin(self, control: Control) -> None:
        """Do what some ranks alone decided at the last boundary, and exchange what is decided now."""
        self._hear()
        control.switch(self._late, True)
        self._late.clear()
        self._exchange(control)

    def go_on(self, control: Control) -> None:
        """Exchange what is decided now."""
        self._hear()
        self._exchange(control)

    def reached(self) -> Asked:
        """What the ranks had been asked between them when they last exchanged it. Raises CollectiveError."""
        if not self._is_news:
            self._hear()
            self._vote([])
        asked, self._asked, self._is_news = self._asked, NOTHING_ASKED, False
        return asked

    def _exchange(self, control: Control) -> None:
        """Switch off what is not on everywhere; the others hear of it when they next come here."""
        own = control.on()
        votes = self._vote(own)
        self._is_news = True
        if own:
            counts = zip(Control.SWITCHES, votes.result()[4:], strict=True)
            control.switch([name for name, count in counts if count < self.collectives.world_size], False)

    def _vote(self, on: Collection[str]) -> Pending:
        """Begin to add up what the ranks are asked, and what is on."""
        own = self.requests.asked
        votes = [own.stop, own.save and not self._asked.save, own.pause, self.writing()]
        votes += [name in on for name in Control.SWITCHES]
        self._under_way = self.collectives.start_reduction(list(map(float, votes)), Reduction.SUM)
        return self._under_way

    def _hear(self) -> None:
        """Read what the ranks said last."""
        if self._under_way is None:
            return
        votes, asked = self._under_way.result(), self._asked
        if asked is NOTHING_ASKED and not any(votes):  # as after most steps
            self._asked = ALL_WRITTEN
            return
        stop, save, pause, writing, *on = votes
        self._asked = Asked(asked.stop or stop > 0, asked.save or save > 0, asked.pause or pause > 0, writing == 0)
        counts = zip(Control.SWITCHES, on, strict=True)
        self._late |= {name for name, count in counts if 0 < count < self.collectives.world_size}


def agreement_for(
    requests: Requests, collectives: Collectives, writing: Callable[[], bool] = _nothing_in_flight
) -> Agreement:
    """The cheapest agreement that serves this many processes. `writing`: whether this one has a save in flight."""
    if collectives.world_size == 1:
        return LocalAgreement(requests)
    return SharedAgreement(requests, collectives, writing)
