"""`hexloop checkpoints list`: what is in a folder, and whether it is good."""

from __future__ import annotations

import argparse
import json
import time

from hexloop.app.command_line.exit_codes import ExitCode

HELP = "list the checkpoints in a folder, good and bad"

DESCRIPTION = """\
Lists the checkpoints in a folder, and what else there is: what was set aside, what is
unfinished, and what has the name of a checkpoint and is none. Every byte of each
checkpoint is read. Nothing is changed.

Exits with 0 where no checkpoint is bad, with 1 where one is."""


def add(parser: argparse.ArgumentParser) -> None:
    """Describe the options."""
    parser.add_argument("folder", metavar="FOLDER", help="the folder or URL that the checkpoints are in")
    parser.add_argument("--quick", action="store_true", help="read manifests only: verify nothing, show no metrics")
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def run(options: argparse.Namespace) -> ExitCode:
    """Print the table; FAILED where a checkpoint is bad."""
    from hexloop.app.command_line.checkpoints.places import open_folder
    from hexloop.app.command_line.checkpoints.table import lines_of, rows_of
    from hexloop.domain.checkpoints.selection import FolderStatus, survey

    storage = open_folder(options.folder)
    rows = rows_of(storage, list(survey(storage, options.quick)))
    if options.json:
        print(json.dumps({"folder": options.folder, "checkpoints": [row.document() for row in rows]}, indent=2))
    elif rows:
        print("\n".join(lines_of(rows, time.time())))
    else:
        print(f"No checkpoint is in {options.folder}.")
    return ExitCode.FAILED if any(row.found.status is FolderStatus.BAD for row in rows) else ExitCode.DONE
