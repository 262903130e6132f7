"""Makes the loggers of trackers, and the spools that keep what they do not have yet; delivers that without a run."""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pkgutil import resolve_name
from typing import Any

from attrs import evolve, frozen

from hexloop.adapters.clock import SystemClock
from hexloop.adapters.spool import SEGMENT, FileSpool, MemorySpool
from hexloop.app.arguments import TrainingArguments
from hexloop.app.assembly.outboxes import destinations_of, outbox_in, state_folder, take_lock
from hexloop.app.assembly.storage import WorkingFolder, as_location
from hexloop.app.callbacks.trackers import TRACKERS, TrackerCallback
from hexloop.app.engines import find_plugin
from hexloop.domain.background_logger import Receiver, left_in
from hexloop.domain.delivery import Backoff
from hexloop.domain.errors import ConfigurationError, RunStateError
from hexloop.domain.folders import Folder
from hexloop.domain.limits import limits
from hexloop.domain.log_entries import run_of
from hexloop.domain.media_log import fetched
from hexloop.domain.redaction import is_secret_name, printable, redact
from hexloop.domain.run_folder import MEDIA, OUTBOX
from hexloop.domain.tracking import Left, Tracking
from hexloop.ports.logger import Logger, Spool

LOGS = "logs-"
"""The names of folders with spools in that of outboxes, before the name of their run."""

TRACKER, PLUGIN, VALUES, OPTIONS = "tracker", "plugin", "values", "options"
"""The facts from which another process makes the logger again."""

LONGEST_OPTIONS = 500
"""Characters of a tracker's options in a message."""

MOST_SPOOLS = 200
"""How many spools of a folder are looked at."""

OF_A_PROGRAM = "it is known to the program only that logs to it; resume the run there"

logger = logging.getLogger("hexloop.outbox")

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")


def logging_folder(args: TrainingArguments) -> str | None:
    """Return the folder that the user chose for TensorBoard; None if there is none."""
    return args.logging_dir or os.environ.get("TENSORBOARD_LOGGING_DIR")


def named_loggers(loggers: Iterable[Logger]) -> dict[str, Logger]:
    """Return loggers by the names of their classes, further ones of a class with a number."""
    named: dict[str, Logger] = {}
    for logger in loggers:
        named[unused_name(type(logger).__name__, named)] = logger
    return named


def unused_name(name: str, taken: Iterable[str]) -> str:
    """Return a name that can be that of a file, with a number if it is taken."""
    safe, taken = _UNSAFE.sub("-", name).lstrip(".")[:100] or "logger", set(taken)
    number = 2
    while (found := safe if number == 2 else f"{safe}-{number - 1}") in taken:
        number += 1
    return found


def logger_of(callback: TrackerCallback, args: TrainingArguments, started_in: WorkingFolder) -> Logger:
    """Return the logger of a callback, which is made once. Relative paths of the arguments start at `started_in`.

    Raises ConfigurationError if its library is too old.
    """
    if callback.logger is None:
        options = callback.options
        if callback.tracker_name == "tensorboard" and not (callback.values or options):
            chosen = logging_folder(args)
            options = {"folder": started_in.locate(chosen) if chosen else None}
        callback.logger = make_logger(callback.tracker_name, callback.values, options)
    return callback.logger


def make_logger(tracker: str, values: Iterable[Any] = (), options: Mapping[str, Any] | None = None) -> Logger:
    """Return a new logger of a tracker. Raises ConfigurationError if its library is missing or too old."""
    made: Logger = resolve_name(TRACKERS[tracker].adapter)(*values, **(options or {}))
    return made


def receiver_of(name: str, logger: Logger, facts: Mapping[str, Any]) -> Receiver:
    """Return a logger with what it can do beyond the port. facts: see `facts_of` and `facts_of_plugin`."""
    return Receiver(
        name,
        logger,
        write_all=getattr(logger, "write_all", None),
        save=getattr(logger, "save", None),
        only_live=bool(getattr(logger, "only_live", False)),
        models=getattr(logger, "models", "none") if hasattr(logger, "save") else "none",
        write_media=getattr(logger, "write_media", None),
        media=frozenset(getattr(logger, "media", ())),
        facts=facts,
    )


def facts_of(callback: TrackerCallback) -> dict[str, Any]:
    """Return the facts from which another process makes the logger of a callback again, without secrets."""
    options = {name: value for name, value in callback.options.items() if not is_secret_name(name)}
    facts = {TRACKER: callback.tracker_name, VALUES: list(callback.values), OPTIONS: options}
    try:
        json.dumps(facts)
    except (TypeError, ValueError):  # an object of the tracker's library
        return {}
    return facts


def facts_of_plugin(name: str, logger: Logger) -> dict[str, Any]:
    """Return the facts of a logger that an installed package offers under a name; none for any other logger."""
    plugin = find_plugin("loggers", name)
    return {PLUGIN: name} if isinstance(plugin, type) and type(logger) is plugin else {}


def maker_in(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return those facts of a receiver that choose how its logger is made."""
    return {name: facts[name] for name in (TRACKER, VALUES, OPTIONS, PLUGIN) if name in facts}


def made_from(facts: Mapping[str, Any], may_choose: Callable[[Mapping[str, Any]], bool]) -> Logger | None:
    """Return the logger that facts describe; None if only the program that made it can make it again.

    may_choose: returns whether the values and options in these facts may choose where the logger writes. Without any,
    that is the user's environment.
    Raises ConfigurationError if they may not, and as `make_logger` does.
    """
    tracker, plugin = facts.get(TRACKER), facts.get(PLUGIN)
    values, options = facts.get(VALUES, []), facts.get(OPTIONS, {})
    if isinstance(tracker, str) and tracker in TRACKERS and isinstance(values, list) and isinstance(options, dict):
        if (values or options) and not may_choose(maker_in(facts)):
            chosen = [*map(repr, values), *(f"{name}={value!r}" for name, value in options.items())]
            raise ConfigurationError(
                f"The outbox says that it is made with {printable(', '.join(chosen))[:LONGEST_OPTIONS]}, and no run "
                "of yours in this folder, on this machine, noted that. If your run chose it, add to the command: "
                f"--tracker {tracker}"
            )
        return make_logger(tracker, values, options)
    factory = find_plugin("loggers", plugin) if isinstance(plugin, str) else None
    return None if factory is None else factory()


def is_in_loop(logger: Logger) -> bool:
    """Return whether the loop calls a logger itself."""
    return bool(getattr(logger, "in_loop", False))


def tracking_in(spool: Spool, media: Folder | None = None) -> Tracking:
    """Return what calls loggers in the background. Their problems are logged by `hexloop.loggers`.

    media: the folder of the media of the run; None if there is none.
    """
    backoff = Backoff()
    report: Callable[[str], None] = logging.getLogger("hexloop.loggers").warning
    if media is None:
        return Tracking(spool, SystemClock(), backoff.pause, report)
    return Tracking(spool, SystemClock(), backoff.pause, report, partial(fetched, media))


def media_folder(location: str) -> Folder:
    """Return the folder of the media of runs that write to a location. For a URL, it is that of their outbox."""
    return Folder(state_folder(location), MEDIA)


def spool_name(run: str) -> str:
    """Return the name of the spool of a run, by which that is known over resumes."""
    return f"{LOGS}{unused_name(run, ())}"


def open_spool(location: str, run: str) -> Spool:
    """Return the spool of a run; one in memory, which is logged, if its folder cannot be written to or is in use."""
    folder = state_folder(location)
    name = spool_name(run)
    try:
        spool = locked_spool(folder, name)
    except OSError as error:
        problem = str(error)
    else:
        if spool is not None:
            return spool
        problem = "another process uses it"
    logging.getLogger("hexloop.loggers").warning(
        "What trackers do not receive in time cannot be kept in %s (%s), and is lost if this process ends before.",
        folder,
        problem,
    )
    return MemorySpool()


def _release(lock: Any, folder: Folder, name: str) -> None:
    """Let other processes use a spool, and remove what is empty."""
    if not folder.exists(name):
        with suppress(OSError):
            folder.remove(f"{name}.lock")
    lock.release()
    folder.remove_empty()


def locked_spool(folder: str, name: str) -> FileSpool | None:
    """Return the spool of that name in a state folder; None if a live process uses it. Raises OSError."""
    lock, outbox = take_lock(folder, name), Folder(folder, OUTBOX)
    if lock is None:
        return None
    try:
        return FileSpool(outbox.below(name), lambda: _release(lock, outbox, name))
    except OSError:
        lock.release()
        raise


# Delivery without a run


@frozen
class WaitingLogs:
    """What a logger does not have. spool: the name of the folder that it is in. run: the name of the run.

    count: the number of records and the like; None if there is too much to count.
    """

    spool: str
    logger: str
    run: str
    count: int | None


def spools_in(folder: str) -> list[str]:
    """Return the names of the spools in the state folder of runs. Raises OSError if they are behind a link."""
    found = [each.name for each in outbox_in(folder).entries() if each.is_folder and each.name.startswith(LOGS)]
    return found[:MOST_SPOOLS]


def waiting_logs(folder: str) -> list[WaitingLogs]:
    """Return what the loggers of runs in a state folder do not have.

    It is counted as long as the spools together are not larger than the limit `spool_bytes`. What cannot be read, such
    as a link, is named in the log `hexloop.outbox`.
    """
    found, room = list[WaitingLogs](), limits().spool_bytes + SEGMENT
    try:
        listed = spools_in(folder)
    except OSError as error:
        _report(error)
        return []
    for name in listed:
        try:
            spool = FileSpool(outbox_in(folder).below(name))
            names, room = spool.receivers(), room - spool.size()
        except OSError as error:
            _report(error)
            continue
        left = left_in(spool, names) if room >= 0 else {}
        for each in names:
            count, finished = left.get(each, (None, False))
            if count or not finished:
                run = run_of((spool.facts(each) or {}).get("run")) if count is not None else None
                found.append(WaitingLogs(name, each, run.name if run else name.removeprefix(LOGS), count))
    return found


def deliver_logs(
    folder: str, name: str, seconds: float, location: str | None = None, trusted: Collection[str] = ()
) -> list[Left]:
    """Deliver what is in a spool, for at most this time, and finish its loggers; return what is left.

    location: where its run writes; None if that is the state folder itself. trusted: the names of trackers whose
    options in the outbox the user has seen and wants.
    Raises RunStateError if a live process uses it, and OSError.
    """
    spool = locked_spool(folder, name)
    if spool is None:
        raise RunStateError(f"A live run logs to {name} in {folder}, and delivers it; wait until it ends.")
    place = as_location(folder if location is None else location)
    tracking = tracking_in(spool, media_folder(place))
    tracking.take_over()
    noted = destinations_of(folder)

    def may_choose(facts: Mapping[str, Any]) -> bool:
        return facts.get(TRACKER) in trusted or noted.may_log(facts)

    names = spool.receivers()
    finished = {each for each, (_, is_finished) in left_in(spool, names).items() if is_finished}
    problems = {each: _start_logger(tracking, spool, each, place, may_choose) for each in names if each not in finished}
    tracking.end_unfinished()
    left = tracking.deliver(seconds)
    lacking = left_in(spool, [each for each, text in problems.items() if text])
    return [*left, *(Left(each, count, 0, problems[each]) for each, (count, _) in lacking.items())]


def deliver_logs_of_others(folder: str, own: str, seconds: float, location: str | None = None) -> list[Left]:
    """Deliver what runs other than `own`, by its spool's name, left in a state folder; return what is still left.

    Those of live processes are left to them. Takes at most about `seconds` in total.
    """
    ends_at, left = time.monotonic() + seconds, list[Left]()
    for waiting in {each.spool: each for each in waiting_logs(folder) if each.spool != own}.values():
        try:
            found = deliver_logs(folder, waiting.spool, max(0.0, ends_at - time.monotonic()), location)
        except (OSError, RunStateError):
            continue
        left += [evolve(each, name=f"{each.name} (of the earlier run {waiting.run})") for each in found]
    return left


def drop_logs(folder: str, names: Iterable[str]) -> list[WaitingLogs]:
    """Remove spools; return what was in them. Raises RunStateError if a live process uses one, and OSError."""
    waiting = waiting_logs(folder)
    for name in names:
        lock = take_lock(folder, name)
        if lock is None:
            raise RunStateError(f"A live run logs to {name} in {folder}; wait until it ends.")
        try:
            outbox_in(folder).remove(name)
        finally:
            lock.release()
    return [each for each in waiting if each.spool in names]


def _start_logger(
    tracking: Tracking, spool: FileSpool, name: str, place: str, may_choose: Callable[[Mapping[str, Any]], bool]
) -> str:
    """Start a logger that lacks something; return why that is not possible, "" if it is.

    place: where the run writes, whatever the outbox says: loggers write to that folder, and upload it.
    """
    facts = spool.facts(name) or {}
    run = run_of(facts.get("run"))
    if run is None:
        return "its description in the outbox is damaged"
    try:
        made = made_from(facts, may_choose)
    except Exception as error:  # of the tracker's library, such as one that is missing
        return redact(str(error) if isinstance(error, ConfigurationError) else f"{type(error).__name__}: {error}")
    if made is None:
        return OF_A_PROGRAM
    if receiver_of(name, made, {}).only_live:
        tracking.forget(name)
        return ""
    if run.folder is None or as_location(run.folder) != place:
        run = evolve(run, folder=place)
    tracking.start(receiver_of(name, made, {key: each for key, each in facts.items() if key != "run"}), run)
    return ""


def _report(error: OSError) -> None:
    logger.warning("%s in the outbox is not used: %s.", error.filename, error.strerror)
