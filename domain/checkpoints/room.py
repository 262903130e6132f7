"""Waiting for room on a storage that is full."""

from __future__ import annotations

from collections.abc import Callable

from attrs import define, field

from hexloop.domain.errors import StorageFullError

PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 60.0, 60.0, 60.0)
"""Seconds between one attempt and the next: five minutes in all."""


@define(eq=False)
class RoomMaker:
    """Attempts something that takes room, again and again while there is none.

    wait: waits so many seconds; True says that the attempts are broken off. pauses: seconds before each further one.
    full: what the storage said last, from the first pause on until there is room.
    """

    wait: Callable[[float], object]
    pauses: tuple[float, ...] = PAUSES
    full: StorageFullError | None = field(default=None, init=False)

    def attempt(self, act: Callable[[], None], prune: Callable[[], bool]) -> None:
        """Do it. Raises StorageFullError where there is no room after the last pause.

        prune: removes something that may go, and says whether there was any; after that no pause is made.
        """
        pauses = iter(self.pauses)
        while True:
            try:
                act()
            except StorageFullError as error:
                if prune():
                    continue
                pause = next(pauses, None)
                if pause is None:
                    raise
                self.full = error
                if self.wait(pause) is True:
                    raise
            else:
                self.full = None
                return
