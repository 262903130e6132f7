"""The parser of the command line, made from one table of commands and one of their options."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from attrs import Factory, frozen

from hexloop import __version__
from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.parser import add_arguments
from hexloop.app.command_line.help_texts import DESCRIPTIONS, EPILOGS, EXIT_CODES, TOP, USAGES
from hexloop.app.run.command import LAUNCHED_AS

ARGUMENT_NAMES = frozenset(TrainingArguments.__dataclass_fields__)

RESUME = ("resume", "resume_from_checkpoint")

AUTO = "auto"
"""The value of `--resume` that resumes if there is a checkpoint, and starts a new run otherwise."""


@frozen
class Command:
    """A row of the table of commands.

    name: with the group that the command is in. function: what runs it, as "module:name"; "" for a group of commands.
    """

    name: str
    function: str
    help: str


COMMANDS = (
    Command("train", "training:run", "train what a recipe describes"),
    Command("evaluate", "evaluating:evaluate", "evaluate a checkpoint on the recipe's eval_dataset"),
    Command("predict", "evaluating:predict", "write a checkpoint's predictions to a file"),
    Command("search", "search:run", "train what a recipe describes with different values, and compare"),
    Command("run", "run:run", "run a script or module written for transformers, unmodified"),
    Command("checkpoints", "", "list, verify, sign, compare, prune and convert checkpoints"),
    Command("checkpoints list", "checkpoints.inspecting:list_checkpoints",
            "list the checkpoints in a folder, good and bad"),
    Command("checkpoints verify", "checkpoints.inspecting:verify",
            "read checkpoints and report what is wrong with each"),
    Command("checkpoints sign", "checkpoints.changing:sign", "sign checkpoints with a key, after verifying them"),
    Command("checkpoints show", "checkpoints.inspecting:show", "show the contents of a checkpoint"),
    Command("checkpoints diff", "checkpoints.diff:run",
            "report the first tensor or field that differs between two checkpoints"),
    Command("checkpoints prune", "checkpoints.changing:prune", "remove a run's older checkpoints"),
    Command("checkpoints consolidate", "checkpoints.changing:consolidate",
            "write a checkpoint's weights as one file, with everything that from_pretrained needs"),
    Command("checkpoints import", "checkpoints.changing:import_",
            "convert a checkpoint of transformers' Trainer to hexloop's"),
    Command("checkpoints export", "checkpoints.changing:export",
            "write a checkpoint from which transformers' Trainer can resume"),
    Command("checkpoints merge", "checkpoints.changing:merge",
            "merge the adapters of a checkpoint into their base, and write the whole model"),
    Command("launch", "launch:run", "run a recipe or a script in several processes"),
    Command("runs", "", "find where two runs diverge"),
    Command("runs diff", "runs:diff", "find the step at which two runs diverge, and what diverges first"),
    Command("outbox", "", "show and finish what runs have not published or logged yet"),
    Command("outbox list", "outbox:list_intents", "list what is left, and why"),
    Command("outbox flush", "outbox:flush", "publish what is left, and deliver logs to trackers"),
    Command("outbox retry", "outbox:retry", "do the same, also with what the hub has refused"),
    Command("outbox drop", "outbox:drop", "remove entries without publishing them; with --all also logs"),
    Command("report", "pages:report", "write one page that shows runs: curves, checkpoints, restarts, arguments"),
    Command("board", "pages:board", "show the runs of a folder in a browser, while they train"),
    Command("doctor", "doctor:run", "report what this machine supports, and what to install for the rest"),
    Command("why", "why:run", "find the first step, tensor and sample at which two runs differ"),
)  # fmt: skip
"""All commands, in the order of the help."""

ALL = [command.name for command in COMMANDS]
LIMITED = [command.name for command in COMMANDS if command.function and command.name != "launch"]
"""The commands with `--limit`, which `launch` passes on with the arguments of the recipe."""
WITH_RECIPE, WITH_WEIGHTS = ["train", "evaluate", "predict", "search"], ["evaluate", "predict"]
FLUSHING = ["outbox flush", "outbox retry"]
LIST, VERIFY, SIGN, SHOW, DIFF, PRUNE, CONSOLIDATE, IMPORT, EXPORT, MERGE = ALL[6:16]

WEIGHTS = "weights"
"""The group of options that exclude each other."""
PROCESSES, MACHINES = "processes", "several machines; run the command on each of them"


@frozen
class Option:
    """A row of the table of options.

    commands: that have it. name: with dashes, or without for a positional argument. metavar: of the value; "" for an
    option without one. settings: further arguments of `ArgumentParser.add_argument`. group: its heading in the help.
    """

    commands: Sequence[str]
    name: str
    metavar: str
    help: str
    settings: Mapping[str, Any] = Factory(dict)
    group: str = ""


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least one checkpoint must be kept")
    return number


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _steps(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"it takes a whole number, not {text!r}")
    return int(text)


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port < 1 << 16:
        raise ValueError(text)
    return port


REST = {"nargs": argparse.REMAINDER}
SEVERAL = {"action": "append", "default": []}
OF_SEVERAL = "FOLDER@NAME selects the run NAME if it contains several (default: the last one)"

OPTIONS = (
    Option(ALL, "--traceback", "", "print the traceback of every error, including those that hexloop raises on purpose",
           {"default": argparse.SUPPRESS}),
    Option(LIMITED, "--limit", "NAME=VALUE",
           "change a limit on what is read, such as document_bytes=256MiB; docs/limits.md lists them; repeatable",
           {"action": "append", "default": argparse.SUPPRESS}),

    Option(WITH_RECIPE, "recipe", "RECIPE", "the YAML file that describes the training run", {"nargs": "?"}),
    Option(["train"], "--resume", "CHECKPOINT",
           "resume from this checkpoint's folder; without a folder, from the newest good checkpoint in output_dir; "
           "auto: from that one if there is any, unless the run is finished", {"nargs": "?", "const": True}),
    Option(["train"], "--report", "",
           "at the end, also write report.html to output_dir: a page that shows the run, as `hexloop report` does"),
    Option(["train", *WITH_WEIGHTS], "--trial", "FOLDER",
           "use the values of a trial of a search: its folder, or that of the search for its best trial; without "
           "--output_dir, evaluate and predict use the trial's checkpoints"),
    Option(["search"], "--resume", "",
           "continue the search in output_dir, at the trials that it was in; it may have other numbers of trials and "
           "processes than before"),
    Option(["search"], "--trials", "N", "how many trials the search has (default: that of the recipe, or 20)",
           {"type": _count}),
    Option(["search"], "--parallel", "N", "train so many trials at a time, each in a process (default: 1)",
           {"type": _count, "default": 1}),
    Option(["search"], "--check", "", "check the recipe and its search, print what would be tried, and train nothing"),
    Option(["search"], "--report", "", "at the end, also write report.html to output_dir, as `hexloop report` does"),
    Option(WITH_WEIGHTS, "--checkpoint", "FOLDER",
           "the checkpoint whose weights to use (default: the last one of the newest run in output_dir: its best "
           "if load_best_model_at_end is set, else its newest)", group=WEIGHTS),
    Option(WITH_WEIGHTS, "--no-checkpoint", "", "use the model as the recipe creates it, which may load weights itself",
           {"dest": "as_made"}, WEIGHTS),
    Option(["evaluate"], "--output", "FILE", "JSON file for the metrics (default: eval_results.json in output_dir)"),
    Option(["predict"], "--output", "FILE", "a file that ends in .npz or .jsonl", {"required": True}),

    Option(["run"], "-m", "", "PROGRAM is the name of a module, as in `python -m`", {"dest": "is_module"}),
    Option(["run"], "--check", "",
           "run it with both libraries, each in a process of its own, and report the first difference"),
    Option(["run"], "--reproduce", "{transformers}",
           "the argument `reproduce` where the program does not set it; transformers: the same random draws and sums",
           {"choices": ["transformers"]}),
    Option(["train", "run"], "--dry-run", "",
           "train nothing: print which memory, time and disk the run will need, from a step without memory and a few "
           "measured ones; exit with 1 if it will not fit"),
    Option(["train", "run"], "--measure", "N", "with --dry-run, how many steps are measured (default: 10); 0: none",
           {"type": _steps, "default": 10}),
    Option(["run"], "program", "PROGRAM", "the path of a script, or with -m the name of a module"),
    Option(["run"], "program_arguments", "argument", "arguments of the program", REST),

    # Values of `launch` are parsed later, so that all problems can be reported at once.
    Option(["launch"], "--processes", "N", "number on this machine (default: one per GPU)", group=PROCESSES),
    Option(["launch"], "--tpu", "N", "number of TPU devices of this machine, with a process for each", group=PROCESSES),
    Option(["launch"], "--restarts", "K", "how often all are started again when one dies (default: 0)",
           {"default": "0"}, PROCESSES),
    Option(["launch"], "--grace", "SECONDS",
           "time to save and exit after Ctrl-C or SIGTERM, before they are killed (default: 30)",
           {"default": "30"}, PROCESSES),
    Option(["launch"], "--log-folder", "DIR", "also write the output of each process to DIR/rank-<rank>.log",
           group=PROCESSES),
    Option(["launch"], "--nodes", "M",
           "number of machines; MIN:MAX if some may join or leave while the others continue (default: 1)",
           {"default": "1"}, MACHINES),
    Option(["launch"], "--rendezvous", "HOST:PORT", "where they connect: a free port on one of them", group=MACHINES),
    Option(["launch"], "--node-rank", "R",
           "the index of this machine; 0 must be at HOST and has rank 0 (default: in the order of arrival)",
           group=MACHINES),
    Option(["launch"], "--address", "HOST", "the address of this machine for the others (default: its host name)",
           group=MACHINES),
    Option(["launch"], "--join-timeout", "SECONDS", "how long to wait for the others (default: 600)",
           {"default": "600"}, MACHINES),
    Option(["launch"], "program", "RECIPE-or-SCRIPT.py", "the recipe, or a file that ends in .py"),
    Option(["launch"], "program_arguments", "argument", "arguments of the recipe or script", REST),

    Option([LIST, PRUNE], "folder", "FOLDER", "the folder or URL that contains the checkpoints"),
    Option([IMPORT], "folder", "FOLDER", "the checkpoint's folder"),
    Option([VERIFY, SIGN], "paths", "FOLDER|CHECKPOINT", "folders of checkpoints, checkpoints, or their URLs",
           {"nargs": "+"}),
    Option([SHOW, CONSOLIDATE], "checkpoint", "CHECKPOINT", "the checkpoint's folder or URL"),
    Option([EXPORT], "checkpoint", "CHECKPOINT", "the checkpoint's folder"),
    Option([MERGE], "checkpoint", "CHECKPOINT", "the checkpoint's folder or URL"),
    Option([DIFF], "one", "CHECKPOINT", "a checkpoint's folder or URL"),
    Option([DIFF], "other", "CHECKPOINT", "a checkpoint's folder or URL"),
    Option([LIST], "--quick", "", "read manifests only: verify nothing, show no metrics"),
    Option([SHOW], "--tensors", "", "list the tensors of each file, with type and shape"),
    Option([DIFF], "--all", "", "list all differences, and count what was compared"),
    Option([DIFF], "--strict", "", "also compare values that only identify a run"),
    Option([PRUNE], "--keep", "N", "how many checkpoints to keep", {"type": _at_least_one}),
    Option([PRUNE], "--keep-best", "", "also keep the one with the best metric"),
    Option([PRUNE], "--leftovers", "", "remove unfinished folders that the run left behind"),
    Option([PRUNE], "--replaced", "", "remove checkpoints of earlier runs whose names later ones have taken"),
    Option([PRUNE], "--run", "NAME", "the run, or the start of its name; required if there are several"),
    Option([PRUNE], "--dry-run", "", "only print what would be removed"),
    Option([CONSOLIDATE], "--output", "FOLDER", "the folder or URL to write (default: CHECKPOINT-consolidated)"),
    Option([IMPORT, EXPORT], "--to", "OUTPUT_DIR", "the folder to write checkpoint-<step> to", {"required": True}),
    Option([IMPORT], "--gradient-accumulation-steps", "N", "that of the run (default: 1)", {"type": int, "default": 1}),
    Option([IMPORT], "--train-batch-size", "N", "samples per micro-batch, if no file says it", {"type": int}),
    Option([IMPORT], "--processes", "N", "the run's number of processes", {"type": int, "default": 1}),
    Option([IMPORT], "--seed", "SEED", "the run's seed (default: 42)", {"type": int, "default": 42}),
    Option([IMPORT], "--data-seed", "DATA_SEED", "the run's data_seed (default: its seed)", {"type": int}),
    Option([MERGE], "--to", "FOLDER", "the folder to write the model to", {"required": True}),
    Option([MERGE], "--base", "MODEL", "the folder or name of the base (default: the one that the checkpoint names)"),
    Option([MERGE], "--adapter", "NAME", "an adapter to merge, if there are several; repeatable",
           {"dest": "adapters", **SEVERAL}),
    Option([MERGE], "--despite-digest", "", "merge into a base with other weights than the adapters were trained on"),
    Option([SIGN], "--key", "FILE", "the file with the key: secret, or private in PEM", {"required": True}),

    Option(["runs diff"], "one", "RUN", f"a run's output folder or journal; {OF_SEVERAL}"),
    Option(["runs diff"], "other", "RUN", f"a run's output folder or journal; {OF_SEVERAL}"),
    Option(["why"], "one", "RUN", f"a run's output folder or journal; {OF_SEVERAL}"),
    Option(["why"], "other", "RUN", f"a run's output folder or journal; {OF_SEVERAL}"),
    Option(["why"], "--recipe", "RECIPE",
           "repeat steps of both runs, with the code that this recipe names and the numbers that the runs recorded",
           {"dest": "first_recipe"}),
    Option(["why"], "--other-recipe", "RECIPE", "the recipe of the second run (default: that of the first)",
           {"dest": "second_recipe"}),
    Option(["report"], "runs", "RUN", f"a run's output folder, URL or journal; {OF_SEVERAL}", {"nargs": "+"}),
    Option(["report"], "--out", "FILE",
           "the HTML file to write (default: report.html in the run's folder, or for several runs in this folder)"),
    Option(["report"], "--quick", "", "do not verify the checkpoints"),
    Option(["board"], "folder", "FOLDER", "the folder of the runs (default: this one)", {"nargs": "?", "default": "."}),
    Option(["board"], "--port", "PORT", "the port on this machine; 0 chooses a free one (default: 8377)",
           {"type": _port, "default": 8377}),
    Option(["board"], "--open", "", "open a browser"),

    Option(["outbox list", "outbox drop", *FLUSHING], "folder", "FOLDER", "the output folder of a run, or its URL"),
    Option(FLUSHING, "--hub", "HUB", "a hub that may get what is left there and your token: its URL, or a folder; the "
           "Hugging Face Hub always may", {"dest": "hubs", **SEVERAL}),
    Option(FLUSHING, "--repository", "NAME", "a repository that may get what is left, besides those that your runs in "
           "the folder published to", {"dest": "repositories", **SEVERAL}),
    Option(FLUSHING, "--tracker", "NAME", "a tracker that may be made with the options in the outbox, besides those "
           "that your runs chose", {"dest": "trackers", **SEVERAL}),
    Option(FLUSHING, "--for", "SECONDS", "how long to try (default: 600)",
           {"dest": "limit_seconds", "type": float, "default": 600.0}),
    Option(["outbox drop"], "entries", "ENTRY", "the numbers that `list` shows", {"nargs": "*", "type": int}),
    Option(["outbox drop"], "--all", "", "drop everything"),

    Option([LIST, VERIFY, SHOW, DIFF, PRUNE, "runs diff", "why", "outbox list", "doctor"], "--json", "", "print JSON"),
    Option([VERIFY, CONSOLIDATE, EXPORT, MERGE], "--key", "FILE", "a key file: refuse what is not signed by it"),
)  # fmt: skip
"""All options, in the order of the help."""


class PlainHelp(argparse.RawDescriptionHelpFormatter):
    """Help with descriptions and examples printed verbatim."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32)


class HelpWithoutArguments(PlainHelp):
    """Help without the training arguments, which the help of `train` lists."""

    def add_argument(self, action: argparse.Action) -> None:
        """Skip `action` if it sets a training argument."""
        if action.dest not in ARGUMENT_NAMES:
            super().add_argument(action)


def read_options(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line `argv`.

    In the result, `function` is the function to run, as "module:name", `command` the command, `argv` all of the
    arguments, and `unknown` those that are not options of the command. Raises SystemExit, as argparse does, after
    printing the help or an error.
    """
    parser = _parser(argv)
    options, unknown = parser.parse_known_args(argv)
    if options.command is None:
        parser.print_help()
        raise SystemExit(2)
    options.unknown, options.argv = unknown, list(argv)
    if "recipe" not in options and unknown:
        options.fail(f"{options.command} has no option {unknown[0]}")
    if "recipe" in options and options.recipe is None:
        options.fail(
            f"{options.command} needs a recipe; put it right after the command, as in 'hexloop {options.command} "
            "recipe.yaml', because an option before it may take it as its value"
        )
    return options


def _parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser for `argv`. The many training arguments are only added to the command that is used."""
    parser = argparse.ArgumentParser(
        "hexloop", description=TOP, epilog=EXIT_CODES, formatter_class=PlainHelp, allow_abbrev=False
    )
    parser.set_defaults(traceback=False, limit=[])
    parser.add_argument("--version", action="version", version=f"hexloop {__version__}")
    groups = {"": parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")}
    for command in COMMANDS:
        group, _, name = command.name.rpartition(" ")
        made = groups[group].add_parser(
            name,
            help=command.help,
            usage=USAGES.get(command.name),
            description=DESCRIPTIONS.get(command.name, f"{command.help[0].upper()}{command.help[1:]}."),
            epilog=EPILOGS.get(command.name),
            formatter_class=PlainHelp if command.name not in (*WITH_WEIGHTS, "search") else HelpWithoutArguments,
            allow_abbrev=False,
        )
        function = f"hexloop.app.command_line.{command.function}" if command.function else None
        made.set_defaults(fail=made.error, function=function)
        _add_options(made, command.name)
        if function is None:
            metavar, title = ("TOOL", "tools") if name == "runs" else ("COMMAND", "commands")
            groups[name] = made.add_subparsers(dest=f"{name}_command", metavar=metavar, title=title, required=True)
        elif command.name in WITH_RECIPE and command.name in argv:
            add_arguments(made, TrainingArguments)
    return parser


def _add_options(parser: argparse.ArgumentParser, command: str) -> None:
    """Add the options of a command."""
    groups: dict[str, argparse._ActionsContainer] = {"": parser}
    for option in OPTIONS:
        if command in option.commands:
            if option.group not in groups:
                is_exclusive = option.group == WEIGHTS
                groups[option.group] = (
                    parser.add_mutually_exclusive_group() if is_exclusive else parser.add_argument_group(option.group)
                )
            value = {"metavar": option.metavar} if option.metavar else {"action": "store_true"}
            groups[option.group].add_argument(option.name, help=option.help, **{**value, **option.settings})


def command_text(argv: Sequence[str]) -> str:
    """Return the shell command for the arguments `argv`, through `hexloop launch` if it started this process."""
    if argv[:1] == ["train"] and (launched := os.environ.get(LAUNCHED_AS)):
        return f"{launched} {shlex.join(argv[1:])}"
    return shlex.join(["hexloop", *argv])


def without_options(argv: Sequence[str], names: Collection[str]) -> list[str]:
    """Return the arguments without the options `names`, however they are spelled, and without their values."""
    kept, left = [], list(argv)
    while left:
        argument = left.pop(0)
        name, equals, _ = argument.partition("=")
        if not argument.startswith("--") or name.removeprefix("--").replace("-", "_") not in names:
            kept.append(argument)
        elif not equals and left and not left[0].startswith("--"):
            left.pop(0)
    return kept
