"""`hexloop checkpoints verify`: whether checkpoints hold what was stored."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hexloop.app.command_line.exit_codes import ExitCode

if TYPE_CHECKING:
    from hexloop.domain.checkpoints.selection import CheckpointFolder

HELP = "read checkpoints through, and say what is wrong with each"

DESCRIPTION = """\
Reads every byte of each checkpoint and compares it with the manifest. A folder stands
for all checkpoints in it. Nothing is changed.

Exits with 0 where all are good, with 1 where one is not."""


def add(parser: argparse.ArgumentParser) -> None:
    """Describe the options."""
    parser.add_argument(
        "places", metavar="FOLDER|CHECKPOINT", nargs="+", help="folders of checkpoints, and checkpoints, or their URLs"
    )
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def run(options: argparse.Namespace) -> ExitCode:
    """Print what is good and what is wrong; FAILED where a checkpoint is not good."""
    from hexloop.app.command_line.checkpoints.places import refuse_missing
    from hexloop.domain.checkpoints.selection import FolderStatus

    refuse_missing(options.places)
    bad, documents = 0, []
    for given in options.places:
        for place, found, named in _found(given):
            good = found.status is FolderStatus.GOOD
            bad += found.status is FolderStatus.BAD or (named and not good)
            documents.append({"checkpoint": place, "good": good, "reason": found.reason})
            if not options.json:
                print(f"{place}: {found.status.value}", *[f"  {found.reason}"] * (not good), sep="\n", flush=True)
    if options.json:
        print(json.dumps({"checkpoints": documents, "bad": bad}, indent=2))
    else:
        print(f"Not good: {bad} of {len(documents)}." if bad else f"Good: all {len(documents)}.")
    return ExitCode.FAILED if bad else ExitCode.DONE


def _found(given: str) -> Iterator[tuple[str, CheckpointFolder, bool]]:
    """Where each checkpoint is, what it is, and whether it was named. Raises CheckpointError for a folder of none."""
    from hexloop.app.command_line.checkpoints.places import is_checkpoint, open_checkpoints, open_folder
    from hexloop.app.wiring.storage import joined
    from hexloop.domain.checkpoints.names import checkpoint_name
    from hexloop.domain.checkpoints.reading import checkpoint_steps
    from hexloop.domain.checkpoints.selection import examine
    from hexloop.domain.errors import CheckpointError

    if is_checkpoint(given):
        (place,) = open_checkpoints([given])
        yield given, examine(place.storage, place.name), True
        return
    storage = open_folder(given)
    steps = sorted(checkpoint_steps(storage))
    if not steps:
        raise CheckpointError(f"You chose {given}, but no checkpoint is in it; name another folder, or a checkpoint.")
    for name in map(checkpoint_name, steps):
        yield joined(given, name), examine(storage, name), False
