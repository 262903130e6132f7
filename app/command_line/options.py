"""The parser of the command line, with the help texts. The options of `hexloop checkpoints` are in its own package."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TypeAlias

from hexloop import __version__
from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.parser import add_arguments
from hexloop.app.command_line.checkpoints.options import add_checkpoints

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

MODULE = "hexloop.app.command_line"

ARGUMENT_NAMES = frozenset(TrainingArguments.__dataclass_fields__)

TOP = """\
hexloop trains what a recipe describes: a YAML file that names a model, its data
and its metrics by import path, so that code of any project can be trained.

  hexloop train recipe.yaml                       train
  hexloop train recipe.yaml --resume              resume after a stop or a crash
  hexloop evaluate recipe.yaml                    evaluate the checkpoint
  hexloop predict recipe.yaml --output out.npz    write its predictions
  hexloop launch --processes 2 recipe.yaml        train in several processes
  hexloop checkpoints list runs/a                 list checkpoints and whether they are good
  hexloop runs diff runs/a runs/b                 find the first step at which two runs differ
  hexloop doctor                                  show what this machine supports"""

EXIT_CODES = """\
exit codes:
  0    success
  1    the run failed; earlier checkpoints are intact
  2    the recipe, an argument or an option is invalid: nothing was trained
  3    stopped before the end (Ctrl-C, SIGTERM, a deadline) and saved: --resume resumes it
  130  interrupted immediately: by a second Ctrl-C, or before there was a run to save
  143  the same by a second SIGTERM; 128 + n by a second signal n
"""

TRAIN = """\
Train what RECIPE describes, and write checkpoints to the argument output_dir.

A recipe is a YAML file. The keys model and train_dataset are required; optional are
eval_dataset, test_dataset, data_collator, processing_class, compute_metrics,
compute_loss_func, preprocess_logits_for_metrics, model_init, callbacks (a list),
trainer (a subclass of hexloop.Trainer) and arguments:

  model:
    call: my_project.MyModel             called with the other keys as arguments
    width: 64
  train_dataset:
    call: my_project.read_samples
    split: train
  compute_metrics: my_project.accuracy   the object itself
  arguments:
    output_dir: runs/first
    learning_rate: 1e-3

Among the arguments of a call, a mapping with `call` is called first, and
{object: PATH} is the object itself. Modules are also searched in the recipe's folder.
Everything that can be checked without running your code is checked first, and all
problems are reported together, with their lines.

The arguments below may be given after the recipe and override it. Ctrl-C or SIGTERM
saves a checkpoint and stops; a second one stops immediately. With --resume auto the
same command starts a run, resumes it, or reports that it is finished."""

TRAIN_EXAMPLES = """\
examples:
  hexloop train recipe.yaml
  hexloop train recipe.yaml --learning_rate 1e-4 --max_steps 200 --output_dir runs/short
  hexloop train recipe.yaml --bf16 --report_to json_lines tensorboard
  hexloop train recipe.yaml --resume
  hexloop train recipe.yaml --resume auto
  hexloop train recipe.yaml --resume runs/first/checkpoint-500

"""

EVALUATE = """\
Evaluate a checkpoint on the recipe's eval_dataset. The metrics are written to a file
and printed as JSON; nothing else is written to standard output.

All training arguments may be given too; `hexloop train --help` lists them."""

PREDICT = """\
Write a checkpoint's predictions on the recipe's test_dataset, or on its eval_dataset
if there is none, to a file. The metrics are printed as JSON on standard output.

  .npz    arrays `predictions` and `label_ids` of shape (samples, ...); several
          outputs are predictions_0, predictions_1, ... or predictions_<name>.
          numpy.load reads it without unpickling anything.
  .jsonl  a line {"prediction": ..., "label": ...} per sample

All training arguments may be given too; `hexloop train --help` lists them."""

ARGUMENTS_USAGE = {
    "train": "[--resume [CHECKPOINT]] [--any_argument value ...]",
    "evaluate": "[--checkpoint FOLDER] [--output FILE] [--any_argument value ...]",
    "predict": "--output FILE [--checkpoint FOLDER] [--any_argument value ...]",
}

LAUNCH_USAGE = "hexloop launch [--processes N] [--restarts K] [option ...] RECIPE-or-SCRIPT.py [argument ...]"

LAUNCH = """\
Run a recipe or a Python script in several processes that train together, on one
machine or several. A recipe runs as with `hexloop train`, a file that ends in .py as
with `python`; arguments after its name are passed to it. Each process reads its rank
from the environment variables that torchrun sets (RANK, WORLD_SIZE, LOCAL_RANK,
MASTER_ADDR, ...).

When a process dies, all are stopped, and with --restarts they are started again: a
recipe resumes from its newest checkpoint. Options must precede the recipe."""

LAUNCH_EXAMPLES = """\
examples:
  hexloop launch --processes 2 recipe.yaml --max_steps 100
  hexloop launch --processes 2 --restarts 3 --log-folder logs recipe.yaml --resume auto
  hexloop launch --processes 8 --nodes 2 --node-rank 0 --rendezvous node0:29400 train.py

exit codes:
  0    every process exited with 0
  2    an option is invalid: nothing was started
  n    that of the process that failed first; 128 + n if signal n killed it.
       A process that exits with 2 (invalid configuration) or 3 (stopped and saved)
       is not restarted
"""

RUNS_DIFF = """\
Find the step at which two runs diverge, and what diverges first: the data, the random
generators, the learning rate, the loss, the gradients, the weights or the metrics.
Everything that both journals contain is compared: logs and saves, and with
journal='steps' every step.

Exit code: 0 if the runs are equal in everything that was compared, 1 if they diverge."""

DOCTOR = """\
Report what this machine has: devices and the precisions that each supports, the
adapters of each port including those of installed packages, and versions; and what to
install for anything missing. Exit code: 1 if something that hexloop needs is missing."""


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
    parser.add_argument("--version", action="version", version=f"hexloop {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, add in (("train", _add_train), ("evaluate", _add_evaluate), ("predict", _add_predict)):
        command = add(commands)
        if name in argv:
            add_arguments(command, TrainingArguments)
    add_checkpoints(commands, _add_common, PlainHelp)
    _add_launch(commands)
    _add_runs(commands)
    _add_doctor(commands)
    return parser


def _add_train(commands: Commands) -> argparse.ArgumentParser:
    parser = _recipe_command(
        commands, "train", f"{MODULE}.training:run", "train what a recipe describes", TRAIN, TRAIN_EXAMPLES, PlainHelp
    )
    parser.add_argument(
        "--resume",
        nargs="?",
        const=True,
        metavar="CHECKPOINT",
        help="resume from this checkpoint's folder; without a folder, from the newest good checkpoint in output_dir; "
        "auto: from that one if there is any, unless the run is finished",
    )
    return parser


def _add_evaluate(commands: Commands) -> argparse.ArgumentParser:
    summary = "evaluate a checkpoint on the recipe's eval_dataset"
    parser = _recipe_command(
        commands, "evaluate", f"{MODULE}.evaluating:evaluate", summary, EVALUATE, "", HelpWithoutArguments
    )
    _add_checkpoint(parser)
    parser.add_argument(
        "--output", metavar="FILE", help="JSON file for the metrics (default: eval_results.json in output_dir)"
    )
    return parser


def _add_predict(commands: Commands) -> argparse.ArgumentParser:
    summary = "write a checkpoint's predictions to a file"
    parser = _recipe_command(
        commands, "predict", f"{MODULE}.evaluating:predict", summary, PREDICT, "", HelpWithoutArguments
    )
    _add_checkpoint(parser)
    parser.add_argument("--output", metavar="FILE", required=True, help="a file that ends in .npz or .jsonl")
    return parser


def _recipe_command(
    commands: Commands,
    name: str,
    function: str,
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
    parser.add_argument("recipe", nargs="?", metavar="RECIPE", help="the YAML file that describes the training run")
    _add_common(parser, function)
    return parser


def _add_checkpoint(parser: argparse.ArgumentParser) -> None:
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--checkpoint",
        metavar="FOLDER",
        help="the checkpoint whose weights to use (default: the last one of the newest run in output_dir: its best if "
        "load_best_model_at_end is set, else its newest)",
    )
    group.add_argument(
        "--no-checkpoint",
        dest="as_made",
        action="store_true",
        help="use the model as the recipe creates it, which may load weights itself",
    )


def _add_launch(commands: Commands) -> None:
    """Add the command `launch`. Its values are parsed later, so that all problems can be reported at once."""
    parser = commands.add_parser(
        "launch",
        help="run a recipe or a script in several processes",
        usage=LAUNCH_USAGE,
        description=LAUNCH,
        epilog=LAUNCH_EXAMPLES,
        formatter_class=PlainHelp,
        allow_abbrev=False,
    )
    _add_common(parser, f"{MODULE}.launch:run")
    here = parser.add_argument_group("processes")
    here.add_argument("--processes", metavar="N", help="number on this machine (default: one per GPU)")
    here.add_argument(
        "--restarts", metavar="K", default="0", help="how often all are started again when one dies (default: 0)"
    )
    here.add_argument(
        "--grace",
        metavar="SECONDS",
        default="30",
        help="time to save and exit after Ctrl-C or SIGTERM, before they are killed (default: 30)",
    )
    here.add_argument(
        "--log-folder", metavar="DIR", help="also write the output of each process to DIR/rank-<rank>.log"
    )
    nodes = parser.add_argument_group("several machines; run the command on each of them")
    nodes.add_argument(
        "--nodes",
        metavar="M",
        default="1",
        help="number of machines; MIN:MAX if some may join or leave while the others continue (default: 1)",
    )
    nodes.add_argument("--rendezvous", metavar="HOST:PORT", help="where they connect: a free port on one of them")
    nodes.add_argument(
        "--node-rank",
        metavar="R",
        help="the index of this machine; 0 must be at HOST and has rank 0 (default: in the order of arrival)",
    )
    nodes.add_argument(
        "--address", metavar="HOST", help="the address of this machine for the others (default: its host name)"
    )
    nodes.add_argument(
        "--join-timeout", metavar="SECONDS", default="600", help="how long to wait for the others (default: 600)"
    )
    parser.add_argument("program", metavar="RECIPE-or-SCRIPT.py", help="the recipe, or a file that ends in .py")
    parser.add_argument(
        "program_arguments", nargs=argparse.REMAINDER, metavar="argument", help="arguments of the recipe or script"
    )


def _add_runs(commands: Commands) -> None:
    runs = commands.add_parser(
        "runs",
        help="find where two runs diverge",
        description="Read the journals that runs keep in their output folders.",
        formatter_class=PlainHelp,
        allow_abbrev=False,
    )
    _add_common(runs)
    tools = runs.add_subparsers(dest="tool", metavar="TOOL", title="tools", required=True)
    diff = tools.add_parser(
        "diff",
        help="find the step at which two runs diverge, and what diverges first",
        description=RUNS_DIFF,
        formatter_class=PlainHelp,
        allow_abbrev=False,
    )
    for name in ("one", "other"):
        diff.add_argument(
            name,
            metavar="RUN",
            help="a run's output folder or journal; FOLDER@NAME selects the run NAME if it contains several (default: "
            "the last one)",
        )
    diff.add_argument("--json", action="store_true", help="print JSON")
    _add_common(diff, f"{MODULE}.runs:diff")


def _add_doctor(commands: Commands) -> None:
    parser = commands.add_parser(
        "doctor",
        help="report what this machine supports, and what to install for the rest",
        description=DOCTOR,
        formatter_class=PlainHelp,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    _add_common(parser, f"{MODULE}.doctor:run")


def _add_common(parser: argparse.ArgumentParser, function: str | None = None) -> None:
    """Add the options that all commands have, and set the function that runs the command, as "module:name"."""
    parser.set_defaults(fail=parser.error, function=function)
    parser.add_argument(
        "--traceback",
        action="store_true",
        help="print the traceback of every error, including those that hexloop raises on purpose",
    )
