"""The words of the command line: which command, with which options; and the help."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from hexloop import __version__
from hexloop.app.arguments import TrainingArguments, add_arguments
from hexloop.app.command_line.checkpoints.parser import add_checkpoints
from hexloop.app.command_line.help_texts import (
    ARGUMENTS_USAGE,
    DOCTOR,
    EVALUATE,
    EXIT_CODES,
    PREDICT,
    TOP,
    TRAIN,
    TRAIN_EXAMPLES,
)
from hexloop.app.command_line.launch.parser import add_launch
from hexloop.app.command_line.runs.parser import add_runs

ARGUMENT_NAMES = frozenset(TrainingArguments.__dataclass_fields__)


class PlainHelp(argparse.RawDescriptionHelpFormatter):
    """Help whose descriptions and examples stand as they were written."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32)


class HelpWithoutArguments(PlainHelp):
    """Help that leaves out the arguments of a run, which another command's help lists."""

    def add_argument(self, action: argparse.Action) -> None:
        """Leave `action` out where it sets an argument of the run."""
        if action.dest not in ARGUMENT_NAMES:
            super().add_argument(action)


def read_options(words: Sequence[str]) -> argparse.Namespace:
    """The options that `words` give.

    `command` is the command; `unknown` the words that are no option of it; `words` are all of them.
    Raises SystemExit, as argparse does, once the help is shown or where the words make no sense.
    """
    parser = _parser(words)
    options, unknown = parser.parse_known_args(words)
    if options.command is None:
        parser.print_help()
        raise SystemExit(2)
    options.unknown, options.words = unknown, list(words)
    if "recipe" not in options and unknown:
        options.fail(f"{options.command} takes no {unknown[0]}")
    if "recipe" in options and options.recipe is None:
        options.fail(
            f"{options.command} needs a recipe; name it right after the command, as in 'hexloop {options.command} "
            "recipe.yaml', as an option before it may take it for its value"
        )
    return options


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of `words`: of the commands that take a run's many arguments, only the one that is named does."""
    parser = argparse.ArgumentParser(
        "hexloop", description=TOP, epilog=EXIT_CODES, formatter_class=PlainHelp, allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"hexloop {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, add in (("train", _add_train), ("evaluate", _add_evaluate), ("predict", _add_predict)):
        parser_of_run = add(commands)
        if name in words:
            add_arguments(parser_of_run, TrainingArguments)
    add_checkpoints(commands, _add_common, PlainHelp)
    add_launch(commands, _add_common, PlainHelp)
    add_runs(commands, _add_common, PlainHelp)
    _add_doctor(commands)
    return parser


def _add_train(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    parser = _recipe_command(commands, "train", "train what a recipe describes", TRAIN, TRAIN_EXAMPLES, PlainHelp)
    parser.add_argument(
        "--resume",
        nargs="?",
        const=True,
        metavar="CHECKPOINT",
        help="go on from this checkpoint's folder; without a folder, from the newest good checkpoint in output_dir; "
        "auto: from that one if there is any, unless the run is finished",
    )
    return parser


def _add_evaluate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    parser = _recipe_command(
        commands, "evaluate", "measure a checkpoint on the recipe's eval_dataset", EVALUATE, "", HelpWithoutArguments
    )
    _add_checkpoint(parser)
    parser.add_argument(
        "--output", metavar="FILE", help="JSON file for the metrics (default: eval_results.json in output_dir)"
    )
    return parser


def _add_predict(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    parser = _recipe_command(
        commands, "predict", "write a checkpoint's predictions to a file", PREDICT, "", HelpWithoutArguments
    )
    _add_checkpoint(parser)
    parser.add_argument("--output", metavar="FILE", required=True, help="a file that ends in .npz or .jsonl")
    return parser


def _add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "doctor",
        help="say what this machine has, and what to install for the rest",
        description=DOCTOR,
        formatter_class=PlainHelp,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    _add_common(parser)


def _recipe_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    help: str,
    description: str,
    examples: str,
    formatter: type[argparse.HelpFormatter],
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=help,
        usage=f"hexloop {name} RECIPE {ARGUMENTS_USAGE[name]}",
        description=description,
        epilog=f"{examples}{EXIT_CODES}",
        formatter_class=formatter,
        allow_abbrev=False,
    )
    parser.add_argument("recipe", nargs="?", metavar="RECIPE", help="the YAML file that says what to train")
    _add_common(parser)
    return parser


def _add_checkpoint(parser: argparse.ArgumentParser) -> None:
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--checkpoint",
        metavar="FOLDER",
        help="the checkpoint whose weights are used (default: the one that the newest run in output_dir ends with: "
        "its best where load_best_model_at_end is set, else its newest)",
    )
    group.add_argument(
        "--no-checkpoint",
        dest="as_made",
        action="store_true",
        help="use the model as the recipe makes it, which may load weights itself",
    )


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(fail=parser.error)
    parser.add_argument(
        "--traceback",
        action="store_true",
        help="show where an error was raised, also when hexloop raised it on purpose",
    )
