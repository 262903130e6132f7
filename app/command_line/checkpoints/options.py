"""The options of `hexloop checkpoints`, with the help texts."""

from __future__ import annotations

import argparse
from typing import Protocol, TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

MODULE = "hexloop.app.command_line.checkpoints"

LIST = """\
List the checkpoints in a folder, and related folders: quarantined and unfinished ones,
and those that have the name of a checkpoint but are not one. Every byte of each
checkpoint is read. Nothing is changed.

Exit code: 0 if no checkpoint is bad, 1 if one is."""

VERIFY = """\
Read every byte of each checkpoint and compare it with the manifest. A folder stands
for all checkpoints in it. Nothing is changed.

Exit code: 0 if all are good, 1 if one is not."""

SHOW = """\
Show which run wrote a checkpoint, at which step, the state of that run, and the files
with their sizes and digests. Nothing is verified: `hexloop checkpoints verify` does that."""

DIFF = """\
Compare two checkpoints: weights, optimizer, other tensors, then every field of the JSON
documents. Both are verified first. Of tensors that differ, one at a time is in memory.

Values that only identify a run are not compared: the names of runs and sessions, time
and memory readings, and the two files that are never read back. --strict compares them too.

Exit code: 0 if they are equal, 1 if they differ, 2 if one of them cannot be compared."""

PRUNE = """\
Remove checkpoints of one run: of those that led to its newest one, all but the last N.
The newest is verified first; if it is not good, nothing is removed. Checkpoints of other
runs, of a branch that the run has abandoned, and those that contain a file named
"protected" are never removed. There is no confirmation; what was removed is printed.

Do not use --leftovers while the run is training: a save in progress is unfinished too,
and would fail."""

CONSOLIDATE = """\
Write a folder with the model alone: its weights as one model.safetensors, however many
processes saved them, and its configuration and tokenizer if the checkpoint has them.
One tensor at a time is in memory; neither torch nor the engine that trained needs to be
installed. The folder appears when it is complete; the checkpoint is not changed."""

IMPORT = """\
Convert a checkpoint of transformers' Trainer (version 4 or 5) to a checkpoint of hexloop
in OUTPUT_DIR, from which `hexloop train --resume` resumes.

Only tensors, numbers and strings are read: files that would run code when they are
loaded are refused. training_args.bin is never read: pass the run's arguments again."""

EXPORT = """\
Write a checkpoint as checkpoint-<step> in OUTPUT_DIR, in the format of transformers'
Trainer, which accepts the folder as resume_from_checkpoint. This is the only place
where hexloop writes pickled files, as transformers requires them."""


class AddCommon(Protocol):
    """Adds the options that all commands have; `function`: the function to run, as "module:name"."""

    def __call__(self, parser: argparse.ArgumentParser, function: str) -> None:
        """Add the options."""
        ...


def add_checkpoints(commands: Commands, add_common: AddCommon, formatter: type[argparse.HelpFormatter]) -> None:
    """Add the command group `checkpoints`."""
    group = commands.add_parser(
        "checkpoints",
        help="list, verify, compare, prune and convert checkpoints",
        description="List, verify, compare, prune and convert checkpoints outside a run.",
        formatter_class=formatter,
        allow_abbrev=False,
    )
    names = group.add_subparsers(dest="checkpoints_command", metavar="COMMAND", title="commands", required=True)

    def command(name: str, function: str, help: str, description: str) -> argparse.ArgumentParser:
        parser = names.add_parser(
            name, help=help, description=description, formatter_class=formatter, allow_abbrev=False
        )
        add_common(parser, f"{MODULE}.{function}")
        return parser

    _list(command("list", "inspecting:list_checkpoints", "list the checkpoints in a folder, good and bad", LIST))
    _verify(command("verify", "inspecting:verify", "read checkpoints and report what is wrong with each", VERIFY))
    _show(command("show", "inspecting:show", "show the contents of a checkpoint", SHOW))
    _diff(command("diff", "diff:run", "report the first tensor or field that differs between two checkpoints", DIFF))
    _prune(command("prune", "pruning:run", "remove a run's older checkpoints", PRUNE))
    _consolidate(
        command(
            "consolidate",
            "converting:consolidate",
            "write a checkpoint's weights as one file, with everything that from_pretrained needs",
            CONSOLIDATE,
        )
    )
    _import(
        command("import", "converting:import_", "convert a checkpoint of transformers' Trainer to hexloop's", IMPORT)
    )
    _export(
        command("export", "converting:export", "write a checkpoint from which transformers' Trainer can resume", EXPORT)
    )


def _list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="the folder or URL that contains the checkpoints")
    parser.add_argument("--quick", action="store_true", help="read manifests only: verify nothing, show no metrics")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", metavar="FOLDER|CHECKPOINT", nargs="+", help="folders of checkpoints, checkpoints, or their URLs"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def _show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="the checkpoint's folder or URL")
    parser.add_argument("--tensors", action="store_true", help="list the tensors of each file, with type and shape")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _diff(parser: argparse.ArgumentParser) -> None:
    for name in ("one", "other"):
        parser.add_argument(name, metavar="CHECKPOINT", help="a checkpoint's folder or URL")
    parser.add_argument("--all", action="store_true", help="list all differences, and count what was compared")
    parser.add_argument("--strict", action="store_true", help="also compare values that only identify a run")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _prune(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="the folder or URL that contains the checkpoints")
    parser.add_argument("--keep", type=_at_least_one, metavar="N", help="how many checkpoints to keep")
    parser.add_argument("--keep-best", action="store_true", help="also keep the one with the best metric")
    parser.add_argument("--leftovers", action="store_true", help="remove unfinished folders that the run left behind")
    parser.add_argument(
        "--run", metavar="NAME", help="the run, or the start of its name; required if there are several"
    )
    parser.add_argument("--dry-run", action="store_true", help="only print what would be removed")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least one checkpoint must be kept")
    return number


def _consolidate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="the checkpoint's folder or URL")
    parser.add_argument(
        "--output", metavar="FOLDER", help="the folder or URL to write (default: CHECKPOINT-consolidated)"
    )


def _import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="the checkpoint's folder")
    parser.add_argument("--to", metavar="OUTPUT_DIR", required=True, help="the folder to write checkpoint-<step> to")
    parser.add_argument(
        "--gradient-accumulation-steps", type=int, default=1, metavar="N", help="that of the run (default: 1)"
    )
    parser.add_argument(
        "--train-batch-size", type=int, default=None, metavar="N", help="samples per micro-batch, if no file says it"
    )
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="the run's number of processes")
    parser.add_argument("--seed", type=int, default=42, help="the run's seed (default: 42)")
    parser.add_argument("--data-seed", type=int, default=None, help="the run's data_seed (default: its seed)")


def _export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="the checkpoint's folder")
    parser.add_argument("--to", metavar="OUTPUT_DIR", required=True, help="the folder to write checkpoint-<step> to")
