"""The loggers of a run that are called in the background, and what they do not have yet.

Every item is numbered and written to the spool once, for all of them, before a thread receives it. So a slow logger
costs the run nothing, and the death of the process loses nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial

from attrs import evolve, frozen

from hexloop.domain.background_logger import BackgroundLogger, Receiver, left_in
from hexloop.domain.log_entries import Item, entry_of, item_of, remains, run_entry, run_of
from hexloop.ports.logger import Media, MediaKind, Outcome, Record, RunInformation, SavedModel, Spool
from hexloop.ports.process import Clock

SET_UP = 10.0
"""Seconds for which a run waits until its loggers have started."""

UNKNOWN_END = Outcome("preempted", "The process ended without finishing the run.")

SOON = 1.0
"""Seconds of waiting after which this is reported."""


@frozen
class Left:
    """What a logger does not have at the end.

    Args:
        name: the name of the logger.
        count: how many items it lacks.
        left_out: how many of its items are lost, because there was no room.
        problem: why.
    """

    name: str
    count: int
    left_out: int
    problem: str


class Tracking:
    """Calls loggers in the background, with a spool that they share.

    Args:
        spool: the items that loggers lack, on disk.
        clock: tells the time.
        pause: the seconds before a call is repeated, by the number of failures in a row.
        report: is called with a sentence when a logger fails for the first time, also from other threads.
        fetch: returns a medium with its content and the path of its file, or None if that is gone.
    """

    def __init__(
        self,
        spool: Spool,
        clock: Clock,
        pause: Callable[[int], float],
        report: Callable[[str], None],
        fetch: Callable[[Media], Media | None] = lambda media: None,
    ) -> None:
        self._spool, self._clock, self._report = spool, clock, report
        self._logger_of = partial(
            BackgroundLogger, spool=spool, clock=clock, pause=pause, report=report, saved=self._saved, fetch=fetch
        )
        self._loggers: dict[str, BackgroundLogger] = {}
        self._number = 0
        self._is_full = False
        self._untaken = set[MediaKind]()
        self._models: dict[str, set[str]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return the number of loggers."""
        return len(self._loggers)

    @property
    def identifiers(self) -> dict[str, str]:
        """What the loggers have returned at the start, by name."""
        found = {name: logger.identifier for name, logger in self._loggers.items()}
        return {name: identifier for name, identifier in found.items() if identifier is not None}

    def resume(self, step: int) -> None:
        """Drop what earlier processes of the run left in the spool for steps after this one. Called first.

        Args:
            step: the step that the run resumes at.
        """
        self._number = self._spool.keep(lambda entry: remains(entry, step))

    def take_over(self) -> None:
        """Keep what earlier processes left in the spool, for `deliver`. Called first."""
        self._number = self._spool.keep(lambda entry: item_of(entry) is not None)

    def start(self, receiver: Receiver, run: RunInformation, tracked_as: str | None = None) -> None:
        """Start a logger in the background. It continues the run `tracked_as`, or the one that the spool names.

        Args:
            receiver: the logger, and what else it can do.
            run: what describes the run.
            tracked_as: the name of the run at the tracker; None for a new one.
        """
        if receiver.only_live:
            self.forget(receiver.name)
        earlier = self._spool.facts(receiver.name)
        known = None if earlier is None else run_of(earlier.get("run"))
        tracked_as = (known.tracked_as if known else None) or tracked_as
        run = evolve(run, tracked_as=tracked_as)
        try:
            self._spool.describe(receiver.name, {**receiver.facts, "run": run_entry(run)})
        except OSError as error:
            self._report(f"The logs of the run cannot be kept for {receiver.name} ({error}).")
        logger = self._logger_of(receiver)
        self._loggers[receiver.name] = logger
        logger.start(run)

    def await_start(self, limit: float = SET_UP) -> None:
        """Wait until the loggers have started, at most `limit` seconds; report those that have not.

        Args:
            limit: seconds in total.
        """
        ends_at = self._clock.monotonic() + limit
        late = [name for name, logger in self._loggers.items() if not logger.await_start(ends_at)]
        if late:
            self._report(
                f"{' and '.join(late)} {'has' if len(late) == 1 else 'have'} not started within {limit:g} s. The run "
                "continues, and what it logs is delivered later."
            )

    @property
    def names(self) -> list[str]:
        """The names of the loggers that were started."""
        return list(self._loggers)

    def has_started(self, name: str) -> bool:
        """Return whether a logger has started.

        Args:
            name: the name of the logger.
        """
        return name in self._loggers and self._loggers[name].started

    def write(self, record: Record, to: Collection[str] | None = None) -> None:
        """Pass a record to all loggers, or to some.

        Args:
            record: the values of a step.
            to: the names of the loggers; None for all.
        """
        self._put(record, to)

    def write_media(self, media: Media) -> None:
        """Pass a medium to the loggers that take its kind. Those that do not are reported, once for each kind.

        Args:
            media: the medium.
        """
        takers = [name for name, each in self._loggers.items() if media.kind in each.receiver.media]
        others = [name for name in self._loggers if name not in takers]
        if others and media.kind not in self._untaken:
            self._untaken.add(media.kind)
            verb = "does" if len(others) == 1 else "do"
            kept = "They are in the folder of the run."
            self._report(
                f"Media of the kind {media.kind} are not logged to {' and '.join(others)}, which {verb} not take them. "
                f"{kept}"
            )
        if takers:
            self._put(media, takers)

    def takes(self, final: bool) -> list[str]:
        """Return the names of the loggers that take a checkpoint's model, or that of the end.

        Args:
            final: whether it is the model of the end.
        """
        wanted = ("final", "checkpoints") if final else ("checkpoints",)
        return [name for name, each in self._loggers.items() if each.receiver.models in wanted]

    def save(self, model: SavedModel, files: Iterable[tuple[str, str]], to: Collection[str] | None = None) -> None:
        """Pass a model to the loggers that take it.

        Args:
            model: the model to pass on.
            files: its files, by path; they are linked, or copied.
            to: the names of the loggers; None for all.

        Raises:
            OSError: if the files cannot be kept.
        """
        takers = [name for name in self.takes(model.final) if to is None or name in to]
        if not takers:
            return
        folder = self._spool.hold(model.name, files)
        with self._lock:
            self._models[folder] = set(takers)
        self._put(evolve(model, folder=folder), takers)
        self._drop_models()

    def finish(
        self,
        outcome: Outcome,
        limit: float,
        progress: Callable[[int], None] = lambda left: None,
        keep: Callable[[], bool] = lambda: False,
    ) -> list[Left]:
        """Finish all loggers, and wait at most `limit` seconds in total; return what is left.

        Args:
            outcome: how the run ended.
            limit: seconds in total.
            progress: is called about once a second with the number of items that are left.
            keep: returns whether the spool is needed even if nothing is left, for what identifies the run.
        """
        self._put(outcome, None)
        return self.deliver(limit, progress, keep)

    def end_unfinished(self) -> None:
        """Pass an outcome to loggers that no process has finished."""
        for name, logger in self._loggers.items():
            if not logger.finishing:
                self._put(UNKNOWN_END, [name])

    def deliver(
        self,
        limit: float,
        progress: Callable[[int], None] = lambda left: None,
        keep: Callable[[], bool] = lambda: False,
    ) -> list[Left]:
        """Wait until all loggers have everything, at most `limit` seconds in total; return what is left.

        Args:
            limit: seconds in total.
            progress: called about once a second with the number of items that are left.
            keep: returns whether the spool is needed even if nothing is left.
        """
        started = self._clock.monotonic()
        ends_at = started + limit
        for logger in self._loggers.values():
            logger.hurry()
        for logger in self._loggers.values():
            soon = self._clock.monotonic() + SOON
            while not logger.await_end(min(soon, ends_at)) and not logger.stopped and soon < ends_at:
                progress(sum(each.waiting for each in self._loggers.values()))
                soon = self._clock.monotonic() + SOON
        for logger in self._loggers.values():
            logger.stop()
        left = [self._left_for(name, logger) for name, logger in self._loggers.items()]
        self._spool.close(remove=not (self._is_anything_left() or keep()))
        return [each for each in left if each.count or each.left_out]

    def forget(self, name: str) -> None:
        """Leave out what a logger does not have.

        Args:
            name: the name of the logger.
        """
        with suppress(OSError):
            self._spool.move(name, self._number)

    def _left_for(self, name: str, logger: BackgroundLogger) -> Left:
        problem = logger.problem or ("" if logger.ended else "it did not answer in time")
        if not logger.receiver.only_live:
            return Left(name, logger.waiting, logger.left_out, problem)
        self.forget(name)
        return Left(name, 0, logger.left_out + logger.waiting, problem)

    def _is_anything_left(self) -> bool:
        """Return whether a logger lacks something that is in the spool, also one of an earlier process."""
        names = self._spool.receivers()
        live = [self._loggers[name] for name in names if name in self._loggers]
        if any(not (logger.ended or logger.receiver.only_live) for logger in live):
            return True
        others = [name for name in names if name not in self._loggers]
        return bool(others) and any(lacking for lacking, _ in left_in(self._spool, others).values())

    def _put(self, item: Item, to: Collection[str] | None) -> None:
        with self._lock:
            self._number += 1
            problem = "there is no more room to keep it"
            try:
                spooled = self._spool.append(self._number, entry_of(item, to))
            except OSError as error:
                spooled, problem = False, str(error)
            receiving = [each for name, each in self._loggers.items() if to is None or name in to]
            for logger in receiving:
                logger.put(self._number, item, spooled)
            lacking = [logger.receiver.name for logger in receiving if logger.left_out]
        if lacking and not self._is_full:
            self._is_full = True
            self._report(f"What {' and '.join(lacking)} cannot receive in time is left out: {problem}.")

    def _saved(self, name: str, model: SavedModel) -> None:
        """Remove the files of a model that all loggers have."""
        with self._lock:
            lacking = self._models.get(model.folder, {name})
            lacking.discard(name)
            if lacking:
                return
            self._models.pop(model.folder, None)
        self._spool.release(model.folder)

    def _drop_models(self) -> None:
        """Remove the files of models for which there is a newer one, but for the oldest, which may be on its way."""
        with self._lock:
            for folder in list(self._models)[1:-1]:
                if not any(folder == logger.saving for logger in self._loggers.values()):
                    del self._models[folder]
                    self._spool.release(folder)
