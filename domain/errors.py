"""The errors of a run. Each message says what was chosen, why it cannot work, and what to do."""

from __future__ import annotations

from collections.abc import Iterable


class HexloopError(Exception):
    """Base of every error that hexloop raises on purpose."""


class ConfigurationError(HexloopError, ValueError):
    """A configuration that cannot run. `problems` holds every one of them once, each a whole sentence."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(dict.fromkeys(problems))
        if len(self.problems) == 1:
            text = self.problems[0]
        else:
            listed = "".join(f"\n  {number}. {problem}" for number, problem in enumerate(self.problems, 1))
            text = f"{len(self.problems)} problems in the configuration:{listed}"
        super().__init__(text)

    def __reduce__(self) -> tuple[type[ConfigurationError], tuple[tuple[str, ...]]]:
        return type(self), (self.problems,)  # made anew of its problems, where it comes from another process


class DataError(HexloopError, ValueError):
    """A batch that cannot be trained on, found on the first batch, before the first update."""


class RunStateError(HexloopError, RuntimeError):
    """Something was asked of a run that its present state does not allow (a second `train` while one is live, say)."""


class NotFiniteError(HexloopError, ValueError):
    """A run that was to be watched for numbers that are not finite met some; the message says where."""


class CheckpointError(HexloopError):
    """A checkpoint that is missing, incomplete or damaged; the message names those that are good."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint that was complete once, and no longer holds what was stored."""


class UnreadableCheckpointError(CheckpointError):
    """A checkpoint that may be good, but that the storage does not give at present, or cannot check."""


class NewerSchemaError(CheckpointError):
    """A document that a newer hexloop wrote."""


class StorageError(HexloopError, OSError):
    """The storage could not do what was asked; what it already held is intact."""


class StorageFullError(StorageError):
    """The storage has no room left; what it already held is intact."""


class CollectiveError(HexloopError, RuntimeError):
    """The processes of a run did not agree in time; `missing` names the ranks that never came."""

    def __init__(self, message: str, missing: Iterable[int] = ()) -> None:
        self.missing = tuple(missing)
        super().__init__(message)
