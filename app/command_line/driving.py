"""Driving a run event by event, so that every end of it can be told of."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

from attrs import define, frozen

from hexloop.domain.events import AnyEvent, CheckpointPublished, Paused, TrainEnded
from hexloop.ports.interrupts import Interrupts

if TYPE_CHECKING:
    from hexloop.app.trainer import Trainer

SIGNALS = ("SIGINT", "SIGTERM")
"""What stops a run where its arguments do not say."""


@define
class Progress:
    """How far the run `run` has come. `published` is the last checkpoint that it told of, with its step."""

    began: bool = False
    step: int = 0
    run: str = ""
    published: tuple[int, str] | None = None
    ended: TrainEnded | None = None

    @property
    def stopped(self) -> bool:
        """Whether the run was asked to end before its last step, and did."""
        return self.ended is not None and self.ended.stopped

    @property
    def reason(self) -> str:
        """Why the run was stopped, where anybody said so."""
        return next(filter(None, self.ended.reasons), "") if self.ended is not None else ""

    @property
    def saved_last_step(self) -> bool:
        """Whether a checkpoint holds all that was trained."""
        return self.published is not None and self.published[0] == self.step

    def note(self, event: AnyEvent) -> None:
        """The run came to `event`."""
        self.began = True
        if isinstance(event, CheckpointPublished):
            self.published = event.step, event.name
            return
        self.step = event.step
        if isinstance(event, TrainEnded):
            self.ended = event


@frozen
class Announced:
    """Interrupts of which people are told at once that they were heard."""

    source: Interrupts

    def start(self, ask: Callable[[str], None]) -> None:
        """Listen to the source."""

        def announce_and_ask(reason: str) -> None:
            again = " a second one stops at once." if reason.startswith("signal") else ""
            # Not print: a signal may have come in the middle of one.
            os.write(2, f"\nhexloop: {reason}: saving and stopping;{again}".rstrip(";").encode() + b"\n")
            ask(reason)

        self.source.start(announce_and_ask)

    def stop(self) -> None:
        """Listen no more."""
        self.source.stop()


def drive(trainer: Trainer, resume: str | bool | None, progress: Progress) -> None:
    """Train to the end; what the arguments name as interrupts, else SIGINT and SIGTERM, lets it save and stop."""
    from hexloop.app.trainer import session_of
    from hexloop.app.wiring.adapters import choose_interrupts

    adapters = trainer.adapters
    if trainer.args.interrupts is None:
        adapters.interrupts = choose_interrupts(trainer.args, adapters.clock, [], default_signals=SIGNALS)
    adapters.interrupts = Announced(adapters.interrupts)
    with closing(trainer.stream(resume)) as events:
        for event in events:
            session = session_of(trainer)
            if not progress.began and session is not None:
                progress.run = session.run.state.run
            progress.note(event)
            if isinstance(event, Paused) and session is not None:
                session.wait_while_paused()
