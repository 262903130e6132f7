"""`hexloop board`: the runs of a folder in a browser, while they train."""

from __future__ import annotations

import asyncio
import os
import webbrowser
from argparse import Namespace
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from hexloop.app.command_line import ExitCode
from hexloop.app.printing import print_lines
from hexloop.app.wiring.storage import is_elsewhere
from hexloop.domain.errors import ConfigurationError


def run(options: Namespace) -> ExitCode:
    """Serve the pages until Ctrl-C. Raises ConfigurationError for a folder or port that cannot be used."""
    if problems := list(_problems(options.folder)):
        raise ConfigurationError(problems)
    from hexloop.app.pages.service import Board, serve

    def started(address: str) -> None:
        print_lines(f"The board is at {address}", "Stop it with Ctrl-C.")
        if options.open:
            webbrowser.open(address)

    with suppress(KeyboardInterrupt):
        asyncio.run(serve(Board(Path(os.path.abspath(options.folder))), options.port, started))
    return ExitCode.DONE


def _problems(folder: str) -> list[str]:
    found = []
    if is_elsewhere(folder):
        found.append(f"You chose the folder {folder}; the board shows runs in folders of this machine only.")
    elif not os.path.isdir(folder):
        found.append(f"You chose the folder {folder}, but there is no such folder; check its name.")
    if find_spec("aiohttp") is None:
        found.append("The board needs the package aiohttp, which is not installed; pip install 'hexloop[board]'.")
    return found
