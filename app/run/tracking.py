"""The loggers of a live run: what they receive, from which thread, and what is said about them at the end."""

from __future__ import annotations

import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from hexloop.app.assembly.outboxes import note_logger, state_folder
from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.state import is_sharded
from hexloop.app.assembly.storage import files_below
from hexloop.app.assembly.trackers import (
    OPTIONS,
    VALUES,
    deliver_logs_of_others,
    facts_of,
    facts_of_plugin,
    is_in_loop,
    logger_of,
    maker_in,
    media_folder,
    open_spool,
    receiver_of,
    spool_name,
    tracking_in,
    unused_name,
)
from hexloop.app.callbacks.console import bar_of_the_rest
from hexloop.app.callbacks.trackers import TRACKERS, TrackerCallback, replaces
from hexloop.app.run.media import RunMedia, run_media
from hexloop.app.run.publishing import AFTER_A_STOP
from hexloop.app.run.run_information import information_of
from hexloop.app.run.saving import save_model
from hexloop.domain.background_logger import Receiver
from hexloop.domain.checkpoints.manifest import MANIFEST
from hexloop.domain.checkpoints.reading import read_manifest
from hexloop.domain.errors import CheckpointError, ConfigurationError
from hexloop.domain.events import AnyEvent, CheckpointPublished, Saved, TrainEnded
from hexloop.domain.fail_safe import LoggerGroup
from hexloop.domain.redaction import redact
from hexloop.domain.run import Run
from hexloop.domain.tracking import Left, Tracking
from hexloop.ports.logger import Media, Outcome, Record, RunInformation, SavedModel

LOGGER = logging.getLogger("hexloop.loggers")


@frozen
class TrackedRunOf:
    """A live run for the callback of one tracker; see `TrackedRun`."""

    loggers: RunLoggers
    name: str

    def set_up(self) -> None:
        """Start the logger if it is not, and wait for it."""
        self.loggers.start(self.name)
        self.loggers.await_start()

    def write(self, record: Record) -> None:
        """Pass a record on."""
        self.loggers.start(self.name)
        self.loggers.write_to([self.name], record)

    def take_models(self) -> None:
        """Pass the next published checkpoint on."""
        self.loggers.takes_next.add(self.name)


@define(eq=False)
class RunLoggers:
    """The loggers of a run: some are called by the loop, the others in the background.

    direct: those that the loop calls. tracking: calls the others; None if there are none. deferred: receivers whose
    callbacks override `setup`, until they have called it. callbacks: those of trackers, by the names of their loggers.
    preempted: set once a signal, a deadline or a stop file has asked the run to stop.
    """

    parts: TrainerParts
    run: Run[Any, Any]
    information: RunInformation
    direct: LoggerGroup
    tracking: Tracking | None = None
    callbacks: dict[str, TrackerCallback] = field(factory=dict)
    deferred: dict[str, Receiver] = field(factory=dict)
    preempted: bool = False
    takes_next: set[str] = field(factory=set)
    media: RunMedia = field(init=False)
    _overriding_log: set[str] = field(factory=set)
    _overriding_save: set[str] = field(factory=set)
    _saved: dict[str, tuple[float, bool]] = field(factory=dict)
    _entered: list[Any] = field(factory=list)
    _awaited: bool = False
    _in_checkpoint: dict[str, str] | None = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._in_checkpoint = dict(self.run.state.trackers) if self.run.state.step > 0 else None
        self.media = run_media(self.parts, self.run, self._pass_on)

    # Start

    def start(self, name: str) -> None:
        """Start a logger that is not started yet."""
        receiver = self.deferred.pop(name, None)
        if receiver is not None and self.tracking is not None:
            earlier = self.callbacks[name].tracked if name in self.callbacks else {}  # of a run that starts again
            tracked_as = self.run.state.trackers.get(name) or earlier.get(self.run.state.run)
            self.tracking.start(receiver, self.information, tracked_as)
            self._awaited = False

    def await_start(self) -> None:
        """Wait until the loggers have started, for a bounded time; let this thread see the runs that they started."""
        if self.tracking is None or self._awaited:
            return
        self._awaited = True
        self.tracking.await_start()
        self.run.state.trackers |= self.tracking.identifiers
        for name, callback in self.callbacks.items():
            enter = getattr(callback.logger, "enter_thread", None)
            if enter is not None and callback.logger not in self._entered and self.tracking.has_started(name):
                self._entered.append(callback.logger)
                _warn_on_error(name, enter)

    @property
    def identifiers(self) -> dict[str, str]:
        """What identifies the run for each logger: what the checkpoint had, and what loggers have returned since."""
        return {**self.run.state.trackers, **(self.tracking.identifiers if self.tracking else {})}

    def identifiers_to_save(self) -> dict[str, str]:
        """Return the identifiers for a checkpoint that is being saved."""
        self._in_checkpoint = self.identifiers
        return self._in_checkpoint

    def _knows_more_than_checkpoint(self) -> bool:
        """Return whether a resumed run would not know all identifiers, because a logger started after the last save."""
        known = self._in_checkpoint
        return known is not None and any(known.get(name) != each for name, each in self.identifiers.items())

    # While the run is live

    def write(self, record: Record) -> None:
        """Pass a record to all loggers whose callback does not override `on_log`."""
        self.direct.write(record)
        if self.tracking is not None:
            self.write_to(None, record)

    def write_to(self, names: Collection[str] | None, record: Record) -> None:
        """Pass a record to some loggers in the background; None: those whose callback does not override `on_log`."""
        assert self.tracking is not None
        if names is None and (self._overriding_log or self.deferred):
            for name in [name for name in self.deferred if name not in self._overriding_log]:
                self.start(name)
            names = [name for name in self.tracking.names if name not in self._overriding_log]
        self.tracking.write(record, names)

    def _pass_on(self, media: Media) -> None:
        """Pass a medium to the loggers in the background that take its kind."""
        if self.tracking is not None:
            self.tracking.write_media(media)

    def events(self) -> dict[type[AnyEvent], Callable[[Any], None]]:
        """Return the event handlers that pass models on; none if no logger takes any."""
        if self.tracking is None or not (self.takers(final=True) or self.takers(final=False)):
            return {}
        return {Saved: self._on_saved, CheckpointPublished: self._on_published, TrainEnded: self._on_end}

    def takers(self, final: bool) -> list[str]:
        """Return the names of the loggers that take a checkpoint, or the model at the end."""
        assert self.tracking is not None
        kinds = ("final", "checkpoints") if final else ("checkpoints",)
        waiting = [name for name, each in self.deferred.items() if each.models in kinds]
        return [*self.tracking.takes(final), *waiting]

    def _on_saved(self, event: Saved) -> None:
        self._saved[event.name] = self.parts.state.epoch or 0.0, self.run.state.best_step == event.step

    def _on_published(self, event: CheckpointPublished) -> None:
        epoch, best = self._saved.pop(event.name, (self.parts.state.epoch or 0.0, False))
        takers = [
            name for name in self.takers(final=False) if name not in self._overriding_save or name in self.takes_next
        ]
        self.takes_next.clear()
        if takers:
            model = SavedModel("", event.name, event.step, epoch, best=best, metrics=self._metrics())
            self._save(model, takers, partial(_checkpoint_files, self.parts, event.name))

    def _on_end(self, event: TrainEnded) -> None:
        if takers := self.takers(final=True):
            metrics = {**self._metrics(), **event.metrics}
            best = self.parts.args.load_best_model_at_end and self.run.state.best_checkpoint is not None
            model = SavedModel("", "model", event.step, self.parts.state.epoch or 0.0, True, bool(best), metrics)
            self._save(model, takers, None)

    def _save(
        self, model: SavedModel, takers: Sequence[str], files: Callable[[], Iterable[tuple[str, str]]] | None
    ) -> None:
        """Pass a model on. files: None for the model as it is now, which is written to a temporary folder."""
        assert self.tracking is not None
        for name in takers:
            self.start(name)
        try:
            if files is not None:
                self.tracking.save(model, files(), takers)
                return
            if is_sharded(self.parts.adapters.parallelism, self.parts.model):
                raise OSError("a model that is sharded is not passed on at the end of the run; let it take checkpoints")
            with tempfile.TemporaryDirectory() as folder:
                save_model(self.parts, folder)
                found = {path: str(source) for path, source in files_below(Path(folder)).items()}
                self.tracking.save(model, found.items(), takers)
        except (OSError, CheckpointError) as error:
            LOGGER.warning("%s is not passed to %s: %s.", model.name, " and ".join(takers), error)

    def _metrics(self) -> dict[str, Any]:
        """Return the metrics of the newest evaluation."""
        for entry in reversed(self.run.state.history):
            if any(name.startswith("eval_") for name in entry):
                return dict(entry)
        return {}

    # End

    def finish(self) -> None:
        """Finish all loggers with the outcome of the run, wait for a bounded time, and warn about what is left."""
        outcome = outcome_of(self.run, self.preempted)
        grace = self.parts.args.logger_grace
        grace = min(grace, AFTER_A_STOP) if outcome.kind in ("stopped", "preempted") else grace
        ends_at = time.monotonic() + grace
        self.media.finish(grace)
        for logger in self._entered:
            _warn_on_error(type(logger).__name__, logger.leave_thread)
        for callback in self.callbacks.values():
            callback.tracked_run, callback._initialized = None, False
        self.direct.finish(outcome)
        left = self._finish_tracking(outcome, ends_at)
        if outcome.kind == "finished" and self.parts.adapters.mesh.writes:
            folder, own = state_folder(self.parts.folder), spool_name(self.run.state.run)
            location = self.parts.folder
            left += deliver_logs_of_others(folder, own, ends_at - time.monotonic(), location)
        if left:
            warnings.warn(what_is_left(left, self.parts.folder), stacklevel=2)

    def _finish_tracking(self, outcome: Outcome, ends_at: float) -> list[Left]:
        """Finish the loggers in the background, wait until this time, and return what is left."""
        if self.tracking is None:
            return []
        for name in list(self.deferred):
            self.start(name)
        with bar_of_the_rest("Logging", "record", not self.parts.args.disable_tqdm) as show:
            left = self.tracking.finish(outcome, ends_at - time.monotonic(), show, self._knows_more_than_checkpoint)
        for name, callback in self.callbacks.items():
            if (identifier := self.identifiers.get(name)) is not None:
                callback.tracked = {self.run.state.run: identifier}
        return left


def make_tracker_loggers(parts: TrainerParts) -> None:
    """Make the loggers of the callbacks of trackers.

    Raises ConfigurationError if a library is too old, but leaves the tracker out if `report_to="all"` chose it.
    """
    for callback in _trackers(parts):
        try:
            logger_of(callback, parts.args, parts.started_in)
        except ConfigurationError as error:
            if parts.args.report_to != ["all"]:
                raise
            warnings.warn(f"report_to='all' leaves {callback.tracker_name} out: {error}", stacklevel=3)
            parts.callback_handler.remove_callback(callback)


def run_loggers(parts: TrainerParts, run: Run[Any, Any]) -> RunLoggers:
    """Return the loggers of a run that is about to start or resume. Those in the background start at once."""
    information = information_of(parts, run)
    named = parts.adapters.loggers
    in_loop = {name: logger for name, logger in named.items() if is_in_loop(logger)}
    direct = LoggerGroup(in_loop.values(), LOGGER.warning)
    loggers = RunLoggers(parts, run, information, direct)
    receivers = {
        name: receiver_of(name, logger, facts_of_plugin(name, logger))
        for name, logger in named.items()
        if name not in in_loop
    }
    for callback in _trackers(parts):
        name = unused_name(callback.tracker_name or type(callback).__name__, receivers)
        receivers[name] = receiver_of(name, logger_of(callback, parts.args, parts.started_in), facts_of(callback))
        loggers.callbacks[name] = callback
        callback.tracked_run, callback._initialized = TrackedRunOf(loggers, name), False
        if replaces(callback, "on_log"):
            loggers._overriding_log.add(name)
        if replaces(callback, "on_save"):
            loggers._overriding_save.add(name)
    if receivers:
        _track(loggers, receivers)
    direct.start(information)
    return loggers


def _track(loggers: RunLoggers, receivers: Mapping[str, Receiver]) -> None:
    """Start loggers in the background, but those whose callbacks override `setup`, which decides when they start."""
    parts, state = loggers.parts, loggers.run.state
    tracking = tracking_in(open_spool(parts.folder, state.run), media_folder(parts.folder))
    tracking.resume(state.step)
    loggers.tracking = tracking
    for receiver in receivers.values():
        chosen = maker_in(receiver.facts)
        if chosen.get(VALUES) or chosen.get(OPTIONS):
            note_logger(state_folder(parts.folder), chosen)
    loggers.deferred.update(receivers)
    for name in receivers:
        callback = loggers.callbacks.get(name)
        if callback is None or not replaces(callback, "setup"):
            loggers.start(name)
    if not loggers.callbacks:
        loggers.await_start()  # otherwise the callbacks do, when training begins


def _trackers(parts: TrainerParts) -> list[TrackerCallback]:
    """Return the callbacks of trackers that this process logs to."""
    callbacks = [each for each in parts.callback_handler.callbacks if isinstance(each, TrackerCallback)]
    if parts.adapters.mesh.writes:
        return callbacks
    measured = {name for name, row in TRACKERS.items() if row.on_each_machine and parts.args.local_process_index == 0}
    return [each for each in callbacks if each.tracker_name in measured]


def _checkpoint_files(parts: TrainerParts, name: str) -> list[tuple[str, str]]:
    """Return the files of a published checkpoint. Raises OSError if it is not in a local folder."""
    storage = parts.adapters.storage
    folder = storage.capabilities.local_folder
    if folder is None:
        raise OSError(f"it is in {storage.capabilities.location}, which is not a local folder")
    paths = [*read_manifest(storage, name).files, MANIFEST]
    return [(path, os.path.join(folder, name, path)) for path in paths]


def _warn_on_error(name: str, act: Callable[[], None]) -> None:
    try:
        act()
    except Exception as error:
        text = redact(f"{type(error).__name__}: {error}")
        LOGGER.warning("The run of %s could not be shown to this thread (%s).", name, text)


# The end


def outcome_of(run: Run[Any, Any], preempted: bool) -> Outcome:
    """Return how a run ended, from what ended it. preempted: whether a signal, a deadline or a stop file did."""
    error = run.failure
    reasons = redact(", ".join(filter(None, run.requests.reasons)))
    if error is None:
        if not run.stopped:
            return Outcome("finished")
        return Outcome("preempted" if preempted else "stopped", reasons or "a stop was requested")
    if isinstance(error, GeneratorExit):
        return Outcome("stopped", "the stream of the run was closed")
    if isinstance(error, KeyboardInterrupt):
        return Outcome("stopped", "KeyboardInterrupt")
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return Outcome("stopped", "the program exited")
    return Outcome("failed", redact(f"{type(error).__name__}: {error}"))


def what_is_left(left: Sequence[Left], location: str) -> str:
    """Return a warning about what loggers do not have."""
    folder = state_folder(location)
    reasons = {each.name: f" ({each.problem})" if each.problem else "" for each in left}
    lines = [f"\n  {each.name}: {_amount(each.count)}{reasons[each.name]}" for each in left if each.count]
    lost = [f"\n  {each.name}: {_amount(each.left_out)}" for each in left if each.left_out]
    texts = []
    if lines:
        texts.append(
            f"Not logged yet, and kept in the outbox:{''.join(lines)}\nOnce the cause is gone, finish with: hexloop "
            f"outbox flush {folder}"
        )
    if lost:
        texts.append(f"Lost, because there was no room to keep it:{''.join(lost)}")
    return "\n".join(texts)


def _amount(count: int) -> str:
    return "1 record" if count == 1 else f"{count:,} records"
