"""The command line: `hexloop train`, `evaluate`, `predict`, `launch`, `checkpoints`, `runs` and `doctor`.

The module of a command is imported only when the command runs, so that `--help` and `--version` return quickly.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from hexloop.app.command_line.errors import ExitCode, plain_warnings, report


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command given by `argv` (default: the arguments of this process) and return its exit code."""
    from hexloop.app.command_line.options import read_options

    try:
        options = read_options(sys.argv[1:] if argv is None else argv)
    except SystemExit as ended:  # argparse has printed the help or an error
        return int(ended.code or 0)
    module, _, function = options.function.partition(":")
    with plain_warnings():
        try:
            return int(getattr(import_module(module), function)(options))
        except (KeyboardInterrupt, SystemExit) as interrupt:  # SystemExit: by a second signal other than SIGINT
            print("\nhexloop: interrupted.", *getattr(interrupt, "__notes__", ()), sep="\n", file=sys.stderr)
            code = getattr(interrupt, "code", None)
            return code if isinstance(code, int) else ExitCode.INTERRUPTED
        except Exception as error:
            return report(error, show_traceback=options.traceback)
