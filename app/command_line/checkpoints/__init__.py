"""`hexloop checkpoints`: what can be done with checkpoints outside of a run. A module for each command of the group."""

from __future__ import annotations

from argparse import Namespace
from importlib import import_module

from hexloop.app.command_line.exit_codes import ExitCode

COMMANDS = {
    "list": "hexloop.app.command_line.checkpoints.listing",
    "verify": "hexloop.app.command_line.checkpoints.verifying",
    "show": "hexloop.app.command_line.checkpoints.showing",
    "diff": "hexloop.app.command_line.checkpoints.diff",
    "prune": "hexloop.app.command_line.checkpoints.pruning",
    "consolidate": "hexloop.app.command_line.checkpoints.consolidating",
    "import": "hexloop.app.command_line.checkpoints.importing",
    "export": "hexloop.app.command_line.checkpoints.exporting",
}
"""The module of each command of the group: its `add` describes the options, its `run` takes them."""


def run(options: Namespace) -> ExitCode:
    """Do what the command of the group says."""
    return ExitCode(import_module(COMMANDS[options.checkpoints_command]).run(options))
