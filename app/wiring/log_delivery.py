"""Logs that runs left in the outbox of their folder: what there is, and delivering it without a run."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from attrs import evolve, frozen

from hexloop.adapters.spool import FileSpool
from hexloop.app.wiring.outboxes import outbox_in, take_lock
from hexloop.app.wiring.trackers import LOGS, locked_spool, made_from, receiver_of, tracking_in
from hexloop.domain.background_logger import items_in
from hexloop.domain.errors import RunStateError
from hexloop.domain.log_entries import run_of
from hexloop.domain.redaction import redact
from hexloop.domain.run_folder import OUTBOX
from hexloop.domain.tracking import Left, Tracking
from hexloop.ports.logger import Outcome

OF_A_PROGRAM = "it is known to the program only that logs to it; resume the run there"


@frozen
class WaitingLogs:
    """What a logger does not have. spool: the name of the folder that it is in. run: the name of the run."""

    spool: str
    logger: str
    run: str
    count: int


def spools_in(folder: str) -> list[str]:
    """Return the names of the spools in the state folder of runs."""
    try:
        folders = [each for each in outbox_in(folder).iterdir() if each.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(each.name for each in folders if each.name.startswith(LOGS))


def waiting_logs(folder: str) -> list[WaitingLogs]:
    """Return what the loggers of runs in a state folder do not have."""
    found = []
    for name in spools_in(folder):
        spool = FileSpool(Path(folder, OUTBOX, name))
        for logger in spool.receivers():
            run = run_of((spool.facts(logger) or {}).get("run"))
            count = sum(1 for _ in items_in(spool, logger, spool.position(logger)))
            if count or not _is_finished(spool, logger):
                found.append(WaitingLogs(name, logger, run.name if run else name.removeprefix(LOGS), count))
    return found


def deliver_logs(folder: str, name: str, seconds: float) -> list[Left]:
    """Deliver what is in a spool, for at most this time, and finish its loggers; return what is left.

    Raises RunStateError if a live process uses it, and OSError.
    """
    spool = locked_spool(folder, name)
    if spool is None:
        raise RunStateError(f"A live run logs to {name} in {folder}, and delivers it; wait until it ends.")
    tracking = tracking_in(spool)
    tracking.take_over()
    problems = {logger: _start(tracking, spool, logger) for logger in spool.receivers()}
    tracking.end_unfinished()
    left = tracking.deliver(seconds)
    counts = {each: sum(1 for _ in items_in(spool, each, spool.position(each))) for each in problems}
    return [*left, *(Left(each, counts[each], 0, text) for each, text in problems.items() if text)]


def deliver_logs_of_others(folder: str, own: str, seconds: float) -> list[Left]:
    """Deliver what runs other than `own`, by its spool's name, left in a state folder; return what is still left.

    Those of live processes are left to them. Takes at most about `seconds` in total.
    """
    ends_at, left = time.monotonic() + seconds, list[Left]()
    for waiting in {each.spool: each for each in waiting_logs(folder) if each.spool != own}.values():
        try:
            found = deliver_logs(folder, waiting.spool, max(0.0, ends_at - time.monotonic()))
        except (OSError, RunStateError):
            continue
        left += [evolve(each, name=f"{each.name} (of the earlier run {waiting.run})") for each in found]
    return left


def drop_logs(folder: str, names: Iterable[str]) -> list[WaitingLogs]:
    """Remove spools; return what was in them. Raises RunStateError if a live process uses one."""
    waiting = waiting_logs(folder)
    for name in names:
        lock = take_lock(folder, name)
        if lock is None:
            raise RunStateError(f"A live run logs to {name} in {folder}; wait until it ends.")
        shutil.rmtree(Path(folder, OUTBOX, name), ignore_errors=True)
        lock.release()
    return [each for each in waiting if each.spool in names]


def _start(tracking: Tracking, spool: FileSpool, name: str) -> str:
    """Start a logger that lacks something; return why that is not possible, "" if it is."""
    facts = spool.facts(name) or {}
    run = run_of(facts.get("run"))
    if _is_finished(spool, name):
        return ""
    if run is None:
        return "its description in the outbox is damaged"
    try:
        logger = made_from(facts)
    except Exception as error:  # of the tracker's library, such as one that is missing
        return redact(f"{type(error).__name__}: {error}")
    if logger is None:
        return OF_A_PROGRAM
    if receiver_of(name, logger, {}).only_live:
        tracking.forget(name)
        return ""
    tracking.start(receiver_of(name, logger, {key: each for key, each in facts.items() if key != "run"}), run)
    return ""


def _is_finished(spool: FileSpool, name: str) -> bool:
    """Return whether a logger has everything, the end of the run included."""
    position = spool.position(name)
    return any(isinstance(item, Outcome) and number <= position for number, item in items_in(spool, name, 0))
