"""`hexloop doctor`: what this machine has, and what to install for the rest."""

from __future__ import annotations

import json
import platform
from argparse import Namespace

import hexloop
from hexloop.app.command_line.doctor.adapters import adapters_by_port, plugins
from hexloop.app.command_line.doctor.devices import devices
from hexloop.app.command_line.doctor.packages import packages
from hexloop.app.command_line.doctor.report import Report
from hexloop.app.command_line.doctor.text import as_text
from hexloop.app.command_line.exit_codes import ExitCode


def run(options: Namespace) -> ExitCode:
    """Print the report; FAILED where something is missing that hexloop cannot do without."""
    report = examine()
    print(json.dumps(report.to_dict(), indent=2) if options.json else as_text(report))
    return ExitCode.FAILED if report.missing else ExitCode.DONE


def examine() -> Report:
    """Look at everything."""
    return Report(
        hexloop=hexloop.__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        devices=devices(),
        adapters=adapters_by_port(),
        plugins=plugins(),
        packages=packages(),
    )
