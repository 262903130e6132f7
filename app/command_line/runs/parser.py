"""The options of `hexloop runs`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

DIFF = """\
Says at which step two runs part, and what parted first: the data, the random streams,
the learning rate, the loss, the gradients, the weights or the metrics. What both
journals tell of is compared: logs and saves, and with journal='steps' every step.

Exits with 0 where the runs are equal as far as they were compared, with 1 where they
part."""


def add_runs(
    commands: Commands,
    add_common: Callable[[argparse.ArgumentParser], None],
    formatter: type[argparse.HelpFormatter],
) -> None:
    """Add the command `runs` and its tools."""
    runs = commands.add_parser(
        "runs",
        help="see where two runs part",
        description="Reads the journals that runs keep in their output folders.",
        formatter_class=formatter,
        allow_abbrev=False,
    )
    add_common(runs)
    tools = runs.add_subparsers(dest="tool", metavar="TOOL", title="tools", required=True)
    diff = tools.add_parser(
        "diff",
        help="say at which step two runs part, and what parted first",
        description=DIFF,
        formatter_class=formatter,
        allow_abbrev=False,
    )
    for name in ("one", "other"):
        diff.add_argument(
            name,
            metavar="RUN",
            help="a run's output folder, or its journal; FOLDER@NAME is the run NAME of those in it, of which the last "
            "is meant otherwise",
        )
    diff.add_argument("--json", action="store_true", help="print it as JSON")
    add_common(diff)
