"""The errors that hexloop raises. A message says what is wrong with which value, why, and how to fix it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Self

from hexloop.domain.redaction import redact


class HexloopError(Exception):
    """Base of all errors of hexloop. Their messages contain no secrets."""

    def __str__(self) -> str:
        return redact(super().__str__())


class ConfigurationError(HexloopError, ValueError):
    """A configuration that cannot work. `problems` lists everything that is wrong with it, one sentence each.

    The error is also an instance of the kinds that its problems state, such as TypeError.

    Args:
        problems: what is wrong, one sentence each.
    """

    def __new__(cls, problems: str | Iterable[str]) -> Self:
        """Make an error of the kinds that the problems state."""
        listed = (problems,) if isinstance(problems, str) else problems if isinstance(problems, Sequence) else ()
        kinds = filter(None, (getattr(each, "kind", None) for each in listed))  # see `hexloop.domain.wording.Problem`
        made: type[Self] = _of_kinds(cls, tuple(dict.fromkeys(kinds)))  # type: ignore[arg-type]  # types are hashable
        return OSError.__new__(made) if issubclass(made, OSError) else super().__new__(made)  # as Python requires

    def __init__(self, problems: str | Iterable[str]) -> None:
        given = (problems,) if isinstance(problems, str) else tuple(dict.fromkeys(problems))
        self.problems = tuple(each if (clean := redact(each)) == each else clean for each in given)
        if len(self.problems) == 1:
            text = self.problems[0]
        else:
            listed = "".join(f"\n  {number}. {problem}" for number, problem in enumerate(self.problems, 1))
            text = f"{len(self.problems)} problems in the configuration:{listed}"
        super().__init__(text)

    def __str__(self) -> str:
        return redact(str(self.args[0]))

    def __reduce__(self) -> tuple[type[ConfigurationError], tuple[tuple[str, ...]]]:
        own = next(each for each in type(self).__mro__ if not each.__dict__.get("_is_made"))
        return own, (self.problems,)  # so that it can be pickled


@cache
def _of_kinds(cls: Any, kinds: tuple[type[Exception], ...]) -> Any:
    """Return a class of the same name that also derives from the kinds, of which it does not derive yet."""
    further = [kind for kind in kinds if not any(issubclass(each, kind) for each in (cls, *kinds) if each is not kind)]
    named = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "_is_made": True}
    return type(cls.__name__, (cls, *further), named) if further else cls


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


class MissingCheckpointError(CheckpointError, ValueError):
    """There is no checkpoint where one was named; also a ValueError, as an invalid argument."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint that was complete and no longer holds what was stored."""


class ChangedCheckpointError(DamagedCheckpointError):
    """A checkpoint that changed between its verification and its loading."""


class SignatureError(CheckpointError):
    """A checkpoint that is not signed by the key that is required, or was changed without it."""


class UnreadableCheckpointError(CheckpointError):
    """A checkpoint that may be good, but cannot be read or verified at present."""


class NewerSchemaError(CheckpointError):
    """A document that a newer version of hexloop wrote."""


class StorageError(HexloopError, OSError):
    """A storage operation that failed; what was stored before is intact."""


class MissingFileError(StorageError):
    """A path at which there is nothing, or no longer."""


class IrregularFileError(StorageError):
    """A path that leads out of the storage, or at which there is no regular file; it is never read."""


class StorageFullError(StorageError):
    """The storage is full; what was stored before is intact."""


class RefusedError(StorageError):
    """An operation that a service will not accept, however often it is tried: a wrong token, name or permission."""


class UnavailableError(StorageError):
    """An operation that a service could not do at present.

    Args:
        message: what is wrong, why, and how to fix it.
        retry_after: the seconds to wait that it asked for.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class CollectiveError(HexloopError, RuntimeError):
    """The processes of a run lost contact.

    Args:
        message: what is wrong, why, and how to fix it.
        missing: the ranks that did not respond in time.
    """

    def __init__(self, message: str, missing: Iterable[int] = ()) -> None:
        self.missing = tuple(missing)
        super().__init__(message)
