"""Exit codes, and how errors and warnings are printed."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path

import hexloop
from hexloop.domain.errors import ConfigurationError, HexloopError

PACKAGE = str(Path(hexloop.__file__).parent)


class ExitCode(IntEnum):
    """The exit codes of `hexloop`; 128 + n if a signal n ended the process immediately."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    STOPPED = 3
    INTERRUPTED = 130


def report(error: Exception, show_traceback: bool) -> ExitCode:
    """Print `error` to standard error and return the exit code for it.

    hexloop's own errors are printed without a traceback unless `show_traceback`; all others with one.
    """
    if show_traceback or not isinstance(error, HexloopError):
        traceback.print_exception(error)
    else:
        print(f"hexloop: {error}", *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
    return ExitCode.USAGE if isinstance(error, ConfigurationError) else ExitCode.FAILED


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Print hexloop's own warnings without file and line; all others in Python's format."""
    usual = warnings.formatwarning

    def formatted(message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None) -> str:
        if filename.startswith(PACKAGE):
            return f"hexloop: warning: {message}\n"
        return usual(message, category, filename, lineno, line)

    warnings.formatwarning = formatted  # type: ignore[assignment]  # typeshed wants the last parameter's default
    try:
        yield
    finally:
        warnings.formatwarning = usual
