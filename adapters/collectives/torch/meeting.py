"""The meeting of a run's processes in a store, before they connect.

A launcher's store outlives the processes of a restart, and torch uses the same keys at every start: a restarted process
finds the addresses of dead ones there and waits for them. So rank 0 draws a name for each start. Every other rank
appears under that name. Once all have appeared, rank 0 asks them to confirm, since one may have ended and be starting
again, and it admits them when all have confirmed. A name that an earlier rank 0 has left admits no live process,
because each draws an identity of its own. Waits are short, so that a process can end at any time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from secrets import token_hex
from typing import Any

from attrs import field, frozen
from torch.distributed import DistStoreError, PrefixStore  # type: ignore[attr-defined]

from hexloop.domain.errors import CollectiveError
from hexloop.domain.wording import enumeration, troubleshooting

OBSERVERS = 64
"""Ranks that find out which ranks are missing when rank 0 is. More would keep the store of a large run busy."""

MOST_NAMED = 16
"""Ranks that a message names."""

REPORT_TIMEOUT = 5.0
"""Seconds for the ranks to report that they are still there, after a failure."""


@frozen
class Bound:
    """A wait of at most `seconds`, which started at `began` of the monotonic clock."""

    seconds: float
    began: float = field(factory=time.monotonic)

    @property
    def left(self) -> float:
        """The seconds that are left; negative after the end."""
        return self.began + self.seconds - time.monotonic()


@frozen
class Attempt:
    """The attempt of one process to meet the others. address: of the store, for messages. bound: of the wait."""

    rank: int
    world_size: int
    address: str
    bound: Bound

    def failure(self, missing: Sequence[int], reason: str = "") -> CollectiveError:
        """Return the error after a wait in vain. missing: empty if this rank does not know. reason: a clause."""
        who = f"{ranks_named(missing)} of {self.world_size}" if missing else f"The {self.world_size} ranks"
        join = "join" if missing else "meet"
        return CollectiveError(
            f"{who} did not {join} within {self.bound.seconds:g} s (rendezvous_timeout). Rank {self.rank} waited at "
            f"{self.address}{reason}. Check that all processes were started, that this address can be reached from "
            "all of them, and that no other program uses the port; a longer rendezvous_timeout gives slow ranks more "
            f"time. For help, {troubleshooting('hangs and timeouts')}.",
            missing,
        )


class Meeting:
    """The meeting as one process sees it. store: the same for all."""

    def __init__(self, store: Any, attempt: Attempt) -> None:
        self._store: Any = PrefixStore("hexloop/meeting", store)
        self._attempt, self._bound = attempt, attempt.bound
        self._rank, self._world_size = attempt.rank, attempt.world_size
        self._interval = min(self._bound.seconds / 10, 0.1 + self._world_size / 5000)
        self._earlier: list[int] | None = None
        self._name = ""

    def join(self) -> str:
        """Wait for all ranks; return the name of this start, which is the same for all and new.

        Raises CollectiveError with the missing ranks, and RuntimeError if the connection to the store is lost.
        """
        self._name = self._host() if self._rank == 0 else self._attend()
        return self._name

    def report(self) -> None:
        """Report that this rank is still there after the processes were to connect."""
        with suppress(RuntimeError):  # the host of the store has ended
            self._store.set(f"{self._name}/after/{self._rank}", "")

    def find_lost(self) -> list[int]:
        """Return the ranks that do not report within a few seconds."""
        keys = {rank: f"{self._name}/after/{rank}" for rank in range(self._world_size)}
        self.report()
        try:
            self._appear(list(keys.values()), REPORT_TIMEOUT)
            return [rank for rank, key in keys.items() if not self._store.check([key])]
        except RuntimeError:  # the store is gone, and with it the process that hosts it
            return [0] if self._rank != 0 else []

    def _host(self) -> str:
        """Publish a name, wait until all others have appeared under it and confirmed that, and admit them."""
        name = token_hex(8)
        here = {rank: f"{name}/here/{rank}" for rank in range(1, self._world_size)}
        while True:
            self._store.set("name", name)  # again, in case a rank 0 that was just being stopped has replaced it
            if self._appear(list(here.values()), self._interval):
                confirmed = list(self._answer_all(name, here, []).values())
                if self._appear(confirmed, self._interval):
                    self._store.set(f"{name}/admitted", "")
                    return name
            if self._bound.left <= 0:
                missing = self._missing(name, here)
                self._dismiss(name, here, missing)
                raise self._attempt.failure(missing)
            self._beat()

    def _attend(self) -> str:
        """Appear under the name that rank 0 publishes, and confirm it when asked, until rank 0 admits all."""
        identity, name, confirmed = token_hex(8), "", False
        while True:
            self._beat()
            if self._appear(["name"], self._interval):
                published = self._store.get("name").decode()
                if published != name:
                    name, confirmed = published, False
                    self._store.set(f"{name}/here/{self._rank}", identity)
                if confirmed and self._appear([f"{name}/admitted"], self._interval):
                    return name
                answer = self._answer(name)
                if answer is not None and answer["to"] == identity:
                    if answer["missing"]:
                        self._store.set(f"{name}/told/{self._rank}", "")
                        raise self._attempt.failure(answer["missing"])
                    self._store.set(f"{name}/confirmed/{identity}", "")
                    confirmed = True
                elif answer is not None:  # to a process that has ended
                    time.sleep(self._interval)
            if self._bound.left <= 0:
                raise self._attempt.failure(self._silent())

    def _answer(self, name: str) -> dict[str, Any] | None:
        key = f"{name}/answer/{self._rank}"
        if not self._appear([key], self._interval):
            return None
        answer: dict[str, Any] = json.loads(self._store.get(key))
        return answer

    def _answer_all(self, name: str, here: dict[int, str], missing: Sequence[int]) -> dict[int, str]:
        """Answer the ranks that have appeared, and return the keys by which they confirm that they are still there.

        missing: the ranks for lack of which the meeting is over; none to ask the ranks to confirm.
        """
        identities = [each.decode() for each in self._store.multi_get(list(here.values()))]
        answers = [json.dumps({"to": identity, "missing": list(missing)}) for identity in identities]
        self._store.multi_set([f"{name}/answer/{rank}" for rank in here], answers)
        return {rank: f"{name}/confirmed/{identity}" for rank, identity in zip(here, identities, strict=True)}

    def _missing(self, name: str, here: dict[int, str]) -> list[int]:
        """Return the ranks that have not appeared, or, if all have, those that have ended since."""
        if absent := [rank for rank, key in here.items() if not self._store.check([key])]:
            return absent
        keys = {rank: f"{name}/confirmed/{self._store.get(key).decode()}" for rank, key in here.items()}
        return [rank for rank, key in keys.items() if not self._store.check([key])]

    def _dismiss(self, name: str, here: dict[int, str], missing: list[int]) -> None:
        """Report the missing ranks to the others, and wait until they know: the store may end with this process."""
        with suppress(RuntimeError):
            present = {rank: key for rank, key in here.items() if rank not in missing}
            if present and missing:
                self._answer_all(name, present, missing)
                self._appear([f"{name}/told/{rank}" for rank in present], REPORT_TIMEOUT)

    def _appear(self, keys: list[str], seconds: float) -> bool:
        """Return whether all keys are in the store, after waiting for them. Raises RuntimeError without the store."""
        try:
            self._store.wait(keys, timedelta(seconds=max(0.01, seconds)))
        except DistStoreError:
            return False
        return True

    def _beat(self) -> None:
        """Count on, so that others see that this rank waits; note the counts of all in the second half of the wait."""
        self._store.add(f"beat/{self._rank}", 1)
        observes = self._earlier is None and self._rank < OBSERVERS
        if observes and self._bound.left < self._bound.seconds / 2:
            self._earlier = self._beats()

    def _beats(self) -> list[int]:
        return [self._store.add(f"beat/{rank}", 0) for rank in range(self._world_size)]

    def _silent(self) -> list[int]:
        """Return the ranks that have not counted on since the first half of the wait."""
        if self._earlier is None:
            return []
        pairs = enumerate(zip(self._earlier, self._beats(), strict=True))
        return [rank for rank, (before, now) in pairs if before == now and rank != self._rank]


def ranks_named(ranks: Sequence[int]) -> str:
    """Return "Rank 2", "Ranks 2 and 3", or, of many, the first ones and how many more."""
    more = len(ranks) - MOST_NAMED
    named = [*ranks[:MOST_NAMED], *([f"{more} more"] if more > 0 else [])]
    return f"Rank {ranks[0]}" if len(ranks) == 1 else f"Ranks {enumeration(named)}"
