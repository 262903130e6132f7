"""Makes the loggers of trackers, and the spools that keep what they do not have yet."""

from __future__ import annotations

import json
import logging
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pkgutil import resolve_name
from typing import Any

from hexloop.adapters.clock import SystemClock
from hexloop.adapters.spool import FileSpool, MemorySpool
from hexloop.app.arguments import TrainingArguments
from hexloop.app.callbacks.trackers import TrackerCallback
from hexloop.app.engines import find_plugin
from hexloop.app.trackers import TRACKERS
from hexloop.app.wiring.outboxes import state_folder, take_lock
from hexloop.app.wiring.storage import WorkingFolder
from hexloop.domain.background_logger import Receiver
from hexloop.domain.delivery import Backoff
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.folders import Folder
from hexloop.domain.redaction import is_secret_name, printable
from hexloop.domain.run_folder import OUTBOX
from hexloop.domain.tracking import Tracking
from hexloop.ports.logger import Logger, Spool

LOGS = "logs-"
"""The names of folders with spools in that of outboxes, before the name of their run."""

TRACKER, PLUGIN, VALUES, OPTIONS = "tracker", "plugin", "values", "options"
"""The facts from which another process makes the logger again."""

LONGEST_OPTIONS = 500
"""Characters of a tracker's options in a message."""

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


def tracking_in(spool: Spool) -> Tracking:
    """Return what calls loggers in the background. Their problems are logged by `hexloop.loggers`."""
    backoff = Backoff()
    report: Callable[[str], None] = logging.getLogger("hexloop.loggers").warning
    return Tracking(spool, SystemClock(), backoff.pause, report)


def spool_name(run: str) -> str:
    """Return the name of the spool of a run, by which that is known over resumes."""
    return f"{LOGS}{unused_name(run, ())}"


def open_spool(location: str, run: str) -> Spool:
    """Return the spool of a run; one in memory, with a warning, if its folder cannot be written to or is in use."""
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
    warnings.warn(
        f"What trackers do not receive in time cannot be kept in {folder} ({problem}), and is lost if this process "
        "ends before.",
        stacklevel=2,
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
