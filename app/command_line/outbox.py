"""`hexloop outbox`: what runs have not published or logged yet."""

from __future__ import annotations

import os
import shlex
from argparse import Namespace
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

from attrs import asdict

from hexloop.app.assembly.outboxes import (
    Destinations,
    Dropped,
    destinations_of,
    dropped_in,
    forget_dropped,
    intents_of,
    names_in,
    state_folder,
)
from hexloop.app.assembly.publishing import HubPublisher
from hexloop.app.assembly.pushes import FOLDER_SCHEME, HUGGING_FACE, Push, hub_at, subject_of
from hexloop.app.assembly.storage import has_unsent_files, is_missing, storage_for
from hexloop.app.assembly.trackers import deliver_logs, drop_logs, spools_in, waiting_logs
from hexloop.app.command_line import ExitCode
from hexloop.app.printing import print_document, print_lines
from hexloop.domain.errors import ConfigurationError, RunStateError, StorageError
from hexloop.domain.outbox import Intent

LONGEST_LINE = 2_000
"""Characters of a line that is printed."""


def list_intents(options: Namespace) -> ExitCode:
    """Print what is left. Return FAILED if there is anything, DONE otherwise."""
    folder = _folder(options.folder)
    left = [intent for name in names_in(folder) for intent in intents_of(folder, name)]
    dropped = [each for name in names_in(folder) for each in dropped_in(folder, name)]
    tiers, logs = has_unsent_files(storage_for(folder)), waiting_logs(folder)
    if options.json:
        entries = [_document(intent) for intent in left]
        print_document(
            {
                "entries": entries,
                "logs": [asdict(each) for each in logs],
                "unsent_files": tiers,
                "dropped": [asdict(each) for each in dropped],
            }
        )
    else:
        for intent in left:
            print_lines(*_lines(intent))
        for gone in dropped:
            print_lines(*_lines_of_dropped(gone))
        for each in logs:
            print_lines(f"{_amount(each.count)} of {each.run} for {each.logger}, in {each.spool}")
        if tiers:
            print_lines("Files for the slow tier of a tiered storage: the next program that uses both sends them.")
        if not left and not tiers and not logs:
            print_lines(f"Nothing is left in the outbox of {options.folder}.")
    return ExitCode.FAILED if left or tiers or logs else ExitCode.DONE


def flush(options: Namespace) -> ExitCode:
    """Publish what the hub has not refused, and deliver logs. Return FAILED if something is left."""
    return _work_off(options, retries=False)


def retry(options: Namespace) -> ExitCode:
    """Publish everything, also what the hub has refused, and deliver logs. Return FAILED if something is left."""
    return _work_off(options, retries=True)


def drop(options: Namespace) -> ExitCode:
    """Remove entries without publishing them, and print them."""
    if not options.entries and not options.all:
        raise ConfigurationError("You chose to drop, but not what; name entries that `list` shows, or give --all.")
    folder, dropped = _folder(options.folder), list[Intent]()
    for name in names_in(folder):
        with _opened(options.folder, name, deliver=False) as publisher:
            dropped += publisher.drop(() if options.all else options.entries)
        if options.all:
            forget_dropped(folder, name)
    unknown = {*options.entries} - {intent.number for intent in dropped}
    if unknown and not options.all:
        listed = ", ".join(map(str, sorted(unknown)))
        raise ConfigurationError(
            f"The outbox of {options.folder} has no entry {listed}; name one that `hexloop outbox list` shows."
        )
    for intent in dropped:
        print_lines(f"Dropped {intent.number}: {subject_of(intent)}")
    for each in drop_logs(folder, spools_in(folder) if options.all else ()):
        print_lines(f"Dropped {_amount(each.count)} of {each.run} for {each.logger}")
    return ExitCode.DONE


def _work_off(options: Namespace, retries: bool) -> ExitCode:
    folder, left, used = _folder(options.folder), list[Intent](), list[str]()
    objection = partial(_objection, _trusted(options.hubs), options.repositories, destinations_of(folder))
    if any(intents_of(folder, name) for name in names_in(folder)):
        with _opened(options.folder, objection=objection) as publisher:
            used = publisher.outboxes_of_others()
            if retries:
                publisher.retry()
            left += publisher.finish(options.limit_seconds)
    for intent in left:
        print_lines(*_lines(intent))
    spools = dict.fromkeys(each.spool for each in waiting_logs(folder))
    logs = [
        each
        for name in spools
        for each in deliver_logs(folder, name, options.limit_seconds, options.folder, options.trackers)
    ]
    for each in logs:
        print_lines(f"{_amount(each.count)} for {each.name}{f': {each.problem}' if each.problem else ''}")
    if used:
        raise _in_use(folder, used[0])
    if not left and not logs:
        print_lines(f"Nothing is left in the outbox of {options.folder}.")
    return ExitCode.FAILED if left or logs else ExitCode.DONE


def _trusted(given: Sequence[str]) -> frozenset[str]:
    """Return the addresses of the hubs that may get what is left, and the user's token."""
    named = (each if "://" in each else FOLDER_SCHEME + os.path.abspath(each) for each in given)
    return frozenset({HUGGING_FACE, hub_at().address, *(each.rstrip("/") for each in named)})


def _objection(hubs: Collection[str], repositories: Collection[str], noted: Destinations, push: Push) -> str:
    """Return why a push is not made: its hub or repository is one that neither the user nor a run has named."""
    if "://" not in push.hub:
        return ""
    needed = [] if push.hub in hubs else ["--hub", push.hub]
    if push.name not in repositories and (push.hub, push.name) not in noted.pushes:
        needed += ["--repository", push.name]
    if not needed:
        return ""
    what = "" if push.hub in hubs else f" on {push.hub}"
    who = ", which no run of yours in this folder, on this machine, noted" if "--repository" in needed else ""
    return (
        f"It is for {push.name}{what}{who}. If that may get it and your token, add to the command: retry "
        f"{shlex.join(needed)}"
    )


@contextmanager
def _opened(
    given: str, name: str | None = None, objection: Callable[[Push], str] = lambda push: "", deliver: bool = True
) -> Iterator[HubPublisher]:
    """Open an outbox, and work it off if asked to. Raises RunStateError if a live process uses it."""
    folder = state_folder(given)
    publisher = HubPublisher(hub_at(), folder, storage_for(given), objection=objection)
    try:
        if not publisher.open(name, deliver):
            raise _in_use(folder, str(name))
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"The outbox in {folder} cannot be opened: {error}.") from error
    try:
        yield publisher
    finally:
        publisher.close()


def _in_use(folder: str, name: str) -> RunStateError:
    return RunStateError(
        f"A live process uses the outbox {name} in {folder} and publishes what is in it; wait until it ends."
    )


def _folder(given: str) -> str:
    folder = state_folder(given)
    if is_missing(given):
        raise ConfigurationError(f"There is no folder {given}; name the output folder of a run, or its URL.")
    return folder


def _amount(count: int | None) -> str:
    """Return how many items a logger does not have; 0 if it only was not finished, None if that is not counted."""
    return (
        "More than can be counted" if count is None else {0: "The end", 1: "1 record"}.get(count, f"{count:,} records")
    )


def _lines_of_dropped(dropped: Dropped) -> Sequence[str]:
    first = f"{dropped.number}  {_moment(dropped.at)}  dropped: {dropped.subject}"
    return first[:LONGEST_LINE], f"  {dropped.reason}"[:LONGEST_LINE]


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _lines(intent: Intent) -> Sequence[str]:
    since = _moment(intent.number / 1e9)
    state = "refused" if intent.refused else "waits"
    tried = f", tried {intent.failures} {'time' if intent.failures == 1 else 'times'}" if intent.failures else ""
    first = f"{intent.number}  {since}  {state}{tried}: {subject_of(intent)}"
    return [first[:LONGEST_LINE], *([f"  {intent.problem}"[:LONGEST_LINE]] if intent.problem else [])]


def _document(intent: Intent) -> dict[str, Any]:
    return {
        "entry": intent.number,
        "subject": subject_of(intent),
        "repository": intent.path,
        "refused": intent.refused,
        "failures": intent.failures,
        "problem": intent.problem,
    }
