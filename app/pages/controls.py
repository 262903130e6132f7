"""The controls of live runs on a page: whether a run can be commanded, its buttons, and what became of each command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from attrs import evolve

from hexloop.app.control.files import Action, CommandFolder
from hexloop.app.pages.history import CommandRecord, Outcome, Session
from hexloop.app.pages.markup import Markup, joined, table, tag
from hexloop.app.pages.page import Content, Section
from hexloop.app.pages.reading import RunRecord
from hexloop.app.pages.timeline import RUNNING_FOR, moment
from hexloop.app.pages.watching import WatchedRuns
from hexloop.domain.errors import ConfigurationError

LISTENING_FOR = 60.0
"""Seconds after which a run that has not reported that it reads commands is taken for lost."""

MOST_COMMANDS = 20
"""How many commands of a run are listed, the last ones."""

LABELS = {Action.PAUSE: "Pause", Action.RESUME: "Resume", Action.SAVE: "Save", Action.STOP: "Save and stop"}


def with_controls(content: Content, folders: Sequence[str], records: Sequence[RunRecord], now: float) -> Content:
    """Return what a page shows, with the controls of its runs after the first section."""
    parts = [
        joined(
            tag("h3", record.label) if len(records) > 1 else "",
            _buttons(number, folder, record, now),
            _commands(record),
        )
        for number, (folder, record) in enumerate(zip(folders, records, strict=True))
    ]
    answer = tag("p", "", id="answer", role="status", class_="note")
    first, *rest = content.sections
    return evolve(content, sections=[first, Section("control", "Control", joined(parts, answer)), *rest])


def give_command(runs: WatchedRuns, document: Any, now: float) -> int:
    """Give the command in a request to a run, and return its number. Raises ConfigurationError if it cannot be given.

    The request names the run that its page showed, so that it cannot reach another one that started there meanwhile.
    """
    if not isinstance(document, dict) or {type(each) for each in document.values()} != {str}:
        raise ConfigurationError("The command is not an object of texts.")
    if set(document) != {"folder", "run", "action"} or document["action"] not in [each.value for each in Action]:
        raise ConfigurationError("The command needs a folder, a run, and one of the actions pause, resume, save, stop.")
    (record,) = runs.show([document["folder"]], list)
    if record.history.name != document["run"]:
        raise ConfigurationError("Another run has started in this folder; reload the page.")
    if problem := obstacle(record, now):
        raise ConfigurationError(f"The run cannot be commanded: {problem}.")
    try:
        return _folder(record).give(Action(document["action"]))
    except OSError as error:
        raise ConfigurationError(
            f"The command cannot be written to {_folder(record).path} ({error.strerror or error}). To command the run, "
            "this user must be able to write there."
        ) from error


def obstacle(record: RunRecord, now: float) -> str:
    """Return why a run cannot be commanded, "" if it can be."""
    history = record.history
    sessions: list[Session] = history.sessions.entries
    allowed = history.settings.get("board_control")
    if not sessions or allowed is None:
        return "it does not read commands, because it has no journal or is of an earlier release"
    if sessions[-1].outcome is not Outcome.LOST:
        return "it has ended"
    if allowed is not True:
        return "it was started with board_control=False"
    seen = history.seen or 0.0
    if now - seen >= RUNNING_FOR and now - (_folder(record).listened_at() or 0.0) >= LISTENING_FOR:
        return f"it has not reported since {moment(seen)} UTC"
    return ""


def _folder(record: RunRecord) -> CommandFolder:
    return CommandFolder(Path(record.folder), record.history.name)


def _buttons(number: int, folder: str, record: RunRecord, now: float) -> Markup:
    if problem := obstacle(record, now):
        return tag("p", f"This run cannot be commanded: {problem}.", class_="note")
    paused = record.history.paused_at is not None
    buttons = [
        tag(
            "button",
            label,
            type="button",
            id=f"{action.value}-{number}",
            class_="command",
            data_action=action.value,
            data_folder=quote(folder, errors="replace"),
            data_run=quote(record.history.name, errors="replace"),
            disabled=action is (Action.PAUSE if paused else Action.RESUME),
            aria_label=f"{label}: {record.label}",
        )
        for action, label in LABELS.items()
    ]
    waiting = len(_folder(record).waiting())
    words = f"{waiting} given, not taken by the run yet." if waiting else ""
    return joined(tag("div", buttons, class_="buttons"), tag("p", words, class_="note") if words else "")


def _commands(record: RunRecord) -> Markup:
    commands: list[CommandRecord] = record.history.commands.entries[-MOST_COMMANDS:]
    if not commands:
        return Markup()
    rows = [
        (f"{each.sequence}", each.action or "-", each.by or "-", moment(each.time), _result(each))
        for each in reversed(commands)
    ]
    return table(("number", "command", "given by", "taken at (UTC)", "result"), rows, "Commands, the last one first")


def _result(command: CommandRecord) -> str:
    between = " " if not command.detail or command.detail.startswith("at step") else ": "
    return f"{command.outcome}{between}{command.detail}".strip()
