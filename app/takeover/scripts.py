"""Running a script or a module as the main program, as `python` does."""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from attrs import frozen

from hexloop.domain.errors import ConfigurationError

FAILED, INTERRUPTED = 1, 130


@frozen
class Program:
    """A program of the user: the path of a script, or the name of a module, and its arguments."""

    name: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False

    def run(self) -> int:
        """Run it as `__main__` and return its exit code.

        An exception that the program does not catch is reported by `sys.excepthook`, with a traceback that starts at
        the program, and is the exit code 1; 130 if it is a KeyboardInterrupt.
        Raises ConfigurationError if there is no such script or module.
        """
        with _as_main_program(self):
            try:
                self._refuse_missing()
            except ConfigurationError:
                raise
            except BaseException as error:  # of a package that contains the module
                _report(error)
                return FAILED
            try:
                if self.is_module:
                    runpy.run_module(self.name, run_name="__main__", alter_sys=True)
                else:
                    runpy.run_path(os.path.abspath(self.name), run_name="__main__")
            except SystemExit as ended:
                return _exit_code(ended)
            except BaseException as error:
                _report(error)
                return INTERRUPTED if isinstance(error, KeyboardInterrupt) else FAILED
        return 0

    def refuse_missing(self) -> None:
        """Raise ConfigurationError if there is no such script or module; other problems show when it runs."""
        with _as_main_program(self):
            try:
                self._refuse_missing()
            except ConfigurationError:
                raise
            except Exception:  # of a package that contains the module
                return

    def _refuse_missing(self) -> None:
        if not self.is_module:
            if not os.path.exists(self.name):
                raise ConfigurationError(f"You chose {self.name!r}, but there is no such file; name a Python script.")
            return
        try:
            spec = importlib.util.find_spec(self.name)
            main = spec
            if spec is not None and spec.submodule_search_locations is not None:
                main = importlib.util.find_spec(f"{self.name}.__main__")
        except ModuleNotFoundError as error:
            if not f"{self.name}.__main__.".startswith(f"{error.name}."):
                raise  # a package that contains the module imports something that is missing
            spec = main = None
        except ValueError:  # the module has no spec, as __main__ may have none
            spec = main = None
        if spec is None:
            raise ConfigurationError(
                f"You chose -m {self.name!r}, but there is no such module; check its name, and that it is installed or "
                "in the working directory."
            )
        if main is None:
            raise ConfigurationError(
                f"You chose -m {self.name!r}, but that is a package without __main__.py; name one of its modules."
            )


@contextmanager
def _as_main_program(program: Program) -> Iterator[None]:
    """Set `sys.argv` and the first entry of `sys.path` as `python` does for a program; restore both afterwards."""
    argv, path = sys.argv, list(sys.path)
    sys.argv = [program.name, *program.arguments]
    first = os.getcwd() if program.is_module else os.path.dirname(os.path.realpath(program.name))
    # Where Python set the first entry itself, it is for the command `hexloop`, and not for the program.
    sys.path[: 0 if sys.flags.safe_path else 1] = [first]
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path


def _exit_code(ended: SystemExit) -> int:
    """Return the exit code that Python would exit with; print a text, as Python does."""
    if ended.code is None:
        return 0
    if isinstance(ended.code, int):
        return ended.code
    print(ended.code, file=sys.stderr)
    return FAILED


def _report(error: BaseException) -> None:
    """Report an exception as Python does, without the frames that lead to the program."""
    frames = error.__traceback__
    while frames is not None and _leads_to_program(frames):
        frames = frames.tb_next
    sys.stdout.flush()
    sys.excepthook(type(error), error.with_traceback(frames), frames)


def _leads_to_program(traceback: TracebackType) -> bool:
    return traceback.tb_frame.f_globals.get("__name__") in (__name__, "runpy")
