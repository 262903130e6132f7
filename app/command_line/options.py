"""The parser of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TypeAlias

from hexloop import __version__
from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.parser import add_arguments
from hexloop.app.command_line import help_texts

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

ARGUMENT_NAMES = frozenset(TrainingArguments.__dataclass_fields__)


KEY_HELP = "a key file: refuse what is not signed by it"


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
    """Return the parser for `argv`."""
    parser = argparse.ArgumentParser(
        "hexloop",
        description=help_texts.TOP,
        epilog=help_texts.EXIT_CODES,
        formatter_class=PlainHelp,
        allow_abbrev=False,
    )
    parser.set_defaults(traceback=False, limit=[])
    parser.add_argument("--version", action="version", version=f"hexloop {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    _add_recipe_commands(commands, argv)
    _add_run(commands)
    _add_checkpoints(commands)
    _add_launch(commands)
    _add_runs(commands)
    _add_outbox(commands)
    _add_report(commands)
    _add_board(commands)
    help = "report what this machine supports, and what to install for the rest"
    _command(commands, "doctor", "doctor:run", help, help_texts.DOCTOR).add_argument(
        "--json", action="store_true", help="print JSON"
    )
    return parser


def _command(
    commands: Commands,
    name: str,
    function: str | None,
    help: str,
    description: str,
    usage: str | None = None,
    epilog: str | None = None,
    formatter: type[PlainHelp] = PlainHelp,
) -> argparse.ArgumentParser:
    """Add a command with the options that all have; `function` runs it, as "module:name"."""
    parser = commands.add_parser(
        name,
        help=help,
        usage=usage,
        description=description,
        epilog=epilog,
        formatter_class=formatter,
        allow_abbrev=False,
    )
    parser.set_defaults(fail=parser.error, function=function and f"hexloop.app.command_line.{function}")
    parser.add_argument(
        "--traceback",
        action="store_true",
        default=argparse.SUPPRESS,
        help="print the traceback of every error, including those that hexloop raises on purpose",
    )
    if function is not None and name != "launch":  # which passes it on with the arguments of the recipe
        parser.add_argument(
            "--limit",
            action="append",
            default=argparse.SUPPRESS,
            metavar="NAME=VALUE",
            help="change a limit on what is read, such as document_bytes=256MiB; docs/limits.md lists them; repeatable",
        )
    return parser


def _add_recipe_commands(commands: Commands, argv: Sequence[str]) -> None:
    """Add the commands for recipes. The many training arguments are only added to the command that is used."""
    train = _command(
        commands,
        "train",
        "training:run",
        "train what a recipe describes",
        help_texts.TRAIN,
        "hexloop train RECIPE [--resume [CHECKPOINT]] [--report] [--any_argument value ...]",
        f"{help_texts.TRAIN_EXAMPLES}{help_texts.EXIT_CODES}",
    )
    evaluate = _command(
        commands,
        "evaluate",
        "evaluating:evaluate",
        "evaluate a checkpoint on the recipe's eval_dataset",
        help_texts.EVALUATE,
        "hexloop evaluate RECIPE [--checkpoint FOLDER] [--output FILE] [--any_argument value ...]",
        help_texts.EXIT_CODES,
        HelpWithoutArguments,
    )
    predict = _command(
        commands,
        "predict",
        "evaluating:predict",
        "write a checkpoint's predictions to a file",
        help_texts.PREDICT,
        "hexloop predict RECIPE --output FILE [--checkpoint FOLDER] [--any_argument value ...]",
        help_texts.EXIT_CODES,
        HelpWithoutArguments,
    )
    for parser in (train, evaluate, predict):
        parser.add_argument("recipe", nargs="?", metavar="RECIPE", help="the YAML file that describes the training run")
    train.add_argument(
        "--resume",
        nargs="?",
        const=True,
        metavar="CHECKPOINT",
        help="resume from this checkpoint's folder; without a folder, from the newest good checkpoint in output_dir; "
        "auto: from that one if there is any, unless the run is finished",
    )
    help = "at the end, also write report.html to output_dir: a page that shows the run, as `hexloop report` does"
    train.add_argument("--report", action="store_true", help=help)
    for parser in (evaluate, predict):
        group = parser.add_mutually_exclusive_group()
        group.add_argument(
            "--checkpoint",
            metavar="FOLDER",
            help="the checkpoint whose weights to use (default: the last one of the newest run in output_dir: its best "
            "if load_best_model_at_end is set, else its newest)",
        )
        help = "use the model as the recipe creates it, which may load weights itself"
        group.add_argument("--no-checkpoint", dest="as_made", action="store_true", help=help)
    help = "JSON file for the metrics (default: eval_results.json in output_dir)"
    evaluate.add_argument("--output", metavar="FILE", help=help)
    predict.add_argument("--output", metavar="FILE", required=True, help="a file that ends in .npz or .jsonl")
    for name, parser in (("train", train), ("evaluate", evaluate), ("predict", predict)):
        if name in argv:
            add_arguments(parser, TrainingArguments)


def _add_checkpoints(commands: Commands) -> None:
    description = "List, verify, sign, compare, prune and convert checkpoints outside a run."
    help = "list, verify, sign, compare, prune and convert checkpoints"
    group = _command(commands, "checkpoints", None, help, description)
    names = group.add_subparsers(dest="checkpoints_command", metavar="COMMAND", title="commands", required=True)

    help = "list the checkpoints in a folder, good and bad"
    add = _command(names, "list", "checkpoints.inspecting:list_checkpoints", help, help_texts.LIST).add_argument
    add("folder", metavar="FOLDER", help="the folder or URL that contains the checkpoints")
    add("--quick", action="store_true", help="read manifests only: verify nothing, show no metrics")
    add("--json", action="store_true", help="print JSON")

    help = "read checkpoints and report what is wrong with each"
    add = _command(names, "verify", "checkpoints.inspecting:verify", help, help_texts.VERIFY).add_argument
    add("paths", metavar="FOLDER|CHECKPOINT", nargs="+", help="folders of checkpoints, checkpoints, or their URLs")
    add("--json", action="store_true", help="print JSON")
    add("--key", metavar="FILE", help=KEY_HELP)

    help = "sign checkpoints with a key, after verifying them"
    add = _command(names, "sign", "checkpoints.changing:sign", help, help_texts.SIGN).add_argument
    add("paths", metavar="FOLDER|CHECKPOINT", nargs="+", help="folders of checkpoints, checkpoints, or their URLs")
    add("--key", metavar="FILE", required=True, help="the file with the key: secret, or private in PEM")

    help = "show the contents of a checkpoint"
    add = _command(names, "show", "checkpoints.inspecting:show", help, help_texts.SHOW).add_argument
    add("checkpoint", metavar="CHECKPOINT", help="the checkpoint's folder or URL")
    add("--tensors", action="store_true", help="list the tensors of each file, with type and shape")
    add("--json", action="store_true", help="print JSON")

    help = "report the first tensor or field that differs between two checkpoints"
    add = _command(names, "diff", "checkpoints.diff:run", help, help_texts.DIFF).add_argument
    for name in ("one", "other"):
        add(name, metavar="CHECKPOINT", help="a checkpoint's folder or URL")
    add("--all", action="store_true", help="list all differences, and count what was compared")
    add("--strict", action="store_true", help="also compare values that only identify a run")
    add("--json", action="store_true", help="print JSON")

    help = "remove a run's older checkpoints"
    add = _command(names, "prune", "checkpoints.changing:prune", help, help_texts.PRUNE).add_argument
    add("folder", metavar="FOLDER", help="the folder or URL that contains the checkpoints")
    add("--keep", type=_at_least_one, metavar="N", help="how many checkpoints to keep")
    add("--keep-best", action="store_true", help="also keep the one with the best metric")
    add("--leftovers", action="store_true", help="remove unfinished folders that the run left behind")
    add("--replaced", action="store_true", help="remove checkpoints of earlier runs whose names later ones have taken")
    add("--run", metavar="NAME", help="the run, or the start of its name; required if there are several")
    add("--dry-run", action="store_true", help="only print what would be removed")
    add("--json", action="store_true", help="print JSON")

    help = "write a checkpoint's weights as one file, with everything that from_pretrained needs"
    add = _command(names, "consolidate", "checkpoints.changing:consolidate", help, help_texts.CONSOLIDATE).add_argument
    add("checkpoint", metavar="CHECKPOINT", help="the checkpoint's folder or URL")
    add("--output", metavar="FOLDER", help="the folder or URL to write (default: CHECKPOINT-consolidated)")
    add("--key", metavar="FILE", help=KEY_HELP)

    help = "convert a checkpoint of transformers' Trainer to hexloop's"
    add = _command(names, "import", "checkpoints.changing:import_", help, help_texts.IMPORT).add_argument
    add("folder", metavar="FOLDER", help="the checkpoint's folder")
    add("--to", metavar="OUTPUT_DIR", required=True, help="the folder to write checkpoint-<step> to")
    add("--gradient-accumulation-steps", type=int, default=1, metavar="N", help="that of the run (default: 1)")
    add("--train-batch-size", type=int, metavar="N", help="samples per micro-batch, if no file says it")
    add("--processes", type=int, default=1, metavar="N", help="the run's number of processes")
    add("--seed", type=int, default=42, help="the run's seed (default: 42)")
    add("--data-seed", type=int, help="the run's data_seed (default: its seed)")

    help = "write a checkpoint from which transformers' Trainer can resume"
    add = _command(names, "export", "checkpoints.changing:export", help, help_texts.EXPORT).add_argument
    add("checkpoint", metavar="CHECKPOINT", help="the checkpoint's folder")
    add("--to", metavar="OUTPUT_DIR", required=True, help="the folder to write checkpoint-<step> to")
    add("--key", metavar="FILE", help=KEY_HELP)


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least one checkpoint must be kept")
    return number


def _add_run(commands: Commands) -> None:
    """Add the command `run`."""
    help = "run a script or module written for transformers, unmodified"
    usage = "hexloop run [--check] [--reproduce transformers] SCRIPT.py|-m MODULE [argument ...]"
    parser = _command(commands, "run", "run:run", help, help_texts.RUN, usage, help_texts.RUN_EXAMPLES)
    add = parser.add_argument
    help = "PROGRAM is the name of a module, as in `python -m`"
    add("-m", dest="is_module", action="store_true", help=help)
    help = "run it with both libraries, each in a process of its own, and report the first difference"
    add("--check", action="store_true", help=help)
    help = "the argument `reproduce` where the program does not set it; transformers: the same random draws and sums"
    add("--reproduce", choices=["transformers"], help=help)
    add("program", metavar="PROGRAM", help="the path of a script, or with -m the name of a module")
    add("program_arguments", nargs=argparse.REMAINDER, metavar="argument", help="arguments of the program")


def _add_launch(commands: Commands) -> None:
    """Add the command `launch`. Its values are parsed later, so that all problems can be reported at once."""
    help = "run a recipe or a script in several processes"
    usage = "hexloop launch [--processes N] [--restarts K] [option ...] RECIPE-or-SCRIPT.py [argument ...]"
    parser = _command(commands, "launch", "launch:run", help, help_texts.LAUNCH, usage, help_texts.LAUNCH_EXAMPLES)
    add = parser.add_argument_group("processes").add_argument
    add("--processes", metavar="N", help="number on this machine (default: one per GPU)")
    add("--restarts", metavar="K", default="0", help="how often all are started again when one dies (default: 0)")
    add(
        "--grace",
        metavar="SECONDS",
        default="30",
        help="time to save and exit after Ctrl-C or SIGTERM, before they are killed (default: 30)",
    )
    add("--log-folder", metavar="DIR", help="also write the output of each process to DIR/rank-<rank>.log")
    add = parser.add_argument_group("several machines; run the command on each of them").add_argument
    add(
        "--nodes",
        metavar="M",
        default="1",
        help="number of machines; MIN:MAX if some may join or leave while the others continue (default: 1)",
    )
    add("--rendezvous", metavar="HOST:PORT", help="where they connect: a free port on one of them")
    add(
        "--node-rank",
        metavar="R",
        help="the index of this machine; 0 must be at HOST and has rank 0 (default: in the order of arrival)",
    )
    add("--address", metavar="HOST", help="the address of this machine for the others (default: its host name)")
    add("--join-timeout", metavar="SECONDS", default="600", help="how long to wait for the others (default: 600)")
    parser.add_argument("program", metavar="RECIPE-or-SCRIPT.py", help="the recipe, or a file that ends in .py")
    parser.add_argument(
        "program_arguments", nargs=argparse.REMAINDER, metavar="argument", help="arguments of the recipe or script"
    )


def _add_runs(commands: Commands) -> None:
    description = "Read the journals that runs keep in their output folders."
    runs = _command(commands, "runs", None, "find where two runs diverge", description)
    tools = runs.add_subparsers(dest="tool", metavar="TOOL", title="tools", required=True)
    help = "find the step at which two runs diverge, and what diverges first"
    diff = _command(tools, "diff", "runs:diff", help, help_texts.RUNS_DIFF)
    for name in ("one", "other"):
        diff.add_argument(
            name,
            metavar="RUN",
            help="a run's output folder or journal; FOLDER@NAME selects the run NAME if it contains several (default: "
            "the last one)",
        )
    diff.add_argument("--json", action="store_true", help="print JSON")


def _add_report(commands: Commands) -> None:
    """Add the command `report`."""
    help = "write one page that shows runs: curves, checkpoints, restarts, arguments"
    usage = "hexloop report RUN [RUN ...] [--out FILE] [--quick]"
    parser = _command(commands, "report", "reporting:run", help, help_texts.REPORT, usage, help_texts.REPORT_EXAMPLES)
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="+",
        help="a run's output folder, URL or journal; FOLDER@NAME selects the run NAME if it contains several (default: "
        "the last one)",
    )
    help = "the HTML file to write (default: report.html in the run's folder, or for several runs in this folder)"
    parser.add_argument("--out", metavar="FILE", help=help)
    parser.add_argument("--quick", action="store_true", help="do not verify the checkpoints")


def _add_board(commands: Commands) -> None:
    """Add the command `board`."""
    help = "show the runs of a folder in a browser, while they train"
    usage = "hexloop board [FOLDER] [--port PORT] [--open]"
    add = _command(commands, "board", "board:run", help, help_texts.BOARD, usage).add_argument
    add("folder", metavar="FOLDER", nargs="?", default=".", help="the folder of the runs (default: this one)")
    add("--port", type=_port, default=8377, help="the port on this machine; 0 chooses a free one (default: 8377)")
    add("--open", action="store_true", help="open a browser")


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port < 1 << 16:
        raise ValueError(text)
    return port


def _add_outbox(commands: Commands) -> None:
    outbox = _command(
        commands, "outbox", None, "show and finish what runs have not published or logged yet", help_texts.OUTBOX
    )
    names = outbox.add_subparsers(dest="outbox_command", metavar="COMMAND", title="commands", required=True)
    parsers = {
        name: _command(names, name, f"outbox:{function}", help, f"{help[0].upper()}{help[1:]}.")
        for name, function, help in (
            ("list", "list_intents", "list what is left, and why"),
            ("flush", "flush", "publish what is left, and deliver logs to trackers"),
            ("retry", "retry", "do the same, also with what the hub has refused"),
            ("drop", "drop", "remove entries without publishing them; with --all also logs"),
        )
    }
    for parser in parsers.values():
        parser.add_argument("folder", metavar="FOLDER", help="the output folder of a run, or its URL")
    parsers["list"].add_argument("--json", action="store_true", help="print JSON")
    help = "how long to try (default: 600)"
    hub = "a hub that may get what is left there and your token: its URL, or a folder; the Hugging Face Hub always may"
    repository = "a repository that may get what is left, besides those that your runs in the folder published to"
    tracker = "a tracker that may be made with the options in the outbox, besides those that your runs chose"
    for name in ("flush", "retry"):
        add = parsers[name].add_argument
        add("--hub", dest="hubs", action="append", default=[], metavar="HUB", help=hub)
        add("--repository", dest="repositories", action="append", default=[], metavar="NAME", help=repository)
        add("--tracker", dest="trackers", action="append", default=[], metavar="NAME", help=tracker)
        add("--for", dest="limit_seconds", type=float, default=600.0, metavar="SECONDS", help=help)
    parsers["drop"].add_argument("entries", metavar="ENTRY", nargs="*", type=int, help="the numbers that `list` shows")
    parsers["drop"].add_argument("--all", action="store_true", help="drop everything")
