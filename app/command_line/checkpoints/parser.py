"""The words of `hexloop checkpoints`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module

from hexloop.app.command_line.checkpoints import COMMANDS

CHECKPOINTS = """\
What can be done with checkpoints outside of a run."""

Parsers = argparse._SubParsersAction


def add_checkpoints(
    commands: Parsers[argparse.ArgumentParser],
    add_common: Callable[[argparse.ArgumentParser], None],
    formatter: type[argparse.HelpFormatter],
) -> None:
    """Add the group; `add_common` adds the options that every command has."""
    group = commands.add_parser(
        "checkpoints",
        help="what can be done with checkpoints outside of a run",
        description=CHECKPOINTS,
        formatter_class=formatter,
        allow_abbrev=False,
    )
    names = group.add_subparsers(dest="checkpoints_command", metavar="COMMAND", title="commands", required=True)
    for name, module in COMMANDS.items():
        told = import_module(module)
        parser = names.add_parser(
            name, help=told.HELP, description=told.DESCRIPTION, formatter_class=formatter, allow_abbrev=False
        )
        told.add(parser)
        add_common(parser)
