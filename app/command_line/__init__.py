"""The command line: `hexloop train`, `evaluate`, `predict`, `run`, `launch`, `checkpoints`, `runs`, `report`,
`board` and `doctor`.

The module of a command is imported only when the command runs, so that `--help` and `--version` return quickly.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from importlib import import_module
from pathlib import Path

import hexloop
from hexloop.app.printing import print_text, remember_secrets_of_environment
from hexloop.domain.errors import ConfigurationError, HexloopError
from hexloop.domain.limits import limits_in, reading_limits
from hexloop.domain.redaction import printable_lines, redact

REQUESTED = "_ARGCOMPLETE"
"""The environment variable that the script of a shell sets when it asks for completions."""


class ExitCode(IntEnum):
    """The exit codes of `hexloop`; 128 + n if a signal n ended the process immediately."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    STOPPED = 3
    INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command given by `argv` (default: the arguments of this process) and return its exit code."""
    if argv is None and REQUESTED in os.environ:
        from hexloop.app.command_line.completion import complete

        complete()
    from hexloop.app.command_line.parser import read_options

    try:
        options = read_options(sys.argv[1:] if argv is None else argv)
    except SystemExit as ended:  # argparse has printed the help or an error
        return int(ended.code or 0)
    remember_secrets_of_environment()
    module, _, function = options.function.partition(":")
    with plain_warnings():
        try:
            with reading_limits(**limits_in(options.limit)):
                return int(getattr(import_module(module), function)(options))
        except (KeyboardInterrupt, SystemExit) as interrupt:  # SystemExit: by a second signal other than SIGINT
            print_text("\n".join(["\nhexloop: interrupted.", *getattr(interrupt, "__notes__", ())]))
            code = getattr(interrupt, "code", None)
            return code if isinstance(code, int) else ExitCode.INTERRUPTED
        except Exception as error:
            return report(error, show_traceback=options.traceback)


def report(error: Exception, show_traceback: bool) -> ExitCode:
    """Print `error` to standard error and return the exit code for it.

    hexloop's own errors are printed without a traceback unless `show_traceback`; all others with one.
    """
    if show_traceback or not isinstance(error, HexloopError):
        print_text("".join(traceback.format_exception(error)).rstrip("\n"))
    else:
        print_text("\n".join([f"hexloop: {error}", *getattr(error, "__notes__", ())]))
    return ExitCode.USAGE if isinstance(error, ConfigurationError) else ExitCode.FAILED


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Print hexloop's own warnings without file and line; all others in Python's format."""
    usual, package = warnings.formatwarning, str(Path(hexloop.__file__).parent)

    def formatted(message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None) -> str:
        if filename.startswith(package):
            return f"{printable_lines(redact(f'hexloop: warning: {message}'))}\n"
        return usual(message, category, filename, lineno, line)

    warnings.formatwarning = formatted  # type: ignore[assignment]  # typeshed wants the last parameter's default
    try:
        yield
    finally:
        warnings.formatwarning = usual
