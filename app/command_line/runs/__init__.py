"""`hexloop runs`: what the journals of runs tell. A module for each tool."""

from __future__ import annotations

from argparse import Namespace
from importlib import import_module

from hexloop.app.command_line.exit_codes import ExitCode

TOOLS = {"diff": "hexloop.app.command_line.runs.diff"}
"""The module of each tool, whose `run` takes the options."""


def run(options: Namespace) -> ExitCode:
    """Do what the tool that is named does."""
    return ExitCode(import_module(TOOLS[options.tool]).run(options))
