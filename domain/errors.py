"""The errors that hexloop raises. A message says what is wrong with which value, why, and how to fix it."""

from __future__ import annotations

from collections.abc import Iterable


class HexloopError(Exception):
    """Base of all errors of hexloop."""


class ConfigurationError(HexloopError, ValueError):
    """A configuration that cannot work. `problems` lists everything that is wrong with it, one sentence each."""

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems = (problems,) if isinstance(problems, str) else tuple(dict.fromkeys(problems))
        if len(self.problems) == 1:
            text = self.problems[0]
        else:
            listed = "".join(f"\n  {number}. {problem}" for number, problem in enumerate(self.problems, 1))
            text = f"{len(self.problems)} problems in the configuration:{listed}"
        super().__init__(text)

    def __reduce__(self) -> tuple[type[ConfigurationError], tuple[tuple[str, ...]]]:
        return type(self), (self.problems,)  # so that it can be pickled


class DataError(HexloopError, ValueError):
    """Training data that cannot be used, found on the first batch, before the first update."""


class InputsError(DataError, TypeError):
    """Inputs that a model's forward does not take, or lacks; also a TypeError, as Python raises for such a call."""


class RunStateError(HexloopError, RuntimeError):
    """An operation that the state of the run does not allow, such as a second `train` while one is running."""


class NotFiniteError(HexloopError, ValueError):
    """A value that is not finite, in a run that checks for these; the message says where."""


class CheckpointError(HexloopError):
    """A checkpoint that is missing, incomplete or damaged; the message lists the good ones."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint that was complete and no longer holds what was stored."""


class UnreadableCheckpointError(CheckpointError):
    """A checkpoint that may be good, but cannot be read or verified at present."""


class NewerSchemaError(CheckpointError):
    """A document that a newer version of hexloop wrote."""


class StorageError(HexloopError, OSError):
    """A storage operation that failed; what was stored before is intact."""


class StorageFullError(StorageError):
    """The storage is full; what was stored before is intact."""


class CollectiveError(HexloopError, RuntimeError):
    """The processes of a run lost contact. `missing`: the ranks that did not respond in time."""

    def __init__(self, message: str, missing: Iterable[int] = ()) -> None:
        self.missing = tuple(missing)
        super().__init__(message)
