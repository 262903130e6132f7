"""Driving a run event by event, so that a signal is heeded between two of them and every end can be told of."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from attrs import define, field

from hexloop.adapters.interrupts.signals import SignalInterrupts
from hexloop.domain.events import AnyEvent, CheckpointPublished, Paused, TrainBegan, TrainEnded
from hexloop.domain.requests import SaveRequest

if TYPE_CHECKING:
    from hexloop.app.trainer import Trainer

PAUSE = 0.2
"""Seconds after which a run that stands still looks whether a signal came."""


@define
class Progress:
    """How far a run has come. `published` is the last checkpoint that it wrote, with the step at which it did."""

    began: bool = False
    step: int = 0
    published: tuple[int, str] | None = None
    ended: TrainEnded | None = None
    reasons: list[str] = field(factory=list)

    @property
    def stopped(self) -> bool:
        """Whether the run was asked to end before its last step, and did."""
        return self.ended is not None and self.ended.stopped

    @property
    def saved_last_step(self) -> bool:
        """Whether a checkpoint holds all that was trained."""
        return self.published is not None and self.published[0] == self.step

    def note(self, event: AnyEvent) -> None:
        """The run came to `event`."""
        self.began = True
        self.step = event.step
        if isinstance(event, CheckpointPublished):
            self.published = event.step, event.name
        elif isinstance(event, TrainEnded):
            self.ended = event


def drive(trainer: Trainer, resume: str | bool | None, progress: Progress) -> None:
    """Train to the end; SIGINT or SIGTERM, once the run has begun, asks it to save and to stop. The second interrupts.

    The signal handler itself only notes that it was called: what it asks for takes locks that the code which it
    interrupts may hold.
    """
    signals = SignalInterrupts()
    save: SaveRequest | None = None
    with closing(trainer.stream(resume)) as events, ExitStack() as listening:
        for event in events:
            progress.note(event)
            if isinstance(event, TrainBegan):
                signals.start(_hear(progress.reasons))
                listening.callback(signals.stop)
            elif isinstance(event, Paused):
                trainer.requests.wait_while_paused(PAUSE)
            if progress.reasons and save is None:
                save = trainer.request_save()
                trainer.request_stop(progress.reasons[0])


def _hear(reasons: list[str]) -> Callable[[str], None]:
    """What a signal calls: it notes the reason, and says at once that the signal was heard."""
    process = os.getpid()

    def heard(reason: str) -> None:
        # A loader's worker inherits the handler, and gets a Ctrl-C as well: it goes on, as the run still needs it.
        if os.getpid() == process:
            reasons.append(reason)
            # Not print: the signal may have come in the middle of one.
            os.write(2, f"\nhexloop: {reason}: saving and stopping; a second one stops at once.\n".encode())

    return heard
