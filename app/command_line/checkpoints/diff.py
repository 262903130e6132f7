"""`hexloop checkpoints diff`: what two checkpoints differ in."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from hexloop.app.command_line.exit_codes import ExitCode

if TYPE_CHECKING:
    from hexloop.app.command_line.checkpoints.comparison import Comparison

HELP = "name the first tensor or field in which two checkpoints differ, and by how much"

DESCRIPTION = """\
Compares two checkpoints: weights, optimizer, other tensors, then every field of the JSON
documents. Both are verified first; of what differs one tensor at a time is in memory.

What only tells two runs apart is left out: their names and sessions, readings of the
clock and of memory, and the two files that are never read back. --strict compares it, too.

Exits with 0 where they are equal, with 1 where they differ, with 2 where one of them
cannot be compared."""


def add(parser: argparse.ArgumentParser) -> None:
    """Describe the options."""
    for name in ("one", "other"):
        parser.add_argument(name, metavar="CHECKPOINT", help="a checkpoint's folder or URL")
    parser.add_argument("--all", action="store_true", help="name everything that differs, and count what was compared")
    parser.add_argument("--strict", action="store_true", help="compare what only tells two runs apart, too")
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def run(options: argparse.Namespace) -> ExitCode:
    """Print what differs; FAILED where anything does."""
    from hexloop.app.command_line.checkpoints.comparison import Comparison, contents_of
    from hexloop.app.command_line.checkpoints.places import open_checkpoints
    from hexloop.domain.errors import CheckpointError, ConfigurationError, StorageError

    problems, contents = [], []
    for place in open_checkpoints([options.one, options.other]):
        try:
            contents.append(contents_of(place))
        except (CheckpointError, StorageError) as error:
            problems.append(f"You chose to compare {place.given}, but it cannot be read: {error}")
    if problems:
        raise ConfigurationError(problems)
    comparison = Comparison(contents[0], contents[1], options.strict)
    try:
        differences = list(comparison.differences(only_first=not options.all))
    except (CheckpointError, StorageError) as error:
        raise ConfigurationError([f"You chose to compare {options.one} and {options.other}, but: {error}"]) from error
    if options.json:
        print(
            json.dumps(_document(comparison, [each.document() for each in differences], options), indent=2, default=str)
        )
    else:
        print("\n".join(_lines(comparison, [str(each) for each in differences], options)))
    return ExitCode.FAILED if differences else ExitCode.DONE


def _document(comparison: Comparison, differences: list[dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    counts = {"compared": comparison.compared, "different": comparison.different} if options.all else {}
    return {"checkpoints": [options.one, options.other], "differences": differences, **counts}


def _lines(comparison: Comparison, differences: list[str], options: argparse.Namespace) -> list[str]:
    both = f"{options.one} and {options.other}"
    lines = (
        [f"{both} differ{'' if options.all else ', first in'}:", *differences]
        if differences
        else [f"{both} are equal."]
    )
    if options.all:
        for kind, count in comparison.compared.items():
            lines.append(f"{count:,} {kind} compared, {comparison.different[kind] or 'none'} different")
    return lines
