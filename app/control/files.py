"""The files by which the board commands a run: one for each command, and one with the last that the run has taken.

They are in the folder `.hexloop/commands` of the run's output folder. Any user who can write there can command the
run. A file is named after the run and a number; the run takes each number once, and never one that is not above the
last.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum
from itertools import islice
from pathlib import Path

from attrs import define, field, frozen

from hexloop.domain.folders import Folder
from hexloop.domain.json_documents import read_bytes, read_json
from hexloop.domain.limits import limits
from hexloop.domain.regular_files import chunks_of, open_regular
from hexloop.domain.run_folder import COMMANDS

SCHEMA = 1

MOST_FILES = 10_000
"""How many files of the folder are looked at."""

MOST_IGNORED = 1_000
"""How many files that could not be removed are remembered, so that they are not refused again."""

LARGEST_NUMBER = 10**15

ATTEMPTS = 100
"""How often a command is given another number because another board has used it meanwhile."""


class Action(Enum):
    """What a run can be told to do."""

    PAUSE = "pause"
    RESUME = "resume"
    SAVE = "save"
    STOP = "stop"


@frozen
class RunCommand:
    """A command that the run has taken. by: the user who owns its file."""

    sequence: int
    action: Action
    by: str


@frozen
class RefusedCommand:
    """A file that is not obeyed, and why."""

    sequence: int
    reason: str


@define
class CommandFolder:
    """The commands to the run `run`, whose output folder is `output`."""

    output: Path
    run: str
    _last: int = field(default=0, init=False)
    _ignored: set[int] = field(factory=set, init=False)

    @property
    def path(self) -> Path:
        """The folder of the commands, which need not exist."""
        return self.output / COMMANDS

    # The side of the board

    def give(self, action: Action) -> int:
        """Write a command, and return its number. Raises OSError."""
        Folder(self.output, COMMANDS.rpartition("/")[0]).make()
        self._folder.make(mode=0o700)
        number = 1 + max([self.last_taken(), *self.waiting()])
        for sequence in range(number, number + ATTEMPTS):
            document = {"schema": SCHEMA, "run": self.run, "sequence": sequence, "action": action.value}
            with suppress(FileExistsError):
                self._folder.create(self._file(sequence).name, json.dumps(document).encode())
                return sequence
        raise FileExistsError(f"{self.path} has commands that others have written")

    def waiting(self) -> list[int]:
        """Return the numbers of the commands that the run has not taken, in order."""
        if not self.exists():
            return []
        with os.scandir(self.path) as entries:
            found = [
                match[1] for entry in islice(entries, MOST_FILES) if (match := self._pattern.fullmatch(entry.name))
            ]
        return sorted(int(each) for each in found if 0 < int(each) < LARGEST_NUMBER)

    def exists(self) -> bool:
        """Return whether there is a folder of commands, which is not a link."""
        return self._folder.exists()

    def last_taken(self) -> int:
        """Return the number of the last command that the run has taken, 0 if there is none."""
        with suppress(OSError, ValueError):
            document = _document(self._taken)
            if isinstance(document, dict) and document.get("run") == self.run and _is_number(document.get("sequence")):
                return int(document["sequence"])
        return 0

    def listened_at(self) -> float | None:
        """Return when the run last reported that it reads commands, in seconds since the epoch; None if it has not."""
        with suppress(OSError):
            return os.lstat(self._taken).st_mtime
        return None

    # The side of the run

    def begin(self) -> list[RefusedCommand]:
        """Void the commands that were given before the run started, and return them."""
        if not self.exists():
            return []
        waiting = self.waiting()
        self._last = max([self.last_taken(), *waiting])
        self._record()
        for each in waiting:
            self._remove(each)
        return [RefusedCommand(each, "it was given before the run started") for each in waiting]

    def take(self) -> Iterator[RunCommand | RefusedCommand]:
        """Yield the commands that are new, each once and in order. A command counts as taken before it is yielded.

        Raises OSError if the folder cannot be read.
        """
        for sequence in self.waiting():
            if sequence in self._ignored:
                continue
            try:
                taken = self._read(sequence)
                if isinstance(taken, RunCommand):
                    self._last = sequence
                    self._record()
            except FileNotFoundError:
                continue  # its file was removed meanwhile
            except (OSError, ValueError) as error:
                reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
                taken = RefusedCommand(sequence, reason)
            self._remove(sequence)
            yield taken

    def beat(self) -> None:
        """Report that the run reads commands, where there is a folder for them. Raises OSError."""
        if not self.exists():
            return
        try:
            os.utime(self._taken)
        except FileNotFoundError:
            self._record()

    def _read(self, sequence: int) -> RunCommand | RefusedCommand:
        if sequence <= self._last:
            return RefusedCommand(sequence, f"its number is not above {self._last}, the last that was taken")
        path = self._file(sequence)
        document = _document(path)
        expected = {"schema": SCHEMA, "run": self.run, "sequence": sequence}
        if not isinstance(document, dict) or set(document) != {*expected, "action"}:
            raise ValueError("it is not a command")
        for name, value in expected.items():
            if type(document[name]) is not type(value) or document[name] != value:
                raise ValueError(f"its {name} is {document[name]!r:.80}, not {value!r}")
        if document["action"] not in [each.value for each in Action]:
            raise ValueError(f"its action is {document['action']!r:.80}, which a run does not know")
        return RunCommand(sequence, Action(document["action"]), _owner(path))

    def _record(self) -> None:
        document = {"run": self.run, "sequence": self._last}
        self._folder.replace(self._taken.name, json.dumps(document).encode())

    @property
    def _folder(self) -> Folder:
        """The folder of the commands, in which no link is followed, nor on the way from the output folder."""
        return Folder(self.output, COMMANDS)

    def _remove(self, sequence: int) -> None:
        try:
            os.unlink(self._file(sequence))
        except FileNotFoundError:
            return
        except OSError:
            if len(self._ignored) < MOST_IGNORED:
                self._ignored.add(sequence)

    @property
    def _key(self) -> str:
        """What the names of the run's files begin with. The run's own name need not fit a file system."""
        return hashlib.blake2b(self.run.encode("utf-8", "replace"), digest_size=8).hexdigest()

    @property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(rf"{self._key}-([1-9][0-9]{{0,14}})\.json")

    @property
    def _taken(self) -> Path:
        return self.path / f"{self._key}.taken"

    def _file(self, sequence: int) -> Path:
        return self.path / f"{self._key}-{sequence}.json"


def _document(path: Path) -> object:
    """Return the document in a small regular file. Raises OSError and ValueError."""
    descriptor = open_regular(path)
    try:
        return read_json(read_bytes(chunks_of(descriptor), limits().command_bytes))
    finally:
        os.close(descriptor)


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value < LARGEST_NUMBER


def _owner(path: Path) -> str:
    """Return the name of the user who owns a file, which tells more than what is written in it."""
    number = os.lstat(path).st_uid
    with suppress(ImportError, KeyError):
        import pwd

        return pwd.getpwuid(number).pw_name
    return f"user {number}"
