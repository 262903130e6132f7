"""Logs that runs left in the outbox of their folder: what there is, and delivering it without a run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from attrs import evolve, frozen

from hexloop.adapters.spool import SEGMENT, FileSpool
from hexloop.app.wiring.destinations import destinations_of
from hexloop.app.wiring.outboxes import outbox_in, take_lock
from hexloop.app.wiring.storage import as_location
from hexloop.app.wiring.trackers import LOGS, TRACKER, locked_spool, made_from, receiver_of, tracking_in
from hexloop.domain.background_logger import left_in
from hexloop.domain.errors import ConfigurationError, RunStateError
from hexloop.domain.limits import limits
from hexloop.domain.log_entries import run_of
from hexloop.domain.redaction import redact
from hexloop.domain.tracking import Left, Tracking

MOST_SPOOLS = 200
"""How many spools of a folder are looked at."""

OF_A_PROGRAM = "it is known to the program only that logs to it; resume the run there"


logger = logging.getLogger("hexloop.outbox")


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
    for name in _spools_in(folder):
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
    tracking = tracking_in(spool)
    tracking.take_over()
    noted = destinations_of(folder)

    def may_choose(facts: Mapping[str, Any]) -> bool:
        return facts.get(TRACKER) in trusted or noted.may_log(facts)

    place = as_location(folder if location is None else location)
    names = spool.receivers()
    finished = {each for each, (_, is_finished) in left_in(spool, names).items() if is_finished}
    problems = {each: _start(tracking, spool, each, place, may_choose) for each in names if each not in finished}
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


def _start(
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


def _spools_in(folder: str) -> list[str]:
    try:
        return spools_in(folder)
    except OSError as error:
        _report(error)
        return []


def _report(error: OSError) -> None:
    logger.warning("%s in the outbox is not used: %s.", error.filename, error.strerror)
