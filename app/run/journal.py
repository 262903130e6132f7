"""The journal of a run: which facts are recorded at which event."""

from __future__ import annotations

import logging
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from attrs import asdict, define, field

from hexloop.app.arguments.recorded import changed_defaults, settings_of
from hexloop.app.assembly.framework import Framework
from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.run.command import command_of_process
from hexloop.domain.events import (
    AnyEvent,
    EpochBegan,
    IrregularWindow,
    Logged,
    Paused,
    SaveFailed,
    StepEnded,
    TrainBegan,
    TrainEnded,
    WindowLeftOut,
)
from hexloop.domain.run import Run
from hexloop.ports.collectives import Collectives, Reduction
from hexloop.ports.logger import Fact, Journal

Transfer = Callable[[Any], Any]


@define
class RunJournal:
    """Follows a run, and records the facts that `hexloop.domain.journal` lists. Losses are read with the next log.

    framework, device: of the run. settings: the arguments of the run. defaults: what those
    of them that were changed would be otherwise; None if it is not known.
    each_step: whether steps are recorded as well as logs and saves. totals: sums numbers over all processes.
    An error is reported once, and the run continues without its journal.
    """

    journal: Journal
    framework: Framework[Any]
    device: str
    settings: Mapping[str, Fact]
    defaults: Mapping[str, Fact] | None
    each_step: bool
    totals: Callable[[Sequence[float]], Sequence[float]]
    _batches: deque[str | None] = field(factory=deque, init=False)
    _losses: list[list[Any]] = field(factory=list, init=False)
    _run: Run[Any, Any] | None = field(default=None, init=False)
    _failed: bool = field(default=False, init=False)
    _paused_at: int | None = field(default=None, init=False)
    _groups: list[Mapping[str, Any]] = field(factory=list, init=False)

    def fingerprinted(self, transfer: Transfer) -> Transfer:
        """Return `transfer`; if steps are recorded, one that first takes the fingerprint of each batch."""
        if not self.each_step:
            return transfer
        fingerprint = self._safely(lambda batch: self._batches.append(self.framework.batch_fingerprint(batch)))

        def fingerprint_and_transfer(batch: Any) -> Any:
            fingerprint(batch)
            return transfer(batch)

        return fingerprint_and_transfer

    def _random(self) -> str:
        return self.framework.random_fingerprint(self.device)

    def follow(
        self, run: Run[Any, Any], groups: Iterable[Mapping[str, Any]] = ()
    ) -> dict[type[AnyEvent], Callable[[Any], None]]:
        """Start with a run; return the event handlers. groups: those of the optimizer, by rules, as plain values."""
        self._run, self._paused_at, self._groups = run, None, list(groups)
        handlers: dict[type[AnyEvent], Callable[[Any], None]] = {
            TrainBegan: self._safely(self._began),
            Logged: self._logged,
            Paused: self._safely(self._paused),
            SaveFailed: self._safely(self._save_failed),
            IrregularWindow: self._irregular,
            TrainEnded: self._safely(self._ended),
        }
        if self.each_step:
            # batches that were read ahead in an epoch that was cut short are dropped
            handlers |= {
                EpochBegan: lambda event: self._batches.clear(),
                StepEnded: self._step_ended,
                WindowLeftOut: self._window_left_out,
            }
        return handlers

    def close(self) -> None:
        """Record the end of the run, however it ended, and close the journal."""
        run, self._run = self._run, None
        if run is not None:  # it ended without an event
            self.journal.note("ended", step=run.state.step)
        self._batches.clear()
        self._losses.clear()
        self.journal.close()

    def _began(self, event: TrainBegan) -> None:
        assert self._run is not None
        name = self._run.state.run
        command = command_of_process(sys.orig_argv, os.environ)
        known: dict[str, Any] = {} if self.defaults is None else {"defaults": self.defaults}
        if self._groups:
            known["groups"] = self._groups
        self.journal.note(
            "began",
            run=name,
            step=event.step,
            total_steps=self._run.plan.total_steps,
            settings=self.settings,
            **known,
            command=command,
            random=self._random(),
        )

    def _step_ended(self, event: StepEnded) -> None:
        """Keep the losses even if recording fails, because the other processes keep theirs."""
        self._losses.append(list(event.losses))
        self._safely(self._note_step)(event)

    def _note_step(self, event: StepEnded) -> None:
        assert self._run is not None
        window = len(event.losses)
        batches = [self._batches.popleft() for _ in range(min(window, len(self._batches)))]
        self.journal.note(
            "step", step=event.step, batches=batches, learning_rate=self._run.state.learning_rate, random=self._random()
        )

    def _window_left_out(self, event: WindowLeftOut) -> None:
        """Drop the fingerprints of batches that were not trained on."""
        for _ in range(min(event.micro_batches, len(self._batches))):
            self._batches.popleft()

    def _irregular(self, event: IrregularWindow) -> None:
        if event.back_to is not None:  # the steps since the last log are void
            self._losses.clear()
        self._safely(self._note_irregular)(event)

    def _note_irregular(self, event: IrregularWindow) -> None:
        facts = {name: value for name, value in asdict(event).items() if name not in ("first", "position", "kind")}
        indices = None if event.indices is None else list(event.indices)
        self.journal.note("irregular", what=event.kind, first_sample=event.position, **{**facts, "indices": indices})

    def _logged(self, event: Logged) -> None:
        """Sum the losses of all processes in the steps since the last log, and record them."""
        losses: Sequence[float] = ()
        if self._losses:
            values = iter(self.framework.numbers_of([handle for shares in self._losses for handle in shares]))
            losses = self.totals([sum(next(values) for _ in shares) for shares in self._losses])
        self._losses.clear()
        self._safely(self._note_log)(event, losses)

    def _note_log(self, event: Logged, losses: Sequence[float]) -> None:
        if losses:
            self.journal.note("losses", first=event.step - len(losses) + 1, losses=list(losses))
        values = {name: value for name, value in event.values.items() if isinstance(value, int | float | str)}
        known = {} if self._run is None else {"samples": self._run.state.samples}
        self.journal.note("logged", step=event.step, **known, values=values, random=self._random())

    def _paused(self, event: Paused) -> None:
        """Record a pause once; the event comes again and again while the run is paused."""
        if event.step != self._paused_at:
            self._paused_at = event.step
            self.journal.note("paused", step=event.step)

    def _save_failed(self, event: SaveFailed) -> None:
        self.journal.note("save", phase="failed", step=event.step, error=str(event.error))

    def _ended(self, event: TrainEnded) -> None:
        self._run = None
        self.journal.note("ended", step=event.step, stopped=event.stopped, reasons=list(event.reasons))

    def _safely(self, act: Callable[..., None]) -> Callable[..., None]:
        def act_unless_failed(*subjects: Any) -> None:
            if self._failed:
                return
            try:
                act(*subjects)
            except Exception as error:
                self._failed = True
                logging.getLogger("hexloop").warning(
                    "The journal failed (%s: %s); the run continues without it. Set journal='off' to disable it.",
                    type(error).__name__,
                    error,
                )

        return act_unless_failed


def journal_for(parts: TrainerParts) -> RunJournal:
    """Return the journal of the next run."""
    args, adapters = parts.args, parts.adapters
    settings = settings_of(args)
    return RunJournal(
        adapters.journal,
        adapters.framework,
        adapters.device.name,
        settings,
        changed_defaults(args, settings),
        args.journal == "steps",
        totals_over_ranks(adapters.data_collectives),
    )


def note_of_saves(journal: Journal) -> Callable[..., None]:
    """Return what records the phases of a save, the last with the digests of the weights. Any thread may call it."""

    def note(phase: str, **facts: Any) -> None:
        digests = facts.pop("digests", {})
        if phase == "published":
            facts["weights"] = {
                path: digest
                for path, digest in sorted(digests.items())
                if path.startswith(("model", "hexloop-model")) and path.endswith(".safetensors")
            }
        journal.note("save", phase=phase, **facts)

    return note


def totals_over_ranks(collectives: Collectives) -> Callable[[Sequence[float]], Sequence[float]]:
    """Return a function that sums numbers over all processes, element by element. Collective."""

    def totals(numbers: Sequence[float]) -> Sequence[float]:
        if collectives.world_size == 1:
            return numbers
        return collectives.start_reduction(numbers, Reduction.SUM).result()

    return totals
