"""The command line: `hexloop train`, `evaluate`, `predict`, `launch`, `checkpoints`, `runs` and `doctor`.

Whatever a command needs is imported when it runs, so that `--help` and `--version` answer at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from hexloop.app.command_line.exit_codes import ExitCode
from hexloop.app.command_line.failures import plain_warnings, report

COMMANDS = {
    "train": "hexloop.app.command_line.training",
    "evaluate": "hexloop.app.command_line.evaluating",
    "predict": "hexloop.app.command_line.predicting",
    "launch": "hexloop.app.command_line.launch",
    "checkpoints": "hexloop.app.command_line.checkpoints",
    "runs": "hexloop.app.command_line.runs",
    "doctor": "hexloop.app.command_line.doctor",
}
"""The module of each command, whose `run` takes the options and gives the exit code."""


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the words of the command line say (those of this process where None); gives the exit code."""
    from hexloop.app.command_line.options import read_options

    try:
        options = read_options(sys.argv[1:] if argv is None else argv)
    except SystemExit as ended:  # argparse has printed the help, or what is wrong
        return int(ended.code or 0)
    with plain_warnings():
        try:
            return int(import_module(COMMANDS[options.command]).run(options))
        except (KeyboardInterrupt, SystemExit) as interrupt:  # the latter by the second coming of any other signal
            print("\nhexloop: interrupted.", *getattr(interrupt, "__notes__", ()), sep="\n", file=sys.stderr)
            code = getattr(interrupt, "code", None)
            return code if isinstance(code, int) else ExitCode.INTERRUPTED
        except Exception as error:
            return report(error, show_traceback=options.traceback)
