"""`hexloop completion`: completes commands, options and their values in bash, zsh and fish.

The shell runs `hexloop` with the line so far, and argcomplete answers from the same parser that reads the line. Nothing
else is imported, and torch never is.
"""

from __future__ import annotations

import os
import re
from argparse import Action, Namespace
from collections.abc import Mapping, MutableMapping
from importlib.util import find_spec
from typing import Any, NoReturn

from hexloop.app.command_line import ExitCode
from hexloop.app.command_line.options import WITH_RECIPE
from hexloop.app.command_line.parser import RECIPES, CommandParser, parsers_for
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.limits import limits

FOLDERS = ("FOLDER", "DIR", "OUTPUT_DIR", "CHECKPOINT", "FOLDER|CHECKPOINT", "CHECKPOINT|FOLDER")
"""The placeholders of values that are folders."""

START_OF_ZSH = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }\n"
"""Starts the completion of zsh where the user's configuration has not."""


def run(options: Namespace) -> ExitCode:
    """Print the script for a shell. Raises ConfigurationError if argcomplete is not installed."""
    if find_spec("argcomplete") is None:
        raise ConfigurationError(
            "Completion needs the package argcomplete, which is not installed; `hexloop doctor` shows how to "
            "install it."
        )
    from argcomplete.shell_integration import shellcode

    script = shellcode(["hexloop"], shell=options.shell)
    if options.shell == "zsh":
        heading, _, rest = script.partition("\n")  # "#compdef hexloop", which has to be the first line of a file
        script = f"{heading}\n{START_OF_ZSH}{rest}"
    print(script)
    return ExitCode.DONE


def complete() -> NoReturn:
    """Write the completions of the line in the environment to the shell, and end the process."""
    if find_spec("argcomplete") is None:
        os._exit(1)
    from argcomplete import autocomplete

    as_train(os.environ)
    line = os.environ.get("COMP_LINE", "")
    words = line[: int(os.environ.get("COMP_POINT", len(line)))].split()[1:]
    parsers = parsers_for(words)
    for name, parser in parsers.items():
        add_completers(name, parser)
    autocomplete(parsers[""], always_complete_options=False)
    os._exit(0)


def as_train(environment: MutableMapping[str, str]) -> None:
    """Let a line of `hexloop launch` with a recipe end as one of `hexloop train`, whose arguments follow the recipe."""
    line, point = environment.get("COMP_LINE", ""), int(environment.get("COMP_POINT", "0"))
    suffixes = "|".join(map(re.escape, RECIPES))
    if found := re.match(rf"\s*\S+\s+launch\s(?:.*?\s)?(?=\S+(?:{suffixes})\s)", line):
        start = "hexloop train "
        if point > found.end():
            environment["COMP_LINE"] = start + line[found.end() :]
            environment["COMP_POINT"] = str(point - found.end() + len(start))


def add_completers(command: str, parser: CommandParser) -> None:
    """Set what completes the value of each option of a command."""
    from argcomplete.completers import ChoicesCompleter, DirectoriesCompleter, FilesCompleter

    values = _values_of_arguments() if command in WITH_RECIPE and parser.argument_groups else {}
    for action in parser._actions:
        completed: Any = action
        if action.choices is not None or action.nargs == 0:
            continue
        if action.dest == "recipe":
            completed.completer = FilesCompleter(tuple(suffix.lstrip(".") for suffix in RECIPES))
        elif action.dest == "program":
            recipes = [suffix.lstrip(".") for suffix in RECIPES] if command == "launch" else []
            completed.completer = FilesCompleter(("py", *recipes))
        elif action.dest == "limit":
            completed.completer = ChoicesCompleter([f"{name}=" for name in names_of_limits()])  # type: ignore[arg-type]  # any choices will do
        elif action.metavar in FOLDERS or action.dest in ("output_dir", "folder"):
            completed.completer = DirectoriesCompleter()
        elif found := values.get(action.dest):
            completed.completer = ChoicesCompleter(found)  # type: ignore[arg-type]  # any choices will do
        elif _takes_no_path(action):
            completed.completer = ChoicesCompleter(())  # type: ignore[arg-type]  # any choices will do


def _takes_no_path(action: Action) -> bool:
    return action.metavar in ("N", "X", "JSON", "K", "R", "SECONDS", "PORT", "HOST", "SEED", "DATA_SEED", "WORD")


def names_of_limits() -> list[str]:
    """Return the names of the limits."""
    return [each.name for each in type(limits()).__attrs_attrs__]


def _values_of_arguments() -> Mapping[str, list[str]]:
    """Return the values of the training arguments that have few, by name."""
    from hexloop.app.arguments import TrainingArguments
    from hexloop.app.arguments.options import fields_of, known_values
    from hexloop.app.callbacks.trackers import TRACKERS

    found = {field.name: known_values(field.kind) for field in fields_of(TrainingArguments)}
    return {**found, "report_to": ["none", "all", "console", "json_lines", *TRACKERS]}
