"""The side of a run: a thread that reads commands, and what becomes of each, in the journal and in the log."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

from attrs import define, field

from hexloop.app.arguments import TrainingArguments
from hexloop.app.assembly.adapters import Adapters
from hexloop.app.control.files import Action, CommandFolder, RefusedCommand, RunCommand
from hexloop.domain.events import AnyEvent, Paused
from hexloop.domain.requests import Requests, SaveRequest
from hexloop.ports.logger import Journal

LOGGER = logging.getLogger("hexloop")

PERIOD = 0.5
"""Seconds between two looks at the folder of commands."""

BEAT = 5.0
"""Seconds between two reports that commands are read."""

MOST_REFUSED = 100
"""How many commands that were not obeyed a session of a run records. Further ones are refused silently."""

LONGEST_WAIT = 10.0
"""Seconds for which the end of a run waits for a look at a folder that does not answer."""

Handlers = dict[type[AnyEvent], Callable[[Any], None]]


@define
class CommandListener:
    """Reads the commands in `folder` and turns them into requests to the run. It never fails the run.

    step: returns the number of optimizer steps done. period: seconds between two looks.
    """

    folder: CommandFolder
    requests: Requests
    journal: Journal
    step: Callable[[], int]
    period: float = PERIOD
    _pause: RunCommand | None = field(default=None, init=False)
    _saves: list[tuple[RunCommand, SaveRequest]] = field(factory=list, init=False)
    _refused: int = field(default=0, init=False)
    _ended: threading.Event = field(factory=threading.Event, init=False)
    _thread: threading.Thread = field(init=False)

    def start(self) -> None:
        """Void the commands that are older than the run, and read new ones from now on, in a thread."""
        self._safely(lambda: list(map(self._refuse, self.folder.begin())))
        self._thread = threading.Thread(target=self._listen, name="hexloop commands", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Read no more commands, and record what became of those that were taken."""
        self._ended.set()
        self._thread.join(LONGEST_WAIT)
        self._report_saves(ended=True)

    def handlers(self) -> Handlers:
        """Return the handlers of events of the run."""
        return {Paused: self._paused}

    def look(self) -> None:
        """Apply the commands that are new."""
        for each in self.folder.take():
            if isinstance(each, RefusedCommand):
                self._refuse(each)
            else:
                self._note(each, "accepted", step=self.step())
                self._apply(each)

    def _listen(self) -> None:
        beaten = -BEAT
        while not self._ended.wait(self.period):
            self._safely(self.look)
            self._report_saves()
            if monotonic() - beaten >= BEAT or self.folder.listened_at() is None:
                beaten = monotonic()
                self._safely(self.folder.beat)

    def _apply(self, command: RunCommand) -> None:
        action, requests, who = command.action, self.requests, f"the board (command {command.sequence}, {command.by})"
        if action is Action.PAUSE:
            self._pause = command
            requests.pause()
        elif action is Action.RESUME:
            self._pause = None
            requests.resume()
            LOGGER.warning("Resumed at step %s by %s.", f"{self.step():,}", who)
        elif action is Action.SAVE:
            self._saves.append((command, requests.request_save()))
            LOGGER.info("A save was requested at step %s by %s.", f"{self.step():,}", who)
        else:
            LOGGER.warning("Stopped at step %s by %s.", f"{self.step():,}", who)
            requests.request_stop(f"stopped by {who}", save=True)

    def _paused(self, event: Paused) -> None:
        """Record which command has paused the run. While it is paused, this is called again and again."""
        command, self._pause = self._pause, None
        if command is not None:
            self._note(command, "done", step=event.step)
            who = f"the board (command {command.sequence}, {command.by})"
            LOGGER.warning("Paused at step %s by %s; it can be resumed and stopped there.", f"{event.step:,}", who)

    def _report_saves(self, ended: bool = False) -> None:
        """Record the saves that are written or have failed."""
        for command, request in [each for each in self._saves if each[1].done or ended]:
            self._saves.remove((command, request))
            try:
                self._note(command, "done", checkpoint=request.wait(0))
            except Exception as error:  # of the save; a request that is left has none, because the run is over
                reason = "the run ended before" if isinstance(error, TimeoutError) else str(error)
                self._note(command, "failed", reason=reason)

    def _refuse(self, refused: RefusedCommand) -> None:
        self._refused += 1
        if self._refused > MOST_REFUSED:
            return
        self.journal.note("command", sequence=refused.sequence, outcome="refused", reason=refused.reason)
        LOGGER.warning("Command %d of the board was not obeyed: %s.", refused.sequence, refused.reason)

    def _note(self, command: RunCommand, outcome: str, **facts: Any) -> None:
        action, sequence = command.action.value, command.sequence
        self.journal.note("command", sequence=sequence, action=action, by=command.by, outcome=outcome, **facts)

    def _safely(self, act: Callable[[], object]) -> None:
        try:
            act()
        except Exception as error:
            LOGGER.debug("The commands in %s cannot be read: %s", self.folder.path, error)


def listener_for(
    args: TrainingArguments, adapters: Adapters, requests: Requests, run: str, step: Callable[[], int]
) -> CommandListener | None:
    """Return what reads the commands to a run; None if it has `board_control=False`, or has no journal for the board.

    The board commands runs in local folders that write a journal. With several processes, the first one reads.
    """
    folder = adapters.storage.capabilities.local_folder
    is_seen = folder is not None and args.journal != "off" and args.save_strategy != "no"
    if not args.board_control or not is_seen or not adapters.mesh.writes:
        return None
    return CommandListener(CommandFolder(Path(str(folder)), run), requests, adapters.journal, step)
