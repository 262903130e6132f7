"""The option `--resume`: which checkpoint a run resumes from, and the command that resumes it."""

from __future__ import annotations

import os
import shlex
from argparse import Namespace
from collections.abc import Collection, Iterator, Sequence

from hexloop.app.arguments import TrainingArguments
from hexloop.app.run.run_information import LAUNCHED_AS
from hexloop.app.wiring.storage import is_missing, joined, storage_for
from hexloop.domain.checkpoints.manifest import checkpoint_name
from hexloop.domain.checkpoints.reading import checkpoint_steps
from hexloop.domain.checkpoints.selection import runs_in

RESUME = ("resume", "resume_from_checkpoint")

AUTO = "auto"
"""The value of `--resume` that resumes if there is a checkpoint, and starts a new run otherwise."""


def command_text(argv: Sequence[str]) -> str:
    """Return the shell command for the arguments `argv`, through `hexloop launch` if it started this process."""
    if argv[:1] == ["train"] and (launched := os.environ.get(LAUNCHED_AS)):
        return f"{launched} {shlex.join(argv[1:])}"
    return shlex.join(["hexloop", *argv])


def resume_source(options: Namespace, arguments: TrainingArguments) -> str | bool | None:
    """Return the value of `--resume`, or of the argument `resume_from_checkpoint` if the option is not given."""
    chosen: str | bool | None = options.resume
    return arguments.resume_from_checkpoint if chosen is None else chosen


def resume_problems(source: str | bool | None, arguments: TrainingArguments) -> Iterator[str]:
    """Report a checkpoint to resume from that is missing, or existing ones that a restart would take for the run's."""
    folder = str(arguments.output_dir)
    restarts = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
    if source in (None, False) and restarts != "0" and checkpoint_steps(storage_for(folder)):
        yield (
            f"--resume: You chose to start a new run with up to {restarts} restarts, but {folder} already contains "
            "checkpoints, from which a restart would resume; use --resume auto to resume from them, or choose another "
            "output_dir."
        )
    if source is True and not checkpoint_steps(storage_for(folder)):
        yield (
            f"--resume: You chose to resume from the newest checkpoint, but there is none in {folder}; leave --resume "
            "out to train from the start, or set output_dir."
        )
    elif isinstance(source, str) and source != AUTO and is_missing(source):
        yield f"--resume: You chose to resume from {source!r}, but there is no such folder; name a checkpoint's folder."


def resume_command(argv: Sequence[str], arguments: TrainingArguments, step: int, finished: bool) -> str:
    """Return the command `argv`, changed so that it resumes from the run's last checkpoint, that of `step`.

    The checkpoint is named only if the folder contains checkpoints of another run. For a run that has `finished`, the
    number of steps or epochs is doubled, as there is nothing left to do otherwise.
    """
    folder = str(arguments.output_dir)
    alone = len(runs_in(storage_for(folder))) <= 1
    source = ["--resume", *([] if alone else [joined(folder, checkpoint_name(step))])]
    if not finished:
        return command_text([*without_options(argv, RESUME), *source])
    if arguments.max_steps > 0:
        longer, value = "max_steps", str(2 * arguments.max_steps)
    else:
        longer, value = "num_train_epochs", f"{2 * arguments.num_train_epochs:g}"
    return command_text([*without_options(argv, (*RESUME, longer)), *source, f"--{longer}", value])


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
