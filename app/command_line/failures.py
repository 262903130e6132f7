"""How what went wrong is told."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import hexloop
from hexloop.app.command_line.exit_codes import ExitCode
from hexloop.domain.errors import ConfigurationError, HexloopError

PACKAGE = str(Path(hexloop.__file__).parent)


def report(error: Exception, show_traceback: bool) -> ExitCode:
    """Print `error` on standard error; gives the exit code that it makes for.

    hexloop's own errors say all in their message, anything else shows where it was raised.
    """
    if show_traceback or not isinstance(error, HexloopError):
        traceback.print_exception(error)
    else:
        print(f"hexloop: {error}", *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
    return ExitCode.USAGE if isinstance(error, ConfigurationError) else ExitCode.FAILED


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Show hexloop's own warnings by their messages alone, and those of others as Python does."""
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
